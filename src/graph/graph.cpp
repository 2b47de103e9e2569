#include "graph/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<TensorType> out;
  out.reserve(ids.size());
  for (const ValueId id : ids) out.push_back(id ? graph[id].type : TensorType{});
  return out;
}

std::string_view name_of(Part part) {
  switch (part) {
    case Part::kPrepare:
      return "prepare";
    case Part::kForward:
      return "F";
    case Part::kInputGradient:
      return "I";
    case Part::kWeightGradient:
      return "W";
    case Part::kBatchGradient:
      return "batch W";
    case Part::kFinish:
      return "finish";
  }
  return "?";
}

}  // namespace

std::vector<TensorType> Graph::input_types(const Node& node) const {
  return types_of(*this, node.inputs);
}
std::vector<TensorType> Graph::output_types(const Node& node) const {
  return types_of(*this, node.outputs);
}

std::string Graph::to_text() const {
  std::string out;
  const auto list = [&](const std::vector<ValueId>& ids, bool with_type) {
    std::string text;
    for (const ValueId id : ids) {
      if (!text.empty()) text += ", ";
      if (!id) {
        text += "-";
        continue;
      }
      text += printable((*this)[id].name);
      if (with_type) text += " " + (*this)[id].type.text();
    }
    return text;
  };
  for (const Node& node : nodes) {
    out += fmt::format("{:8}{} = {}({}) {}\n", name_of(node.part), list(node.outputs, true),
                       node.op->name, list(node.inputs, false), node.attributes.to_text());
  }
  return out;
}

void Graph::verify() const {
  std::vector<bool> ready(values.size(), false);
  for (std::size_t i = 0; i < values.size(); ++i) {
    PT_CHECK(values[i].type.dtype != DType::kUndefined, kInternal, "value {} has no type",
             values[i].name);
    const NodeId producer = values[i].producer;
    ready[i] = !producer;
    if (!producer) continue;
    const ValueId id{static_cast<int>(i)};
    const bool is_result =
        static_cast<std::size_t>(producer.index) < nodes.size() &&
        std::ranges::find((*this)[producer].outputs, id) != (*this)[producer].outputs.end();
    PT_CHECK(is_result, kInternal, "value {} is no result of its producer", values[i].name);
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const ValueId id : nodes[n].inputs) {
      PT_CHECK(!id || ready[static_cast<std::size_t>(id.index)], kInternal,
               "node {} ({}) uses {} before it exists", n, nodes[n].op->name, (*this)[id].name);
    }
    for (const ValueId id : nodes[n].outputs) {
      PT_CHECK((*this)[id].producer.index == static_cast<int>(n), kInternal,
               "value {} has another producer", (*this)[id].name);
      ready[static_cast<std::size_t>(id.index)] = true;
    }
  }
}

}  // namespace pipetrain
