// Kernels of depthwise convolutions that are ours, for Conv, ConvInputGrad and ConvWeightGrad.
// Include it from *_cpu.cpp files only.
#pragma once

#include <memory>
#include <optional>

#include "ops/conv/depthwise_cpu.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The convolution, where ours is faster: between row-major feature maps with long rows, and where
/// oneDNN has no vector code: weight gradients of windows wider than 3, dilated input gradients,
/// sequences; and input gradients of wide windows.
std::optional<Depthwise> own_depthwise(const KernelRequest& request, const TensorType& x,
                                       const TensorType& w, const TensorType& y);

/// Element: float or BFloat16. The kernel of a weight gradient is an AddingKernel.
template <class Element>
std::unique_ptr<Kernel> make_depthwise_forward(const Depthwise& shape);
template <class Element>
std::unique_ptr<Kernel> make_depthwise_input_gradient(const Depthwise& shape);
template <class Element>
std::unique_ptr<Kernel> make_depthwise_weight_gradient(const Depthwise& shape);

}  // namespace pipetrain
