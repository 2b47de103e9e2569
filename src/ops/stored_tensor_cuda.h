// From tensors to what kernels are given: for the files that turn nodes into launches.
#pragma once

#include <span>

#include "ops/kernel.h"
#include "ops/stored_cuda.h"

namespace pipetrain {

/// Whether kernels know the type as Numbers.
inline bool is_stored_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

inline Stored stored_as(DType dtype) {
  return dtype == DType::kBFloat16  ? Stored::kBFloat16
         : dtype == DType::kFloat16 ? Stored::kFloat16
                                    : Stored::kFloat;
}

/// The tensor at `index`; null when it is absent or the list is shorter.
inline Numbers numbers_at(std::span<const Tensor> tensors, std::size_t index) {
  if (index >= tensors.size() || !tensors[index]) return {};
  return {tensors[index].data, stored_as(tensors[index].type.dtype)};
}
inline Places places_at(std::span<const Tensor> tensors, std::size_t index) {
  if (index >= tensors.size() || !tensors[index]) return {};
  return {tensors[index].data, stored_as(tensors[index].type.dtype)};
}

/// Whether own kernels take the node: everything lies row-major, and floats are of a type that
/// kernels know (not float64).
inline bool takes_types(const KernelRequest& request) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype == DType::kUndefined) continue;
      if (type.layout != Layout::kRowMajor || type.dtype == DType::kFloat64) return false;
    }
  }
  return true;
}

}  // namespace pipetrain
