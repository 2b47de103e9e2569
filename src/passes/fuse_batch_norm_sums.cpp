#include "passes/fuse_batch_norm_sums.h"

#include <algorithm>
#include <set>
#include <vector>

#include "graph/op.h"
#include "passes/fuse.h"
#include "passes/value_readers.h"

namespace pipetrain {
namespace {

class SumFuser {
 public:
  SumFuser(TrainingGraph& training, SummedNorms norms)
      : training_(training),
        norms_(norms),
        graph_(training.graph),
        readers_(readers_of_values(graph_)),
        outside_(values_read_outside(training)),
        heir_(graph_.nodes.size()) {}

  int run() {
    int fused = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) fused += fuse({static_cast<int>(n)});
    if (fused > 0) remove_nodes(training_, heir_);
    return fused;
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id.index); }
  bool is_forward(NodeId id, std::string_view op) const {
    return id && graph_[id].op->name == op && graph_[id].part == Part::kForward;
  }
  /// The only reader of a value, or none.
  NodeId only_reader(ValueId id) const {
    const std::vector<NodeId>& readers = readers_[at(id)];
    return readers.size() == 1 && !outside_.contains(id) ? readers[0] : NodeId{};
  }

  /// Whether an operand of `sum` is what a BatchNorm without limits makes for it alone.
  bool is_normalized(ValueId id, NodeId sum) const {
    const NodeId producer = graph_[id].producer;
    if (!is_forward(producer, "BatchNorm") || only_reader(id) != sum) return false;
    const Node& node = graph_[producer];
    const Shape& x = graph_[id].type.shape;
    if (norms_ == SummedNorms::kChannelsLast && (x.rank() != 4 || x[1] % 8 != 0)) return false;
    return id == node.outputs[0] && node.inputs.size() == 3 && !node.attributes.has("clip_min") &&
           !node.attributes.has("clip_max") && !node.attributes.has("activation");
  }

  bool fuse(NodeId id) {
    if (!is_forward(id, "Add")) return false;
    const Node& sum = graph_[id];
    if (graph_[sum.inputs[0]].type.shape != graph_[sum.inputs[1]].type.shape) return false;
    // The later of two, which has less to wait for.
    ValueId normalized, other;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!is_normalized(sum.inputs[i], id)) continue;
      if (normalized && graph_[normalized].producer.index > graph_[sum.inputs[i]].producer.index)
        continue;
      normalized = sum.inputs[i];
      other = sum.inputs[1 - i];
    }
    if (!normalized || normalized == other) return false;
    const NodeId next = only_reader(sum.outputs[0]);
    const bool rectified = is_forward(next, "Relu");
    const NodeId last = rectified ? next : id, first = graph_[normalized].producer;
    Node made = graph_[first];
    made.inputs.push_back(other);
    made.outputs[0] = graph_[last].outputs[0];
    if (rectified) {
      made.attributes.set("clip_min", 0.0);
      made.attributes.set("clip_open", std::int64_t{1});
      heir_[static_cast<std::size_t>(id.index)] = last;
    }
    heir_[static_cast<std::size_t>(first.index)] = last;
    graph_[last] = std::move(made);
    return true;
  }

  TrainingGraph& training_;
  SummedNorms norms_;
  Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;
  std::set<ValueId> outside_;  // read by more than nodes
  std::vector<NodeId> heir_;
};

}  // namespace

int fuse_batch_norm_sums(TrainingGraph& training, SummedNorms norms) {
  const auto is_norm = [](const Node& node) { return node.op->name == "BatchNorm"; };
  if (std::ranges::none_of(training.graph.nodes, is_norm)) return 0;
  return SumFuser(training, norms).run();
}

}  // namespace pipetrain
