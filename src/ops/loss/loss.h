// Losses: shared by their definitions and kernels. A loss is a sum over the micro-batch; the
// runtime divides by the samples or tokens of the whole mini-batch through `gy`.
//
//   SoftmaxCrossEntropy{ignore_index, label_smoothing, class_weights}(logits (R, C), labels (R))
//       -> loss_sum, correct, log_sum_exp (R)
//   BinaryCrossEntropy(x, target) -> loss_sum, correct      x: logits
//   SquaredError(x, target) -> loss_sum                     AbsoluteError(x, target) -> loss_sum
//   …Grad(the same inputs[, log_sum_exp], gy) -> gradient of logits or x
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

struct CrossEntropy {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  std::int64_t ignore_index = -100;
  std::vector<float> weights;  // of the classes; empty: all 1
  double smoothing = 0;        // fraction of the target distributed evenly over all classes
};

CrossEntropy cross_entropy_of(const Attributes& attributes, const Shape& logits);
/// Error (kData) naming the first label that is neither a class nor ignore_index.
void check_labels(const CrossEntropy& loss, const std::int64_t* labels);

std::span<const ImportRule> loss_imports();
std::span<const KernelEntry> loss_reference_kernels();
std::span<const KernelEntry> loss_cpu_kernels();

}  // namespace pipetrain
