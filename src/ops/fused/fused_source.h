// A fused program as the source of one kernel for GPUs. The functions in it are those of
// ops/elementwise/elementwise_math.h, which the kernels of the steps are made of, too: the same
// bits.
//
//   Add 0 1; Gelu 2   →   const float v2 = Add<float>{}(v0, v1);
//                         const float v3 = Gelu<float, StandardMath>{}(v2);
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/fused/fused.h"

namespace pipetrain {

struct FusedSource {
  std::string text;                   // C++17, a kernel `fused` that takes FusedOperands
  std::vector<std::size_t> dropouts;  // the steps that masks belong to, in their order
  bool wide = false;                  // the first elements may be moved in groups of eight
};

/// The source depends on the program, on types, and on shapes but for their outermost dimension.
/// Its text is empty where no kernel can be generated: too many results, a type that GPUs do not
/// store, a step without a function.
FusedSource fused_source(const FusedProgram& program, const std::vector<TensorType>& inputs,
                         const std::vector<TensorType>& outputs);

}  // namespace pipetrain
