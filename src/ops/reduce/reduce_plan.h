// A reduction as the fewest dimensions that are alternately kept and reduced.
//
//   (8, 3, 5, 5) over axes 0, 2, 3  →  [8 reduced, 3 kept, 25 reduced]
//   (8, 16, 64) over axes 0, 1      →  [128 reduced, 64 kept]
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

struct ReducePlan {
  struct Dimension {
    std::int64_t size;
    bool reduced;
    std::int64_t input_stride;
    std::int64_t output_stride;  // 0 where reduced
  };
  std::vector<Dimension> dims;  // in memory order of the input, outermost first; no size is 1
  std::int64_t kept = 1;        // elements of the output
  std::int64_t reduced = 1;     // input elements per element of the output
};

/// Plans a reduction over `axes` (0 … rank - 1). A blocked input is accepted when its height and
/// width are reduced; the output is row-major in any case.
ReducePlan plan_reduction(const TensorType& input, const std::vector<std::int64_t>& axes);

/// The axes over which a value of shape `from` is summed to get shape `to`, which broadcasts to
/// `from`. Error (kModel) if it does not.
std::vector<std::int64_t> axes_of_sum_to(const Shape& from, const Shape& to);

}  // namespace pipetrain
