// Arguments of a kernel generated for a fused program (C++17: NVRTC compiles this file).
#pragma once

#include <cstdint>

#include "ops/random/dropout_mask_cuda.h"

namespace pipetrain {

constexpr int kMostFusedInputs = 24;
constexpr int kMostFusedResults = 4;
constexpr int kMostFusedDropouts = 4;

struct FusedOperands {
  const void* in[kMostFusedInputs];
  void* out[kMostFusedResults];  // null where nobody reads it
  DropoutMask masks[kMostFusedDropouts];
  std::int64_t count;   // elements of a result
  std::int64_t groups;  // of kWide elements; 0 if addresses are not aligned
};

}  // namespace pipetrain
