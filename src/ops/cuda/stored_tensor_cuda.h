// Converts tensors to kernel arguments: for the files that turn nodes into launches.
#pragma once

#include <span>

#include "ops/cuda/stored_cuda.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Whether ConstFloatView supports the type.
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

/// Whether hand-written kernels support the node: floats have a supported type (not float64), and
/// everything is row-major except, with `feature_maps`, tensors of four dimensions.
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

/// The layout of a node's feature maps: that of its first result, or else of its first operand.
inline Layout feature_map_layout(const KernelRequest& request) {
  const bool last = request.inputs[0].layout == Layout::kChannelsLast ||
                    request.outputs[0].layout == Layout::kChannelsLast;
  return last ? Layout::kChannelsLast : Layout::kRowMajor;
}

/// Whether operands of the first result's size have its layout, and all others are row-major.
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
