// The passes from lowering on, in order: from a file's model to the graph that training runs.
#pragma once

#include "passes/loss.h"
#include "passes/lower.h"
#include "passes/training_graph.h"

namespace pipetrain {

/// Whose kernels nodes are fused for.
enum class FusionTarget : std::uint8_t { kNone, kCpu, kGpu };

struct BuildOptions {
  LowerOptions lower;
  LossOptions loss;
  bool with_gradients = true;    // false: forward and loss only
  bool expand_for_gpus = false;  // nodes that GPUs run as several others
  /// Of the tensors around convolutions; reference kernels take row-major ones only.
  Layout feature_map_layout = Layout::kRowMajor;
  /// The storage type of matmul/conv operands and results: kFloat32, or a narrower type for mixed
  /// precision.
  DType precision = DType::kFloat32;
  FusionTarget fusion = FusionTarget::kNone;
  /// The same network with larger micro-batches: its accumulators are shared, and its choices of
  /// batched gradients and of what is repeated for each sample are copied. Null: this is the first.
  const TrainingGraph* first = nullptr;
  // The following options require gradients and have no effect on evaluation graphs.
  /// Whether weights are packed for the inner loops of CPUs, once per version: worthwhile where a
  /// step has several micro-batches.
  bool pack_weights = false;
  /// Micro-batches of a step, for CPU weight gradients that are batched over several of them where
  /// that is faster; 1: none are batched.
  std::int64_t micro_batches_of_step = 1;
};

/// Runs these passes on `model`, which must have been through untie_copies(); build.cpp has their
/// order and why it is this one. Errors are those of the passes: kModel for what cannot be trained,
/// kUsage for what an option must decide.
TrainingGraph build_training_graph(const OnnxModel& model,
                                   const std::map<std::string, TensorRule>& rules,
                                   const BuildOptions& options);

}  // namespace pipetrain
