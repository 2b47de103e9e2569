// A fused program as the source of one kernel for GPUs. It calls the functions of
// ops/elementwise/elementwise_math.h, like the kernels of the steps, so it gives the same bits.
//
//   Add 0 1; Gelu 2   →   const float v2 = Add<float>{}(v0, v1);
//                         const float v3 = Gelu<float, DeviceMath>{}(v2);
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/fused/fused.h"

namespace pipetrain {

struct FusedSource {
  std::string text;                   // C++17, a kernel `fused` that takes FusedOperands
  std::vector<std::size_t> dropouts;  // the dropout steps, in the order of their masks
  bool wide = false;                  // elements may be loaded and stored in groups of eight
};

/// The source depends on the program, the types, and the shapes except their outermost dimension.
/// Its text is empty where no kernel can be generated: too many results, a type that GPUs do not
/// store, a step without a function.
FusedSource fused_source(const FusedProgram& program, const std::vector<TensorType>& inputs,
                         const std::vector<TensorType>& outputs);

}  // namespace pipetrain
