// Resampling along one axis is a fixed sparse matrix: output i is a weighted sum of a few inputs.
// Rows are stored one after another; the gradient is the transposed matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/attributes.h"

namespace pipetrain {

struct ResizeMap {
  std::vector<std::int64_t> first;  // [outputs + 1]: first term of each output
  std::vector<std::int64_t> index;  // [terms]: input
  std::vector<double> weight;       // [terms]
};

/// Error (kModel) for attributes of Resample (see resize.cpp) that no matrix can be made of.
void check_resampling(const Attributes& attributes, std::int64_t inputs);
/// 1 for each output at a position inside the input, 0 for others: of tf_crop_and_resize, which
/// reads nothing there.
std::vector<float> outputs_inside(const Attributes& attributes, std::int64_t inputs);
/// The matrix of Resample with these attributes over `inputs` elements.
ResizeMap make_resize_map(const Attributes& attributes, std::int64_t inputs);
/// The transposed matrix; terms stay in the order of the old outputs.
ResizeMap transpose(const ResizeMap& map, std::int64_t inputs);

}  // namespace pipetrain
