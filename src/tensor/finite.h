// Values that are no finite numbers.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace pipetrain {

/// Whether no element is infinite or NaN; true for types that have neither.
bool all_finite(const Tensor& tensor);

/// The same of the first row and the first column of a matrix only, and of all of a vector. Further
/// axes belong to the columns.
bool edges_finite(const Tensor& tensor);

/// The first element of a tensor that is NaN, or if there is none, the first that is infinite.
struct FirstNonfinite {
  std::int64_t index = -1;  // -1: all are finite
  bool is_nan = false;
};
FirstNonfinite first_nonfinite(const Tensor& tensor);

/// Finite numbers beyond float32's range become its largest, not infinite: a mask of -1e308 times 0
/// must be 0.
float double_to_float(double x);

}  // namespace pipetrain
