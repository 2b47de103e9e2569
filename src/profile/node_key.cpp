#include "profile/node_key.h"

#include <fmt/core.h>

#include <map>

#include "graph/op.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

std::string type_text(const TensorType& type) {
  if (type.dtype == DType::kUndefined) return " -";
  static constexpr const char* kLayouts[] = {"", "/8", "/16", "/last", "/padded"};
  return fmt::format(" {}{}", type.text(), kLayouts[static_cast<std::size_t>(type.layout)]);
}

// Attributes that tell nodes apart but not kernels.
bool is_identity(const std::string& name) {
  return name == "key" || name == "members" || name == "running_mean" || name == "running_variance";
}

}  // namespace

std::vector<bool> values_read(const TrainingGraph& training) {
  std::vector<bool> read(training.graph.values.size(), false);
  const auto mark = [&](ValueId id) {
    if (id) read[static_cast<std::size_t>(id.index)] = true;
  };
  for (const Node& node : training.graph.nodes) {
    for (const ValueId id : node.inputs) mark(id);
  }
  for (const ValueId id : training.outputs) mark(id);
  mark(training.loss.loss_sum);
  mark(training.loss.correct);
  for (const Parameter& parameter : training.parameters) mark(parameter.gradient);
  for (const Accumulation& accumulation : training.accumulations) mark(accumulation.contribution);
  for (const BatchedValue& batched : training.batched_values) mark(batched.value);
  for (const RunningStatistic& statistic : training.statistics) {
    mark(statistic.batch_mean);
    mark(statistic.batch_variance);
  }
  return read;
}

std::string node_key(const Graph& graph, const Node& node, const std::vector<bool>& is_read) {
  Attributes attributes;
  for (const auto& [name, value] : node.attributes.items()) {
    if (!is_identity(name)) attributes.set(name, value);
  }
  std::string key = fmt::format("{} {} :", node.op->name, attributes.to_text());
  for (const TensorType& type : graph.input_types(node)) key += type_text(type);
  key += " ->";
  for (const ValueId id : node.outputs) {
    const bool read = id && is_read[static_cast<std::size_t>(id.index)];
    key += type_text(read ? graph[id].type : TensorType{});
  }
  return key;
}

NodeGroups group_nodes(const TrainingGraph& training, const std::vector<bool>& is_read) {
  NodeGroups out;
  std::map<std::string, int> number;
  for (const Node& node : training.graph.nodes) {
    if (node.op->flags & kView) {
      out.of_node.push_back(-1);
      continue;
    }
    const std::string key = node_key(training.graph, node, is_read);
    const auto [found, added] = number.try_emplace(key, static_cast<int>(out.keys.size()));
    if (added) out.keys.push_back(key);
    out.of_node.push_back(found->second);
  }
  return out;
}

std::string update_key(const OptimizerSettings& optimizer) {
  return fmt::format("update one byte, {}, {} slots, nesterov {}, decay {}",
                     name_of(optimizer.kind), state_slots(optimizer), optimizer.nesterov,
                     optimizer.weight_decay != 0);
}

}  // namespace pipetrain
