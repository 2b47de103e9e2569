#include "passes/single_biases.h"

#include <algorithm>

namespace pipetrain {
namespace {

bool is_flagged(const OnnxNode& node, std::string_view attribute) {
  const OnnxAttribute* const found = node.find_attribute(attribute);
  return found && found->i != 0;
}

/// Whether a layer with a weight of this shape, of two or more axes, has one output or channel.
bool has_one_output(const OnnxNode& node, const Shape& weight) {
  if (node.op_type == "MatMul") return weight[weight.rank() - 1] == 1;
  if (node.op_type == "Gemm") return weight[is_flagged(node, "transB") ? 0 : 1] == 1;
  if (node.op_type == "Conv") return weight[0] == 1;
  const OnnxAttribute* const groups = node.find_attribute("group");
  return node.op_type == "ConvTranspose" && weight[1] == 1 && (!groups || groups->i == 1);
}

/// Whether the elements of the result are those of the first input.
bool keeps_elements(const OnnxNode& node) {
  constexpr std::string_view kMoves[] = {"Cast",    "Flatten",   "Identity", "Reshape",
                                         "Squeeze", "Transpose", "Unsqueeze"};
  return std::ranges::find(kMoves, node.op_type) != std::end(kMoves);
}

}  // namespace

NameSet single_biases(const OnnxModel& model) {
  NameTable<const Shape*> weights;  // that may have one output
  const auto add = [&](const std::string& name, const Shape& shape) {
    if (shape.rank() >= 2 && std::ranges::find(shape, 1) != shape.end()) weights.add(name, &shape);
  };
  for (const OnnxInitializer& initializer : model.initializers)
    add(initializer.name, initializer.shape);
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type != "Constant" || !node.has_output(0)) continue;
    const OnnxAttribute* const value = node.find_attribute("value");
    if (value && value->tensor) add(node.outputs[0], value->tensor.shape());
  }
  NameSet biases;
  if (weights.size() == 0) return biases;
  NameSet results;  // of layers with one output
  for (const OnnxNode& node : model.nodes) {
    if (node.op_type == "Add" && node.has_input(0) && node.has_input(1)) {
      for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
        if (results.contains(node.inputs[slot])) biases.insert(node.inputs[1 - slot]);
      }
      continue;
    }
    const Shape* const* const weight = node.has_input(1) ? weights.find(node.inputs[1]) : nullptr;
    if (weight ? has_one_output(node, **weight)
               : keeps_elements(node) && node.has_input(0) && results.contains(node.inputs[0]))
      results.insert_all(node.outputs);
  }
  return biases;
}

}  // namespace pipetrain
