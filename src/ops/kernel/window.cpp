#include "ops/kernel/window.h"

#include <algorithm>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 31;

Ints checked(const Attributes& attributes, std::string_view name, std::size_t length,
             std::int64_t fallback, std::int64_t least) {
  const Ints out = attributes.ints(name, Ints(length, fallback));
  PT_CHECK(out.size() == length, kModel, "{} must have {} entries, got {}", name, length,
           out.size());
  for (const std::int64_t value : out) {
    PT_CHECK(value >= least && value < kLimit, kModel,
             "{} must be between {} and 2147483647, got {}", name, least, value);
  }
  return out;
}

}  // namespace

std::int64_t WindowAxis::first_tap(std::int64_t window) const {
  const std::int64_t before = -start(window);
  return before <= 0 ? 0 : (before + dilation - 1) / dilation;
}

std::int64_t WindowAxis::last_tap(std::int64_t window) const {
  const std::int64_t left = input - start(window);
  if (left <= 0) return 0;
  return std::min(kernel, (left + dilation - 1) / dilation);
}

std::int64_t WindowAxis::first_window(std::int64_t tap) const {
  const std::int64_t before = pad_begin - tap * dilation;
  return before <= 0 ? 0 : std::min(output, (before + stride - 1) / stride);
}

std::int64_t WindowAxis::last_window(std::int64_t tap) const {
  const std::int64_t left = input + pad_begin - tap * dilation;
  return left <= 0 ? 0 : std::min(output, (left + stride - 1) / stride);
}

Window make_window(const Attributes& attributes, const Shape& input, const Shape& kernel) {
  const std::size_t rank = input.rank();
  PT_CHECK(rank >= 1 && rank <= 3, kModel, "1 to 3 spatial axes are supported, got {}", rank);
  PT_CHECK(kernel.rank() == rank, kModel, "a kernel of rank {} does not fit {} spatial axes",
           kernel.rank(), rank);
  const Ints strides = checked(attributes, "strides", rank, 1, 1);
  const Ints dilations = checked(attributes, "dilations", rank, 1, 1);
  const Ints pads = checked(attributes, "pads", 2 * rank, 0, 0);
  Window window(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    WindowAxis& axis = window[i];
    PT_CHECK(kernel[i] >= 1 && kernel[i] < kLimit, kModel,
             "the kernel's extents must be between 1 and 2147483647, got {}", kernel.text());
    axis = {input[i], kernel[i], strides[i], dilations[i], pads[i], pads[i + rank], 0};
    const std::int64_t padded = axis.input + axis.pad_begin + axis.pad_end;
    PT_CHECK(padded >= axis.extent(), kModel,
             "a window of {} does not fit {} padded input positions (spatial axis {})",
             axis.extent(), padded, i);
    axis.output = (padded - axis.extent()) / axis.stride + 1;
  }
  return window;
}

Shape spatial_of(const Shape& shape) {
  PT_CHECK(shape.rank() >= 3, kModel, "an input (N, C, spatial...) is needed, got {}",
           shape.text());
  return Shape(std::vector<std::int64_t>(shape.begin() + 2, shape.end()));
}

Shape window_outputs(std::int64_t first, std::int64_t second, const Window& window) {
  std::vector<std::int64_t> dims{first, second};
  for (const WindowAxis& axis : window) dims.push_back(axis.output);
  return Shape(std::move(dims));
}

std::array<WindowAxis, 3> three_axes(const Window& window) {
  std::array<WindowAxis, 3> out;
  std::copy(window.begin(), window.end(), out.end() - static_cast<std::ptrdiff_t>(window.size()));
  return out;
}

std::string auto_pad_of(const Attributes& attributes) {
  std::string text = attributes.text("auto_pad", "NOTSET");
  if (text.empty()) text = "NOTSET";
  PT_CHECK(text == "NOTSET" || text == "VALID" || text == "SAME_UPPER" || text == "SAME_LOWER",
           kModel, "auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {}",
           printable(text));
  return text;
}

Attributes import_window(const ImportContext& context, const Shape& input, const Shape& kernel) {
  const Attributes& attributes = context.attributes();
  const std::size_t rank = input.rank();
  const Ints strides = checked(attributes, "strides", rank, 1, 1);
  const Ints dilations = checked(attributes, "dilations", rank, 1, 1);
  const std::string auto_pad = auto_pad_of(attributes);
  Ints pads(2 * rank, 0);
  if (auto_pad == "NOTSET") {
    pads = checked(attributes, "pads", 2 * rank, 0, 0);
  } else if (auto_pad != "VALID") {
    for (std::size_t i = 0; i < rank; ++i) {
      const std::int64_t output = (input[i] + strides[i] - 1) / strides[i];
      const std::int64_t extent = (kernel[i] - 1) * dilations[i] + 1;
      const std::int64_t total =
          std::max<std::int64_t>((output - 1) * strides[i] + extent - input[i], 0);
      const std::int64_t smaller = total / 2;
      pads[i] = auto_pad == "SAME_UPPER" ? smaller : total - smaller;
      pads[i + rank] = total - pads[i];
    }
  }
  return {{"strides", strides}, {"dilations", dilations}, {"pads", pads}};
}

}  // namespace pipetrain
