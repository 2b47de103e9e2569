#include "passes/needed_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/setting.h"
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

/// What cannot be computed here: nodes by operator, and what is wrong with the first tensor.
struct Unsupported {
  std::map<std::string, std::vector<std::string>> operators;
  std::string tensor;

  bool empty() const { return operators.empty() && tensor.empty(); }
};

/// Why a Constant has no tensor, such as one of strings; empty if it has one.
std::string why_no_constant(const OnnxNode& node) {
  if (node.op_type != "Constant" || !node.domain.empty()) return {};
  const OnnxAttribute* const value = node.find_attribute("value");
  if (!value || value->kind != OnnxAttribute::Kind::kTensor || value->tensor) return {};
  return fmt::format("{}: its tensor cannot be used: {}", node.label(), value->s);
}

/// Why an input of a needed node cannot be used; empty if all can.
std::string why_no_input(const OnnxModel& model, const Needed& needed) {
  std::map<std::string_view, const OnnxInitializer*> unusable;
  for (const OnnxInitializer& tensor : model.initializers) {
    if (!tensor.unusable.empty() && needed.values.contains(tensor.name))
      unusable.emplace(tensor.name, &tensor);
  }
  for (std::size_t n = 0; n < model.nodes.size() && !unusable.empty(); ++n) {
    if (!needed.nodes[n]) continue;
    for (const std::string& input : model.nodes[n].inputs) {
      if (const auto found = unusable.find(input); found != unusable.end())
        return fmt::format("{}: its input tensor '{}' cannot be used: {}", model.nodes[n].label(),
                           printable(input), found->second->unusable);
    }
  }
  return {};
}

Unsupported find_unsupported(const OnnxModel& model, const Needed& needed) {
  Unsupported found;
  found.tensor = why_no_input(model, needed);
  const auto look_at = [&](const OnnxNode& node) {
    if (found.tensor.empty()) found.tensor = why_no_constant(node);
    if (has_subgraphs(node) || is_sequence_operator(node) ||
        (node.domain.empty() && find_import(node.op_type)))
      return;
    found.operators[full_type(node)].push_back(
        node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name);
  };
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    if (!needed.nodes[n]) continue;
    const OnnxNode& outer = model.nodes[n];
    if (has_subgraphs(outer)) {
      for (const OnnxNode& node : with_inner_nodes(outer)) look_at(node);
    } else {
      look_at(outer);
    }
  }
  return found;
}

/// What to do where an output of the model needs nothing that is not supported; else empty. Outputs
/// of integers cannot be trained.
std::string output_without_unsupported(const OnnxModel& model) {
  constexpr std::size_t kMostOutputs = 16;
  for (std::size_t i = 0; i < std::min(model.outputs.size(), kMostOutputs); ++i) {
    const DType dtype = model.outputs[i].dtype;
    if (dtype != DType::kUndefined && !is_float(dtype)) continue;
    const std::vector<std::string> target = {model.outputs[i].name};
    const Needed needed = find_needed(model, target);
    const bool computed =
        std::any_of(needed.nodes.begin(), needed.nodes.end(), [](bool is) { return is; });
    if (computed && find_unsupported(model, needed).empty())
      return fmt::format("; output \"{0}\" needs nothing of that: {1} {0} leaves out the rest",
                         printable(target[0]), setting("output-node"));
  }
  return {};
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

std::vector<std::string> targets_of(const OnnxModel& model, const std::string& output_node) {
  std::vector<std::string> targets;
  if (output_node.empty()) {
    for (const OnnxValue& output : model.outputs) targets.push_back(output.name);
    return targets;
  }
  for (const OnnxNode& node : model.nodes) {
    for (const std::string& output : node.outputs) {
      if (output == output_node || (node.name == output_node && !output.empty())) return {output};
    }
  }
  PT_FAIL(kUsage, "{}: {} has no node or value named \"{}\"", setting("output-node"),
          model.path.filename().string(), printable(output_node));
}

std::vector<OnnxValue> needed_inputs(const OnnxModel& model, const std::string& output_node) {
  if (model.inputs.size() <= 1) return model.inputs;  // without a look at all nodes
  const std::vector<std::string> targets = targets_of(model, output_node);
  const Needed needed = find_needed(model, targets);
  std::vector<OnnxValue> inputs;
  for (const OnnxValue& input : model.inputs) {
    if (needed.values.contains(input.name)) inputs.push_back(input);
  }
  return inputs;
}

void refuse_unsupported(const OnnxModel& model, const Needed& needed) {
  const Unsupported found = find_unsupported(model, needed);
  if (found.empty()) return;
  const std::string hint = output_without_unsupported(model);
  if (found.operators.empty()) PT_FAIL(kModel, "{}{}", found.tensor, hint);
  std::string list;
  for (const auto& [op, nodes] : found.operators) {
    list += fmt::format("\n  {:<23} {} node{}  {}", printable(op), nodes.size(),
                        nodes.size() == 1 ? " " : "s", printable(nodes.front()));
    if (nodes.size() > 1) list += ", …";
  }
  const std::size_t count = found.operators.size();
  PT_FAIL(kModel, "{} cannot be used: {} operator{} not supported here{}{}{}",
          model.path.filename().string(), count, count == 1 ? " is" : "s are",
          std::any_of(found.operators.begin(), found.operators.end(),
                      [](const auto& each) { return is_quantized(each.first); })
              ? "; it is quantized: give the float model that it was made from"
              : "",
          hint, list);
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
