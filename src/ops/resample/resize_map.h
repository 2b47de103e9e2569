// Resampling along one axis is a fixed sparse matrix: output i is a weighted sum of a few inputs.
// Rows are stored one after another; the gradient is the transposed matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/attributes.h"

namespace pipetrain {

struct ResizeMap {
  std::vector<std::int64_t> first;  // [outputs + 1]: where the terms of an output begin
  std::vector<std::int64_t> index;  // [terms]: input
  std::vector<double> weight;       // [terms]
};

/// The matrix of Resample with these attributes (see resize.cpp) over `inputs` elements.
ResizeMap make_resize_map(const Attributes& attributes, std::int64_t inputs);
/// The matrix with inputs and outputs exchanged; terms stay in the order of the old outputs.
ResizeMap transpose(const ResizeMap& map, std::int64_t inputs);

}  // namespace pipetrain
