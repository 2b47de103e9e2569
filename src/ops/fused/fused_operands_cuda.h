// What a kernel that was generated for a fused program is given (C++17: NVRTC compiles this file).
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
  std::int64_t groups;  // the first of them as groups of kWide; 0 where addresses forbid it
};

}  // namespace pipetrain
