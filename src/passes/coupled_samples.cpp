#include "passes/coupled_samples.h"

#include <algorithm>

#include "graph/op.h"
#include "passes/dependence.h"

namespace pipetrain {
namespace {

class Samples {
 public:
  explicit Samples(const TrainingGraph& training)
      : training_(training),
        graph_(training.graph),
        varies_(depending_on(graph_, Role::kInput)),
        per_sample_(graph_.values.size(), false) {
    for (std::size_t v = 0; v < per_sample_.size(); ++v)
      per_sample_[v] = graph_.values[v].role == Role::kInput;
  }

  /// Whether a node combines samples. To be asked for all nodes, in their order.
  bool are_combined_in(const Node& node) {
    const bool combines = multiplies_samples(node) || runs_along_batch(node) || divides_batch(node);
    const bool keeps = !combines && keeps_batch(node);
    for (const ValueId id : node.outputs) {
      if (id) per_sample_[index(id)] = keeps && samples_in(shape(id)) == training_.micro_batch;
    }
    return combines;
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id.index); }
  bool is(const std::vector<bool>& marks, ValueId id) const { return id && marks[index(id)]; }
  const Shape& shape(ValueId id) const { return graph_[id].type.shape; }

  static std::int64_t samples_in(const Shape& shape) { return shape.rank() > 0 ? shape[0] : 0; }

  static bool is_recurrence(const Node& node) {
    const std::string_view op = node.op->name;
    return op == "Lstm" || op == "Gru" || op == "Rnn";
  }

  bool keeps_batch(const Node& node) const {
    if (is_recurrence(node)) return false;  // axis 0 is the step, also with lengths of samples
    if (node.op->name == "Transpose" && node.attributes.ints("perm")[0] != 0) return false;
    return std::ranges::any_of(node.inputs, [&](ValueId id) { return is(per_sample_, id); });
  }

  /// A product in which one factor, of all samples, is used for each.
  bool multiplies_samples(const Node& node) const {
    if (node.op->name != "MatMul") return false;
    const ValueId a = node.inputs[0];
    const ValueId b = node.inputs[1];
    if (!is(varies_, a) || !is(varies_, b)) return false;
    // With one sample, a model may have left out its axis: (tokens, tokens) is no sign.
    if (training_.micro_batch == 1) return shape(node.outputs[0]) == Shape({1, 1});
    return std::min(shape(a).rank(), shape(b).rank()) == 2;
  }

  /// As where every second sample is taken.
  bool divides_batch(const Node& node) const {
    if (node.op->name != "Reshape" || !is(per_sample_, node.inputs[0])) return false;
    const std::int64_t rows = samples_in(shape(node.outputs[0]));
    return rows > 1 && rows < training_.micro_batch;
  }

  bool runs_along_batch(const Node& node) const {
    if (training_.micro_batch == 1) return false;  // an axis of one element says nothing
    if (is_recurrence(node)) return is(per_sample_, node.inputs[0]);
    const std::string_view op = node.op->name;
    const bool reduces = op.starts_with("Reduce") || op.starts_with("Arg");
    // A loss that the model computes itself is a mean over the batch at last.
    if (reduces && training_.loss.kind == LossKind::kOutput) return false;
    constexpr std::string_view kAlong[] = {"Softmax", "LogSoftmax", "CumSum", "CumProd",
                                           "TopK",    "Gather",     "Slice",  "Split"};
    if (!reduces && std::ranges::find(kAlong, op) == std::end(kAlong)) return false;
    if (!is(per_sample_, node.inputs[0])) return false;
    const auto rank = static_cast<std::int64_t>(shape(node.inputs[0]).rank());
    const Ints axes = node.attributes.has("axes") ? node.attributes.ints("axes")
                                                  : Ints{node.attributes.integer("axis", -1)};
    const auto is_batch = [&](std::int64_t axis) { return axis == 0 || axis == -rank; };
    return std::ranges::any_of(axes, is_batch);
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  std::vector<bool> varies_;      // with the data
  std::vector<bool> per_sample_;  // axis 0 is the sample
};

}  // namespace

std::string find_coupled_samples(const TrainingGraph& training) {
  Samples samples(training);
  for (const Node& node : training.graph.nodes) {
    if (node.part == Part::kForward && samples.are_combined_in(node))
      return fmt::format("\"{}\" ({})", node.name, node.op->name);
  }
  return {};
}

}  // namespace pipetrain
