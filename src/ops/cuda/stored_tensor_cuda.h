// From tensors to what kernels are given: for the files that turn nodes into launches.
#pragma once

#include <span>

#include "ops/cuda/stored_cuda.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Whether kernels know the type as ConstFloatView.
inline bool is_stored_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

inline Stored stored_as(DType dtype) {
  return dtype == DType::kBFloat16  ? Stored::kBFloat16
         : dtype == DType::kFloat16 ? Stored::kFloat16
                                    : Stored::kFloat;
}

/// The tensor at `index`; null when it is absent or the list is shorter.
inline ConstFloatView numbers_at(std::span<const Tensor> tensors, std::size_t index) {
  if (index >= tensors.size() || !tensors[index]) return {};
  return {tensors[index].data, stored_as(tensors[index].type.dtype)};
}
inline FloatView places_at(std::span<const Tensor> tensors, std::size_t index) {
  if (index >= tensors.size() || !tensors[index]) return {};
  return {tensors[index].data, stored_as(tensors[index].type.dtype)};
}

/// Whether own kernels take the node: floats are of a type that kernels know (not float64), and
/// everything lies row-major but, where `feature_maps` says so, tensors of four dimensions.
inline bool takes_types(const KernelRequest& request, Layout feature_maps = Layout::kRowMajor) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype == DType::kUndefined) continue;
      const Layout layout = type.shape.rank() == 4 ? feature_maps : Layout::kRowMajor;
      if (type.layout != layout || type.dtype == DType::kFloat64) return false;
    }
  }
  return true;
}

/// The layout of a node's feature maps, which its first result or else its first operand tells.
inline Layout feature_map_layout(const KernelRequest& request) {
  const bool last = request.inputs[0].layout == Layout::kChannelsLast ||
                    request.outputs[0].layout == Layout::kChannelsLast;
  return last ? Layout::kChannelsLast : Layout::kRowMajor;
}

/// Whether operands as large as the first result lie as it does, and all others row-major.
inline bool lies_alike(const KernelRequest& request) {
  const TensorType& result = request.outputs[0];
  if (result.layout != Layout::kRowMajor && result.layout != Layout::kChannelsLast) return false;
  for (const TensorType& type : request.inputs) {
    if (type.dtype == DType::kUndefined) continue;
    if (type.layout != (type.shape == result.shape ? result.layout : Layout::kRowMajor))
      return false;
  }
  return true;
}

}  // namespace pipetrain
