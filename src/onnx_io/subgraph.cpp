#include "onnx_io/subgraph.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace pipetrain {
namespace {

using Names = std::span<const std::string_view>;

Names subgraph_attributes(const OnnxNode& node) {
  static constexpr std::string_view kBranches[] = {"then_branch", "else_branch"};
  static constexpr std::string_view kBody[] = {"body"};
  const std::string_view op = node.op_type;  // asked often, so compared as such
  if (!node.domain.empty()) return {};
  if (op == "If") return kBranches;
  if (op == "Loop" || op == "Scan") return kBody;
  return {};
}

/// Whether a node is a Constant that may be a weight: vectors are the scales of a Resize and such.
bool holds_matrix(const OnnxNode& node) {
  if (node.op_type != "Constant" || !node.domain.empty() || !node.has_output(0)) return false;
  const OnnxAttribute* const value = node.find_attribute("value");
  return value && is_float(value->tensor.dtype()) && value->tensor.shape().rank() > 1 &&
         value->tensor.shape().count() > 1;
}

}  // namespace

bool has_subgraphs(const OnnxNode& node) {
  // Inside a local function the names of a sub-graph would have to be renamed with it.
  const Names names = subgraph_attributes(node);
  return !names.empty() && node.function.empty() &&
         std::ranges::all_of(names, [&](std::string_view name) {
           const OnnxAttribute* found = node.find_attribute(name);
           return found && found->kind == OnnxAttribute::Kind::kGraph;
         });
}

std::set<std::string> captured_names(const OnnxNode& node) {
  std::set<std::string> out;
  if (!has_subgraphs(node)) return out;
  for (const std::string_view attribute : subgraph_attributes(node)) {
    const OnnxSubgraph graph = read_subgraph(node, attribute);
    std::set<std::string> made(graph.inputs.begin(), graph.inputs.end());
    for (const OnnxInitializer& initializer : graph.initializers) made.insert(initializer.name);
    const auto use = [&](const std::string& name) {
      if (!name.empty() && !made.contains(name)) out.insert(name);
    };
    for (const OnnxNode& inner : graph.nodes) {
      for (const std::string& name : inner.inputs) use(name);
      for (const std::string& name : captured_names(inner)) use(name);
      made.insert(inner.outputs.begin(), inner.outputs.end());
    }
    for (const std::string& name : graph.outputs) use(name);
  }
  return out;
}

std::vector<std::string> float_tensors_inside(const OnnxNode& node) {
  std::vector<std::string> out;
  if (!has_subgraphs(node)) return out;
  for (const std::string_view attribute : subgraph_attributes(node)) {
    const OnnxSubgraph graph = read_subgraph(node, attribute);
    for (const OnnxInitializer& tensor : graph.initializers) {
      if (is_float(tensor.file_dtype) && tensor.shape.count() > 1) out.push_back(tensor.name);
    }
    for (const OnnxNode& inner : graph.nodes) {
      if (holds_matrix(inner)) out.push_back(inner.outputs[0]);
      for (std::string& name : float_tensors_inside(inner)) out.push_back(std::move(name));
    }
  }
  return out;
}

std::vector<OnnxNode> with_inner_nodes(const OnnxNode& node) {
  std::vector<OnnxNode> out;
  if (has_subgraphs(node)) {
    for (const std::string_view attribute : subgraph_attributes(node)) {
      for (const OnnxNode& inner : read_subgraph(node, attribute).nodes) {
        for (OnnxNode& deep : with_inner_nodes(inner)) out.push_back(std::move(deep));
      }
    }
  }
  out.push_back(node);
  return out;
}

}  // namespace pipetrain
