// All passes in their order: from a file's model to the graph that training runs.
#pragma once

#include "passes/loss.h"
#include "passes/lower.h"
#include "passes/training_graph.h"

namespace pipetrain {

struct BuildOptions {
  LowerOptions lower;
  LossOptions loss;
  bool with_gradients = true;  // false: forward and loss only
  /// Of the tensors around convolutions; reference kernels take row-major ones only.
  Layout picture_layout = Layout::kRowMajor;
  /// What products read and make is stored in: kFloat32, or in mixed precision a narrower type.
  DType precision = DType::kFloat32;
  bool fuse_elementwise = false;  // needs gradients: an evaluation is not worth another cut
};

/// bind → infer → fold → canonicalise → fuse patterns → attach loss → differentiate → choose
/// precision and layouts → fuse → verify. `model` must have been through untie_copies().
TrainingGraph build_training_graph(const OnnxModel& model,
                                   const std::map<std::string, TensorRule>& rules,
                                   const BuildOptions& options);

}  // namespace pipetrain
