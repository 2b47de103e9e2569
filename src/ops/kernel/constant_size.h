// Size limits of constants made on import.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "tensor/tensor.h"

namespace pipetrain {

/// Error (kModel) for a constant that is too large, or has an invalid shape.
inline void expect_reasonable(const TensorType& type) {
  constexpr double kMostElements = 1e9;
  double count = 1;
  for (const std::int64_t dim : type.shape) {
    PT_CHECK(dim >= 0, kModel, "negative dimension in {}", type.shape.text());
    count *= static_cast<double>(dim);
  }
  PT_CHECK(count <= kMostElements, kModel, "{} is too large for a constant", type.text());
}

}  // namespace pipetrain
