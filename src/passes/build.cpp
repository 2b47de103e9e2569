// The order of the passes, and beside each what it needs before it.
#include "passes/build.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/setting.h"
#include "graph/op.h"
#include "passes/batch_weight_gradients.h"
#include "passes/bound_inputs.h"
#include "passes/coupled_samples.h"
#include "passes/differentiate.h"
#include "passes/fuse.h"
#include "passes/fuse_batch_norm_sums.h"
#include "passes/fuse_elementwise.h"
#include "passes/fuse_matmul_epilogues.h"
#include "passes/layout.h"
#include "passes/mark_preparation.h"
#include "passes/match_accumulations.h"
#include "passes/pack_weights.h"
#include "passes/pad_rows.h"
#include "passes/patterns.h"
#include "passes/precision.h"

namespace pipetrain {
namespace {

std::vector<ValueId> results_of(const TrainingGraph& training) {
  std::vector<ValueId> keep = {training.loss.loss_sum, training.loss.correct};
  for (const Accumulation& accumulation : training.accumulations)
    keep.push_back(accumulation.contribution);
  for (const Parameter& parameter : training.parameters) keep.push_back(parameter.gradient);
  return keep;
}

/// Removes running statistics whose batch moments are no longer computed.
void remove_dead_statistics(TrainingGraph& training) {
  std::erase_if(training.statistics, [&](const RunningStatistic& statistic) {
    return !training.graph[statistic.batch_mean].producer;
  });
}

/// Notes norms by statistics of the micro-batch that see one value of each channel.
void note_single_values(TrainingGraph& training) {
  std::string first;
  int others = -1;
  for (const Node& node : training.graph.nodes) {
    if (node.op->name != "BatchNorm" || node.part != Part::kForward) continue;
    const Shape& shape = training.graph[node.inputs[0]].type.shape;
    if (shape.count() != shape[1]) continue;
    if (++others == 0) first = node.name;
  }
  if (others < 0) return;
  training.notes.push_back(fmt::format(
      "\"{}\"{} normalizes one value of each channel in a micro-batch of {}, so that its bias is "
      "its result; use larger micro-batches, or {} frozen",
      printable(first), others > 0 ? fmt::format(" (as {} more)", others) : "",
      training.micro_batch, setting("bn")));
}

bool takes_one_sample(const OnnxModel& model, const TrainingGraph& training) {
  return training.micro_batch == 1 &&
         std::ranges::any_of(model.inputs, [&](const OnnxValue& input) {
           return !input.dims.empty() && input.dims[0].value == 1 &&
                  std::ranges::count(training.inputs, input.name, &GraphInput::name) > 0;
         });
}

/// Error (kUsage) where the first axis of the output whose next tokens are learned is that of the
/// tokens, and as long as there are samples by accident: with one sample more it stays.
void check_axis_of_samples(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                           LowerOptions options, const TrainingGraph& training) {
  const auto shape_in = [&](const TrainingGraph& graph) {
    const auto at = std::ranges::find(graph.output_names, training.loss.output);
    const auto index = static_cast<std::size_t>(at - graph.output_names.begin());
    return graph.graph[graph.outputs.at(index)].type.shape;
  };
  if (training.loss.kind != LossKind::kCausalLm) return;
  const Shape shape = shape_in(training);
  if (shape.rank() < 2 || shape[0] != shape[1]) return;
  ++options.micro_batch;
  options.repeating = nullptr;
  Shape larger;
  try {
    larger = shape_in(lower(model, rules, options));
  } catch (const Error&) {
    return;  // the model takes this number of samples only
  }
  PT_CHECK(larger.rank() == shape.rank() && larger[0] == options.micro_batch, kUsage,
           "output \"{}\" does not have one row for each sample: its shape is {} for {} samples; "
           "name another one with {}",
           printable(training.loss.output), larger.text(), options.micro_batch, setting("logits"));
}

/// The forward pass, the loss and the backward pass, in plain row-major floats.
TrainingGraph differentiated(const OnnxModel& model, const std::map<std::string, TensorRule>& rules,
                             const BuildOptions& options) {
  LowerOptions lower_options = options.lower;
  if (options.first) lower_options.repeating = &options.first->repeating;
  TrainingGraph training = lower(model, rules, lower_options);
  training.graph.verify();
  bound_inputs(training);  // on the model's own Gather nodes
  // Before the backward pass: what is found has its own gradient.
  fuse_patterns(training.graph, training.outputs);
  if (options.expand_for_gpus) {
    expand_group_norms(training.graph);
    expand_patches(training.graph);
  }
  with_context([&] { return "choosing the loss of " + printable(model.path.string()); },
               [&] {
                 LossOptions loss = options.loss;
                 loss.of_one_sample = takes_one_sample(model, training);
                 attach_loss(training, loss);
                 check_axis_of_samples(model, rules, lower_options, training);
               });
  remove_dead_nodes(training.graph, results_of(training));  // needs the loss, which keeps the rest
  remove_dead_statistics(training);                         // after remove_dead_nodes()
  training.coupled_samples = find_coupled_samples(training);  // of what the loss depends on
  mark_preparation(training, options.first);  // before the backward pass, which asks for the marks
  note_single_values(training);               // after it: weights may be normalized
  if (!options.with_gradients) return training;
  differentiate(training);
  remove_dead_nodes(training.graph, results_of(training));
  return training;
}

/// Fuses what the kernels of a device run as one node. No cut may go through such a node, so this
/// needs the backward pass.
void fuse_nodes(TrainingGraph& training, FusionTarget fusion) {
  if (fusion == FusionTarget::kCpu) {
    fuse_elementwise(training, FusedTypes::kCpu);
  } else if (fusion == FusionTarget::kGpu) {
    fold_biases(training);  // before fuse_elementwise(), which would take the biases
    fuse_elementwise(training, FusedTypes::kStored);
    fuse_matmul_epilogues(training);  // after it: activations that no chain has taken
    pad_logits(training);  // the last ones: nothing else may read or make the logits by then
    pad_weights(training);
  }
}

}  // namespace

TrainingGraph build_training_graph(const OnnxModel& model,
                                   const std::map<std::string, TensorRule>& rules,
                                   const BuildOptions& options) {
  TrainingGraph training = differentiated(model, rules, options);
  // Optimizations for the kernels of a device.
  if (options.feature_map_layout != Layout::kRowMajor)
    // Needs the backward pass; before casts come in between.
    fuse_norm_activations(training, options.fusion == FusionTarget::kCpu
                                        ? NormActivations::kElementwise
                                        : NormActivations::kLimits);
  if (options.with_gradients && options.fusion == FusionTarget::kCpu)
    fuse_batch_norm_sums(training, SummedNorms::kAll);  // before casts, too; after what fuses more
  if (options.with_gradients && options.fusion == FusionTarget::kGpu &&
      options.feature_map_layout == Layout::kChannelsLast)
    fuse_batch_norm_sums(training, SummedNorms::kChannelsLast);
  choose_precision(training, options.precision);  // before nodes are fused: they say how each
                                                  // of their steps is rounded
  choose_layouts(training, options.feature_map_layout);  // needs the types: Reorders keep them
  if (options.with_gradients) {
    fuse_nodes(training, options.fusion);              // needs types and layouts, which it looks at
    if (options.pack_weights) pack_weights(training);  // needs the types: it rounds as it packs
    if (options.first) match_accumulations(*options.first, training);  // of their final shapes
    if (options.micro_batches_of_step > 1) {  // the last one: no node may move any more
      if (options.first) {
        batch_weight_gradients_like(*options.first, training);
      } else {
        batch_weight_gradients(training, options.micro_batches_of_step);
      }
    }
  } else if (options.fusion == FusionTarget::kGpu) {
    pad_weights(training);
  }
  training.graph.verify();
  return training;
}

}  // namespace pipetrain
