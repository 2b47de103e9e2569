// One step of an optimizer that treats every element by itself (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"

namespace pipetrain {

enum class UpdateRuleCuda {
  kSgd,
  kMomentum,
  kAdam,
  kRmsProp,
  kRmsPropMomentum,
  kCenteredRmsProp,
  kAdagrad,
  kLion,
};

/// What update_cpu.cpp works out before its loops; which are read depends on the rule.
struct UpdateNumbers {
  UpdateRuleCuda rule;
  float scale, decay, rate;
  float shrink = 1, keep = 0, enter = 0, keep2 = 0, enter2 = 0;
  float root_scale = 1, epsilon = 0, momentum = 0, direct = 0, ahead = 0;
};

void launch_update(const UpdateNumbers& numbers, float* parameter, const float* gradient,
                   float* state0, float* state1, std::int64_t count, const CudaQueue& queue);

}  // namespace pipetrain
