// Sliding windows over the spatial axes of (N, C, spatial…): shared by convolution and pooling.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/attributes.h"
#include "graph/op.h"

namespace pipetrain {

/// One spatial axis: `output` windows of `kernel` taps, `dilation` apart, that advance by `stride`.
/// Tap k of window o reads input position o * stride - pad_begin + k * dilation.
struct WindowAxis {
  std::int64_t input = 1;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t pad_begin = 0;
  std::int64_t pad_end = 0;
  std::int64_t output = 1;

  /// Extent of one window, including the gaps of dilation.
  std::int64_t extent() const { return (kernel - 1) * dilation + 1; }
  /// Input position of the first tap of a window; negative inside the padding.
  std::int64_t start(std::int64_t window) const { return window * stride - pad_begin; }
  /// First tap of a window that lies inside the input, and one past the last.
  std::int64_t first_tap(std::int64_t window) const;
  std::int64_t last_tap(std::int64_t window) const;
  /// First window whose tap lies inside the input, and one past the last.
  std::int64_t first_window(std::int64_t tap) const;
  std::int64_t last_window(std::int64_t tap) const;
};

using Window = std::vector<WindowAxis>;

/// The axes of a canonical node from its attributes strides, dilations, pads (all begins, then all
/// ends); Error (kModel) when an attribute has the wrong length or sign or when no window fits.
Window make_window(const Attributes& attributes, const Shape& input, const Shape& kernel);
/// The spatial part of a shape (N, C, spatial…).
Shape spatial_of(const Shape& shape);
/// (first, second, the window's outputs…)
Shape window_outputs(std::int64_t first, std::int64_t second, const Window& window);
/// The same window extended to three axes; the added leading axes have one position each.
std::array<WindowAxis, 3> three_axes(const Window& window);

/// The ONNX attribute auto_pad: NOTSET, VALID, SAME_UPPER or SAME_LOWER. Error (kModel) for others.
std::string auto_pad_of(const Attributes& attributes);
/// The ONNX attributes strides, dilations, pads and auto_pad of an imported node as the canonical
/// strides, dilations and pads.
Attributes import_window(const ImportContext& context, const Shape& input, const Shape& kernel);

}  // namespace pipetrain
