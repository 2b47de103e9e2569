// How a data movement kernel treats elements: for the files that turn nodes into launches.
#pragma once

#include <algorithm>

#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/kernel/element_types.h"

namespace pipetrain::movement {

/// How a data movement kernel treats elements.
enum class Elements {
  kKept,       // copied unchanged
  kConverted,  // converted between stored float types
  kUnknown,
};

inline Elements elements_of(const KernelRequest& request, std::size_t operands,
                            Layout feature_maps = Layout::kRowMajor) {
  if (feature_maps == Layout::kRowMajor && !is_row_major(request)) return Elements::kUnknown;
  bool kept = true, floats = true;
  const DType first = request.outputs[0].dtype;
  const auto look = [&](const TensorType& type) {
    if (type.dtype == DType::kUndefined) return;
    kept = kept && type.dtype == first;
    floats = floats && is_stored_float(type.dtype);
  };
  for (std::size_t i = 0; i < std::min(operands, request.inputs.size()); ++i)
    look(request.inputs[i]);
  for (const TensorType& type : request.outputs) look(type);
  if (kept && size_of(first) <= 8) return Elements::kKept;
  return floats ? Elements::kConverted : Elements::kUnknown;
}

}  // namespace pipetrain::movement
