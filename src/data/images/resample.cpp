#include "data/images/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pipetrain {

namespace {

// For each new pixel: the first old one, and the weights of it and those that follow.
struct Taps {
  std::vector<std::size_t> first;
  std::vector<std::size_t> count;
  std::size_t most = 0;
  std::vector<float> weights;  // (new pixels, most)
};

Taps taps_of(std::size_t have, double begin, double length, std::size_t want) {
  const double scale = length / static_cast<double>(want);
  const double support = std::max(scale, 1.0);
  Taps out;
  out.most = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  out.weights.assign(want * out.most, 0);
  for (std::size_t i = 0; i < want; ++i) {
    const double center = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto low = static_cast<std::size_t>(std::max(0.0, center - support + 0.5));
    const auto high =
        std::min(have, static_cast<std::size_t>(std::max(0.0, std::floor(center + support + 0.5))));
    const std::size_t first = std::min(low, have - 1);
    const std::size_t count = std::min(std::max(high, first + 1) - first, out.most);
    double sum = 0;
    std::vector<double> weights(count);
    for (std::size_t k = 0; k < count; ++k) {
      const double distance = std::abs(static_cast<double>(first + k) + 0.5 - center) / support;
      sum += weights[k] = std::max(0.0, 1 - distance);
    }
    for (std::size_t k = 0; k < count; ++k) {
      out.weights[i * out.most + k] = static_cast<float>(sum > 0  ? weights[k] / sum
                                                         : k == 0 ? 1.0
                                                                  : 0.0);
    }
    out.first.push_back(first);
    out.count.push_back(count);
  }
  return out;
}

template <class Element>
void copy_pixels(const Pixels<Element>& in, const ImageBox& box, const Planes& out) {
  const auto top = static_cast<std::size_t>(box.top), left = static_cast<std::size_t>(box.left);
  const std::size_t step = in.planar ? 1 : in.channels;
  for (std::size_t c = 0; c < in.channels; ++c) {
    for (std::size_t y = 0; y < out.height; ++y) {
      const std::size_t pixel = (top + y) * in.width + left;
      const Element* from = in.planar ? in.data + c * in.height * in.width + pixel
                                      : in.data + pixel * in.channels + c;
      float* to = out.data + c * out.plane_stride + y * out.row_stride;
      for (std::size_t x = 0; x < out.width; ++x) to[x] = static_cast<float>(from[x * step]);
    }
  }
}

bool is_on_a_pixel(double value) { return value == std::floor(value); }

// Rows first: those that the columns' filters will ask for.
template <class Element>
void resample_pixels(const Pixels<Element>& in, const ImageBox& box, const Planes& out) {
  const bool same = box.width == static_cast<double>(out.width) &&
                    box.height == static_cast<double>(out.height) && is_on_a_pixel(box.left) &&
                    is_on_a_pixel(box.top);
  if (same) {
    copy_pixels(in, box, out);
    return;
  }
  const Taps across = taps_of(in.width, box.left, box.width, out.width);
  const Taps down = taps_of(in.height, box.top, box.height, out.height);
  const std::size_t begin = down.first.front();
  const std::size_t end = down.first.back() + down.count.back();
  std::vector<float> rows((end - begin) * out.width);
  const std::size_t step = in.planar ? 1 : in.channels;
  for (std::size_t c = 0; c < in.channels; ++c) {
    for (std::size_t y = begin; y < end; ++y) {
      const Element* from = in.planar ? in.data + (c * in.height + y) * in.width
                                      : in.data + y * in.width * in.channels + c;
      float* to = rows.data() + (y - begin) * out.width;
      for (std::size_t x = 0; x < out.width; ++x) {
        const Element* pixel = from + across.first[x] * step;
        const float* weight = across.weights.data() + x * across.most;
        float sum = 0;
        for (std::size_t k = 0; k < across.count[x]; ++k) {
          sum += static_cast<float>(pixel[k * step]) * weight[k];
        }
        to[x] = sum;
      }
    }
    for (std::size_t y = 0; y < out.height; ++y) {
      float* to = out.data + c * out.plane_stride + y * out.row_stride;
      std::fill(to, to + out.width, 0.0f);
      for (std::size_t k = 0; k < down.count[y]; ++k) {
        const float weight = down.weights[y * down.most + k];
        const float* from = rows.data() + (down.first[y] + k - begin) * out.width;
        for (std::size_t x = 0; x < out.width; ++x) to[x] += weight * from[x];
      }
    }
  }
}

}  // namespace

void resample(const Pixels<std::uint8_t>& in, const ImageBox& box, const Planes& out) {
  resample_pixels(in, box, out);
}

void resample(const Pixels<float>& in, const ImageBox& box, const Planes& out) {
  resample_pixels(in, box, out);
}

}  // namespace pipetrain
