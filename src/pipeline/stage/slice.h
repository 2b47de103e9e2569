// Cuts the training graph into stages: which nodes run where, and which values cross. Views need no
// kernel: a value is represented by its root, the value whose memory it shows.
#pragma once

#include <string>
#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// What one stage does, in graph order.
struct StageSlice {
  std::vector<NodeId> prepare;          // once per weight version
  std::vector<NodeId> forward;          // F
  std::vector<NodeId> backward;         // B: input_gradient and weight_gradient together
  std::vector<NodeId> input_gradient;   // I
  std::vector<NodeId> weight_gradient;  // W
  std::vector<NodeId> batch_gradient;   // once for every few micro-batches
  std::vector<NodeId> finish;           // once per step
  std::vector<int> parameters;  // indices into TrainingGraph::parameters that this stage holds
  std::vector<int> shared_parameters;  // those that other stages hold too: tied weights
  std::vector<int> accumulations;      // indices whose contribution is computed here
  std::vector<int>
      remote_accumulations;         // indices computed elsewhere that finish reads: tied weights
  std::vector<int> batched_values;  // indices into TrainingGraph::batched_values
  std::vector<int> statistics;      // indices into TrainingGraph::statistics
};

/// Values (roots) that one stage sends to another for every micro-batch.
struct ValueEdge {
  int from = 0, to = 0;
  bool gradient = false;
  std::vector<ValueId> values;
  std::size_t bytes = 0;
};

struct Slices {
  std::vector<StageSlice> stages;
  std::vector<ValueEdge> edges;
  std::vector<ValueId> root;       // of every value
  std::vector<int> stage_of_node;  // F, I, W and batch gradients; -1 for prepare and finish
  std::vector<int> owner;  // of every parameter: the first stage that holds it; -1 when none does
  /// True if a parameter is held by several stages: gradients must be exchanged before the update.
  bool has_tied_stages = false;
};

/// A network at one of the shapes at which it runs. Both pointers outlive the stages.
struct StageVariant {
  const TrainingGraph* training = nullptr;
  const Slices* slices = nullptr;
};

/// A gradient as a backward that is not split completes it.
struct CompletedGradient {
  int accumulation = 0;
  NodeId node;  // that computes it; none: only views do
};

/// Those of a stage, in their order: the order of CompiledStage::completion.
std::vector<CompletedGradient> completion_order(const TrainingGraph& training, const Slices& slices,
                                                int stage);

/// Slices a graph; `stage_of_forward` gives the stage of every forward node (linearise.h).
Slices slice_stages(const TrainingGraph& training, const std::vector<int>& stage_of_forward,
                    int stage_count);

}  // namespace pipetrain
