// One step of an optimizer that treats every element by itself, for many tensors in one kernel
// (C++17: nvcc compiles this file).
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

struct UpdatedTensor {
  float* parameter;
  const float* gradient;
  float* state0;
  float* state1;
  float* average;  // null: none is kept
  std::int64_t count;
  UpdateNumbers numbers;
};

/// Elements that a block updates before it looks for its next piece.
constexpr std::int64_t kUpdatePiece = 4096;
/// As many as fit into the parameters of a kernel (32,764 bytes).
constexpr int kMostUpdated = 250;

/// All that one kernel updates; piece p is of the first tensor t with p < pieces_until[t].
struct UpdateList {
  int count = 0;
  bool first_step = false;  // averages begin as copies
  float average_enter = 0;  // average += average_enter (parameter - average)
  std::int64_t pieces_until[kMostUpdated];
  UpdatedTensor tensors[kMostUpdated];
};
static_assert(sizeof(UpdateList) <= 32764);

void launch_update(const UpdateList& list, const CudaQueue& queue);

}  // namespace pipetrain
