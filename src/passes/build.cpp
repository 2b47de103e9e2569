#include "passes/build.h"

#include "base/error.h"
#include "graph/op.h"
#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/fuse_elementwise.h"
#include "passes/layout.h"
#include "passes/patterns.h"
#include "passes/precision.h"

namespace pipetrain {
namespace {

/// Finds for every integer input the rows of the table that it indexes.
void bound_inputs(TrainingGraph& training) {
  const Graph& graph = training.graph;
  for (GraphInput& input : training.inputs) {
    for (const Node& node : graph.nodes) {
      if (node.op->name != "Gather" || node.attributes.integer("axis", 0) != 0) continue;
      ValueId indices = node.inputs[1];
      while (const NodeId producer = graph[indices].producer) {
        const std::string_view op = graph[producer].op->name;
        if (op != "Reshape" && op != "Cast" && op != "Transpose") break;
        indices = graph[producer].inputs[0];
      }
      if (indices != input.value) continue;
      const std::int64_t rows = graph[node.inputs[0]].type.shape[0];
      input.upper_bound = input.upper_bound < 0 ? rows : std::min(input.upper_bound, rows);
    }
  }
}

std::vector<ValueId> results_of(const TrainingGraph& training) {
  std::vector<ValueId> keep = {training.loss.loss_sum, training.loss.correct};
  for (const Accumulation& accumulation : training.accumulations)
    keep.push_back(accumulation.contribution);
  for (const Parameter& parameter : training.parameters) keep.push_back(parameter.gradient);
  return keep;
}

}  // namespace

TrainingGraph build_training_graph(const OnnxModel& model,
                                   const std::map<std::string, TensorRule>& rules,
                                   const BuildOptions& options) {
  TrainingGraph training = lower(model, rules, options.lower);
  training.graph.verify();
  bound_inputs(training);
  fuse_patterns(training.graph);
  attach_loss(training, options.loss);
  remove_dead_nodes(training.graph, results_of(training));
  std::erase_if(training.statistics, [&](const RunningStatistic& statistic) {
    return !training.graph[statistic.batch_mean].producer;
  });
  mark_preparation(training.graph);
  if (options.with_gradients) {
    differentiate(training);
    remove_dead_nodes(training.graph, results_of(training));
  }
  // These make the graph what a device's kernels run fastest.
  if (options.picture_layout != Layout::kRowMajor) fuse_batch_norm_activations(training);
  choose_precision(training, options.precision);
  choose_layouts(training, options.picture_layout);
  if (options.fuse_elementwise && options.with_gradients)
    fuse_elementwise(training, FusedTypes::kCpu);
  training.graph.verify();
  return training;
}

}  // namespace pipetrain
