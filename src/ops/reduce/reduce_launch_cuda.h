// Reductions (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"
#include "ops/reduce/arg_rule.h"

namespace pipetrain::reduce {

enum class Reduction { kSum, kMean, kMax, kMin, kProduct };

/// Kept and reduced dimensions, each with the strides of the input, outermost first.
struct ReduceWalk {
  static constexpr int kMostDimensions = 4;
  int kept_dimensions = 0, reduced_dimensions = 0;
  std::int64_t kept_sizes[kMostDimensions] = {}, kept_strides[kMostDimensions] = {};
  std::int64_t reduced_sizes[kMostDimensions] = {}, reduced_strides[kMostDimensions] = {};
  std::int64_t kept = 1, reduced = 1;
  bool innermost_is_reduced = false;
};

/// Floats of workspace that a reduction needs.
std::int64_t workspace_of(const ReduceWalk& walk);
void launch_reduce(Reduction reduction, const ReduceWalk& walk, const ConstFloatView& x,
                   const FloatView& y, float* workspace, const CudaQueue& queue);

/// Of integers; kept and reduced are above 0.
void launch_reduce(Reduction reduction, const ReduceWalk& walk, const std::int32_t* x,
                   std::int32_t* y, const CudaQueue& queue);
void launch_reduce(Reduction reduction, const ReduceWalk& walk, const std::int64_t* x,
                   std::int64_t* y, const CudaQueue& queue);

void launch_arg(const ArgRule& rule, const ConstFloatView& x, std::int64_t* y,
                const CudaQueue& queue);
void launch_arg(const ArgRule& rule, const std::int32_t* x, std::int64_t* y,
                const CudaQueue& queue);
void launch_arg(const ArgRule& rule, const std::int64_t* x, std::int64_t* y,
                const CudaQueue& queue);

}  // namespace pipetrain::reduce
