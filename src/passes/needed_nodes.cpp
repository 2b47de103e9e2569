#include "passes/needed_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "onnx_io/subgraph.h"
#include "ops/registry/registry.h"
#include "ops/registry/standard_attributes.h"
#include "passes/sequences.h"

namespace pipetrain {
namespace {

std::string full_type(const OnnxNode& node) {
  return node.domain.empty() ? node.op_type : node.domain + "." + node.op_type;
}

/// Whether an operator is one of quantized models, whose integer weights have no gradients.
bool is_quantized(std::string_view op) {
  return op.find("QuantizeLinear") != std::string_view::npos ||
         op.find("QLinear") != std::string_view::npos || op.ends_with("Integer");
}

}  // namespace

Needed find_needed(const OnnxModel& model, const std::vector<std::string>& targets) {
  Needed needed;
  needed.nodes.assign(model.nodes.size(), false);
  needed.values.reserve(model.nodes.size());
  needed.values.insert_all(targets);
  for (std::size_t n = model.nodes.size(); n-- > 0;) {
    const OnnxNode& node = model.nodes[n];
    if (n >= kNamesAhead) {
      for (const std::string& input : model.nodes[n - kNamesAhead].inputs)
        needed.values.expect(input);
    }
    needed.nodes[n] = std::any_of(
        node.outputs.begin(), node.outputs.end(),
        [&](const std::string& name) { return !name.empty() && needed.values.contains(name); });
    if (!needed.nodes[n]) continue;
    needed.values.insert_all(node.inputs);
    if (has_subgraphs(node))
      needed.values.insert_all(needed.captured.emplace_back(captured_names(node)));
  }
  return needed;
}

void refuse_unsupported(const OnnxModel& model, const Needed& needed) {
  std::map<std::string, std::vector<std::string>> missing;
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    if (!needed.nodes[n]) continue;
    const OnnxNode& outer = model.nodes[n];
    const auto look_at = [&](const OnnxNode& node) {
      if (has_subgraphs(node) || is_sequence_operator(node) ||
          (node.domain.empty() && find_import(node.op_type)))
        return;
      missing[full_type(node)].push_back(
          node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name);
    };
    if (has_subgraphs(outer)) {
      for (const OnnxNode& node : with_inner_nodes(outer)) look_at(node);
    } else {
      look_at(outer);
    }
  }
  if (missing.empty()) return;
  std::string list;
  for (const auto& [op, nodes] : missing) {
    list += fmt::format("\n  {:<24}{} node{}  {}", printable(op), nodes.size(),
                        nodes.size() == 1 ? " " : "s", printable(nodes.front()));
    if (nodes.size() > 1) list += ", …";
  }
  PT_FAIL(kModel, "{} cannot be trained: {} operator{} not supported here{}{}",
          model.path.filename().string(), missing.size(), missing.size() == 1 ? " is" : "s are",
          std::any_of(missing.begin(), missing.end(),
                      [](const auto& each) { return is_quantized(each.first); })
              ? "; it is quantized: give the float model that it was made from"
              : "",
          list);
}

void check_attributes(const OnnxNode& node) {
  if (!node.domain.empty()) return;
  for (const OnnxAttribute& attribute : node.attributes) {
    PT_CHECK(may_have_attribute(node.op_type, attribute.name), kModel,
             "{} has no attribute \"{}\"; check the program that wrote the model",
             printable(node.op_type), printable(attribute.name));
  }
}

}  // namespace pipetrain
