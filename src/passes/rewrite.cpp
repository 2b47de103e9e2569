#include "passes/rewrite.h"

#include "base/error.h"
#include "graph/op.h"
#include "ops/registry/registry.h"

namespace pipetrain {

void Rewriter::replace(std::size_t index) {
  current_ = index;
  replacements_[index];
}

std::vector<ValueId> Rewriter::emit(std::string_view op, std::vector<ValueId> inputs,
                                    Attributes attributes, ValueId result) {
  return emit_all(op, std::move(inputs), std::move(attributes), std::span(&result, 1));
}

std::vector<ValueId> Rewriter::emit_all(std::string_view op, std::vector<ValueId> inputs,
                                        Attributes attributes, std::span<const ValueId> results) {
  Node node;
  node.op = find_op(op);
  PT_CHECK(node.op != nullptr, kInternal, "no operator {}", op);
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.name = graph_.nodes[current_].name;
  const std::vector<TensorType> types = graph_.input_types(node);
  InferContext with_types{node.attributes, types, {}};
  node.op->infer(with_types);
  for (std::size_t i = 0; i < with_types.outputs.size(); ++i) {
    if (i < results.size() && results[i]) {
      PT_CHECK(graph_[results[i]].type == with_types.outputs[i], kInternal,
               "{} gives {} instead of {}", op, with_types.outputs[i].text(),
               graph_[results[i]].type.text());
      node.outputs.push_back(results[i]);
      continue;
    }
    Value value;
    value.type = with_types.outputs[i];
    value.name = fmt::format("{}_{}", op, graph_.values.size());
    node.outputs.push_back({static_cast<int>(graph_.values.size())});
    graph_.values.push_back(std::move(value));
  }
  std::vector<ValueId> outputs = node.outputs;
  replacements_[current_].push_back(std::move(node));
  return outputs;
}

ValueId Rewriter::reshape(ValueId x, const Shape& shape) {
  if (graph_[x].type.shape == shape) return x;
  return emit("Reshape", {x}, {{"shape", shape.dims()}})[0];
}

void Rewriter::reshape_into(ValueId x, const Shape& shape, ValueId result) {
  emit("Reshape", {x}, {{"shape", shape.dims()}}, result);
}

ValueId Rewriter::constant(HostTensor tensor) {
  Value value;
  value.type = tensor.type();
  value.role = Role::kConstant;
  value.name = fmt::format("constant_{}", graph_.values.size());
  value.data = std::move(tensor);
  graph_.values.push_back(std::move(value));
  return {static_cast<int>(graph_.values.size()) - 1};
}

ValueId Rewriter::transposed_input(ValueId x, const Ints& perm) const {
  const auto is_it = [&](const Node& node) {
    return node.op->name == "Transpose" && node.outputs[0] == x &&
           node.attributes.ints("perm") == perm;
  };
  if (const NodeId producer = graph_[x].producer) {
    // What it read may be gone.
    if (replaced(static_cast<std::size_t>(producer.index))) return {};
    const Node& node = graph_[producer];
    return is_it(node) ? node.inputs[0] : ValueId{};
  }
  const auto emitted = replacements_.find(current_);
  if (emitted == replacements_.end()) return {};
  for (const Node& node : emitted->second) {
    if (is_it(node)) return node.inputs[0];
  }
  return {};
}

void Rewriter::apply() {
  if (replacements_.empty()) return;
  std::vector<Node> nodes;
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    const auto found = replacements_.find(n);
    if (found == replacements_.end()) {
      nodes.push_back(std::move(graph_.nodes[n]));
      continue;
    }
    for (Node& node : found->second) nodes.push_back(std::move(node));
  }
  graph_.nodes = std::move(nodes);
  for (Value& value : graph_.values) value.producer = {};  // some are computed no more
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    for (const ValueId id : graph_.nodes[n].outputs) {
      if (id) graph_[id].producer = {static_cast<int>(n)};
    }
  }
  replacements_.clear();
}

}  // namespace pipetrain
