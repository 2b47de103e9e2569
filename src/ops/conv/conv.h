// Convolution and its two gradients: what their definitions and kernels share.
//
//   x:  (N, C, spatial…)     w: (M, C / group, kernel…)     b: (M)     y: (N, M, outputs…)
//
// Weights that are the same in several convolutions of few samples are packed once (CPU only), for
// one direction:
//
//   PackConvolution{input_gradient}(w) -> p
//   ConvPacked{weight_shape, …}(x, p[, b]) -> y           the bits of Conv(x, w[, b])
//   ConvInputGradPacked{weight_shape, …}(dy, p) -> dx     those of ConvInputGrad(dy, w)
//
// except for small feature maps with fewer samples than packing pays for alone: there it is oneDNN
// that has other sums.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"
#include "ops/kernel/window.h"

namespace pipetrain {

struct ConvGeometry {
  std::int64_t batch = 0;
  std::int64_t group = 1;
  std::int64_t inputs = 0;   // channels of x in one group
  std::int64_t outputs = 0;  // channels of y in one group
  Window window;
};

/// Error (kModel) when the shapes of x and w do not go together or the attributes do not fit them.
ConvGeometry conv_geometry(const Attributes& attributes, const Shape& x, const Shape& w);

/// The layout in which the CPU's convolutions are fastest: whole vectors of channels.
Layout convolution_layout();

/// The smallest number of groups, at most 4, whose input and output channels together fill whole
/// blocks of `block`; 0 if there is none. w: the weights of all groups.
std::int64_t conv_groups_together(const Shape& w, std::int64_t group, std::int64_t block);

/// Whether this stands for no bias: zeros of shape (M, 2), which PyTorch's exporter (onnxscript
/// 0.7) gives 3-D convolutions without one.
bool stands_for_no_bias(const HostTensor& bias);

/// Floats of packed weights of this shape.
std::int64_t packed_weight_floats(const Shape& w, bool input_gradient);

/// Whether the packed form of this Conv or ConvInputGrad is faster where the weights serve several:
/// of those that it has, where gathering the weights is a notable part of the work.
bool convolution_packing_pays(const KernelRequest& request);

/// Whether the CPU's kernel for a Conv, ConvInputGrad or ConvWeightGrad reads and writes bfloat16
/// itself.
bool convolution_takes_bfloat16(const KernelRequest& request);

/// Whether the CPU's kernel for a ConvWeightGrad adds to a sum in the time in which it writes.
bool conv_weight_gradient_adds(const KernelRequest& request);

std::span<const KernelEntry> conv_reference_kernels();
std::span<const KernelEntry> conv_cpu_kernels();

}  // namespace pipetrain
