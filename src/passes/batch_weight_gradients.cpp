#include "passes/batch_weight_gradients.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "graph/op.h"

namespace pipetrain {
namespace {

/// The batched operands of a weight take at most this multiple of its bytes.
constexpr std::size_t kMostBytes = 2;

class GradientBatcher {
 public:
  GradientBatcher(TrainingGraph& training, std::int64_t micro_batches)
      : training_(training), graph_(training.graph), accumulation_of_(graph_.values.size(), -1) {
    training_.batched_micro_batches = micro_batches;
    readers_.assign(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (const ValueId id : node.inputs) {
        if (id) ++readers_[at(id)];
      }
    }
    for (std::size_t i = 0; i < training.accumulations.size(); ++i) {
      const ValueId id = training.accumulations[i].contribution;
      ++readers_[at(id)];
      accumulation_of_[at(id)] = static_cast<int>(i);
    }
  }

  /// A sum over axis 0 of both operands whose results go into accumulators only.
  bool is_wanted(const Node& node) const {
    if (node.part != Part::kWeightGradient || !sums_over_rows(node)) return false;
    std::size_t results = 0, operands = 0;
    for (const ValueId id : node.outputs) {
      const Value& value = graph_[id];
      if (value.type.dtype != DType::kFloat32 || readers_[at(id)] > 1) return false;
      if (readers_[at(id)] == 0) continue;
      const int i = accumulation_of_[at(id)];
      if (i < 0 ||
          training_.accumulations[static_cast<std::size_t>(i)].consumer != node.gradient_of)
        return false;
      results += value.type.bytes();
    }
    for (const ValueId id : node.inputs) {
      const Role role = graph_[id].role;
      if (role != Role::kInput && role != Role::kActivation && role != Role::kGradient)
        return false;
      operands += whole(graph_[id].type).bytes();
    }
    return results > 0 && operands <= kMostBytes * results;
  }

  /// Of a value of one micro-batch: those of several.
  TensorType whole(const TensorType& type) const {
    TensorType out = type;
    std::vector<std::int64_t> dims = type.shape.dims();
    dims[0] *= training_.batched_micro_batches;
    out.shape = Shape(std::move(dims));
    return out;
  }

  void gather(Node& node, const std::vector<TensorType>& types) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      Value all;
      all.name = graph_[node.inputs[i]].name + " of several micro-batches";
      all.type = types[i];
      all.role = Role::kBatched;
      const ValueId batched{static_cast<int>(graph_.values.size())};
      graph_.values.push_back(std::move(all));
      training_.batched_values.push_back({node.inputs[i], batched, node.gradient_of});
      node.inputs[i] = batched;
    }
    node.part = Part::kBatchGradient;
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }

  bool sums_over_rows(const Node& node) const {
    if (node.inputs.size() != 2) return false;
    const auto is_float = [&](ValueId id) {
      return id && graph_[id].type.dtype == DType::kFloat32 && graph_[id].type.shape.rank() >= 2;
    };
    if (!is_float(node.inputs[0]) || !is_float(node.inputs[1])) return false;
    if (node.op->name == "ConvWeightGrad") return true;
    return node.op->name == "MatMul" && node.attributes.flag("trans_a") &&
           !node.attributes.flag("trans_b") && graph_[node.inputs[0]].type.shape.rank() == 2 &&
           graph_[node.inputs[1]].type.shape.rank() == 2;
  }

  TrainingGraph& training_;
  Graph& graph_;
  std::vector<int> readers_;          // of each value; accumulations count
  std::vector<int> accumulation_of_;  // of each contribution
};

}  // namespace

int batch_weight_gradients(TrainingGraph& training, std::int64_t micro_batches_of_step) {
  if (micro_batches_of_step < 2) return 0;
  GradientBatcher batcher(training, std::clamp<std::int64_t>(micro_batches_of_step / 2, 2, 4));
  int count = 0;
  for (Node& node : training.graph.nodes) {
    if (!batcher.is_wanted(node)) continue;
    std::vector<TensorType> types;
    for (const ValueId id : node.inputs) types.push_back(batcher.whole(training.graph[id].type));
    batcher.gather(node, types);
    ++count;
  }
  training.graph.verify();
  return count;
}

void batch_weight_gradients_like(const TrainingGraph& first, TrainingGraph& training) {
  GradientBatcher batcher(training, first.batched_micro_batches);
  std::vector<int> result_of(first.graph.values.size(), -1);
  for (std::size_t i = 0; i < first.accumulations.size(); ++i)
    result_of[static_cast<std::size_t>(first.accumulations[i].contribution.index)] =
        static_cast<int>(i);
  for (const Node& node : first.graph.nodes) {
    if (node.part != Part::kBatchGradient) continue;
    const auto result = std::find_if(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return result_of[static_cast<std::size_t>(id.index)] >= 0;
    });
    const auto i = static_cast<std::size_t>(result_of[static_cast<std::size_t>(result->index)]);
    const ValueId contribution = training.accumulations.at(i).contribution;
    Node& same = training.graph[training.graph[contribution].producer];
    PT_CHECK(same.op == node.op && same.part == Part::kWeightGradient, kInternal,
             "the gradient {} is computed otherwise in a smaller micro-batch",
             training.graph[contribution].name);
    batcher.gather(same, first.graph.input_types(node));
  }
  training.graph.verify();
}

double runs_per_micro_batch(const TrainingGraph& training, const Node& node) {
  switch (node.part) {
    case Part::kForward:
    case Part::kInputGradient:
    case Part::kWeightGradient:
      return 1;
    case Part::kBatchGradient:
      return 1 / static_cast<double>(training.batched_micro_batches);
    case Part::kPrepare:
    case Part::kFinish:
      break;
  }
  return 0;
}

}  // namespace pipetrain
