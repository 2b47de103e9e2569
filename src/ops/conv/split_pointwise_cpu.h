// Windows of one position between feature maps in blocks of 16 channels, of any stride, as products
// of ops/matmul/gemm_split_cpu.h: lines are positions of all samples.
#pragma once

#include <memory>
#include <optional>

#include "ops/conv/conv.h"

namespace pipetrain {

struct SplitPointwise {
  std::int64_t batch, inputs, outputs;
  WindowAxis rows, columns;
};

/// Nothing where another kernel is faster. Tensors are float, in blocks of 16 channels.
std::optional<SplitPointwise> split_pointwise(const ConvGeometry& geometry);

/// Conv, ConvInputGrad, and ConvWeightGrad without bias, which adds, too.
std::unique_ptr<Kernel> make_split_forward(const SplitPointwise& shape);
std::unique_ptr<Kernel> make_split_input_gradient(const SplitPointwise& shape);
std::unique_ptr<Kernel> make_split_weight_gradient(const SplitPointwise& shape);

}  // namespace pipetrain
