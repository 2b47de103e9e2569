// The result of the passes: one graph with forward, loss and backward, and the meaning of its
// values.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace pipetrain {

enum class LossKind : std::uint8_t {
  kCrossEntropy,
  kBinaryCrossEntropy,
  kSquaredError,
  kAbsoluteError,
  kCausalLm,
  kOutput
};

/// The command line's name of a loss: "cross-entropy", "bce", "mse", "l1", "causal-lm", "output".
std::string_view name_of(LossKind kind);

/// One input of the model. Axis 0 is the sample.
struct GraphInput {
  std::string name;
  ValueId value;
  std::int64_t upper_bound =
      -1;  // rows of the embedding table that integer values index; -1: unknown
};

/// The loss of a mini-batch is sum(loss_sum) * loss_scale over its micro-batches, where loss_scale
/// = 1 / (counted elements).
struct Loss {
  LossKind kind = LossKind::kCrossEntropy;
  std::string output;         // the model output it looks at
  std::string task;           // "classifier (cross-entropy, 10 classes)": printed
  ValueId label;              // absent for kOutput
  ValueId loss_sum;           // scalar, of one micro-batch
  ValueId correct;            // scalar count of correct predictions; absent where it has no meaning
  ValueId loss_scale;         // scalar input
  std::int64_t classes = -1;  // -1: regression
  std::int64_t ignore_index = -100;      // labels that do not count
  std::int64_t elements_per_sample = 1;  // counted elements of a sample when nothing is ignored
  bool mixed = false;  // labels are probabilities of the classes, of which none is correct

  /// Whether predictions of one class are correct or wrong, of labels that are not mixed.
  bool counts_correct() const { return correct || mixed; }
};

/// One initializer (or float Constant) that training may change.
struct Parameter {
  std::string name;  // in the file
  ValueId value;
  ValueId gradient;  // absent: nothing depends on it or it is frozen
};

/// A weight-gradient contribution and the sum of it over the micro-batches of a step.
struct Accumulation {
  ValueId contribution;
  ValueId accumulator;
  NodeId consumer;  // the forward node that uses the weight: contributions are added on its stage
};

/// A value that is kept for several micro-batches, concatenated along axis 0, for a batched weight
/// gradient.
struct BatchedValue {
  ValueId value;
  ValueId batched;  // kBatched: axis 0 has room for TrainingGraph::batched_micro_batches
  NodeId consumer;  // the forward node that determines its stage
};

/// Running statistics of one BatchNorm node: merged once per mini-batch from the micro-batches'
/// moments. Those of a node in Part::kPrepare are the same for all micro-batches and count once.
struct RunningStatistic {
  ValueId state_mean, state_variance;     // kState (C)
  ValueId batch_mean, batch_variance;     // outputs of the node, variance biased
  std::int64_t elements_per_channel = 0;  // values behind each moment in one micro-batch
  double momentum = 0.9;                  // of the old value
};

/// Names and operators of nodes: those of one node of the file share its name.
using RepeatingNodes = std::set<std::pair<std::string, std::string>>;
inline bool names_node(const RepeatingNodes& nodes, const std::string& name) {
  const auto found = nodes.lower_bound({name, ""});
  return found != nodes.end() && found->first == name;
}

struct TrainingGraph {
  Graph graph;
  std::int64_t micro_batch = 0;  // samples
  std::vector<GraphInput> inputs;
  std::vector<ValueId> outputs;  // of the model, in the file's order
  std::vector<std::string> output_names;
  Loss loss;
  std::vector<Parameter> parameters;        // trainable, in the file's order
  std::vector<Accumulation> accumulations;  // in use order
  std::vector<BatchedValue> batched_values;
  std::int64_t batched_micro_batches = 0;  // per batch; a step may end with fewer
  std::vector<RunningStatistic> statistics;
  std::vector<std::string> notes;  // what a user should know about how the file was read
  std::string coupled_samples;     // find_coupled_samples()
  RepeatingNodes repeating;        // those that repeat a weight for each sample
};

/// Where the chain may be cut. The forward nodes in their execution order; stage s runs a
/// contiguous range of them.
struct Chain {
  std::vector<NodeId> order;
  /// forward_bytes[i], backward_bytes[i]: bytes of activations, and of gradients, of one
  /// micro-batch that cross a cut before order[i]; size order.size() + 1.
  std::vector<std::size_t> forward_bytes, backward_bytes;
};

}  // namespace pipetrain
