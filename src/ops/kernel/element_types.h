// Selects the instance of a kernel template by the element type of a request.
#pragma once

#include <algorithm>
#include <memory>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// `make.operator()<T>()` for the one of `Types` that is `dtype`; null when there is none.
template <class... Types, class Make>
std::unique_ptr<Kernel> for_element_type(DType dtype, Make make) {
  std::unique_ptr<Kernel> kernel;
  ((dtype == dtype_of<Types>() && (kernel = make.template operator()<Types>(), true)) || ...);
  return kernel;
}

/// Whether every input and output is row-major.
inline bool is_row_major(const KernelRequest& request) {
  const auto plain = [](const TensorType& type) { return type.layout == Layout::kRowMajor; };
  return std::all_of(request.inputs.begin(), request.inputs.end(), plain) &&
         std::all_of(request.outputs.begin(), request.outputs.end(), plain);
}

/// The elements of the tensor at `index`; null when it is absent or the list is shorter.
template <class T>
T* data_or_null(std::span<const Tensor> tensors, std::size_t index) {
  return index < tensors.size() ? tensors[index].as<T>() : nullptr;
}

}  // namespace pipetrain
