// One position of a GridSample, and loops over positions. Included by the kernels' files only; the
// unnamed namespace separates the loops that are compiled with vector instructions from the others.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/resample/grid_sample.h"

namespace pipetrain {
namespace {

/// The contribution of one axis to a position: pixels, their weights, and the derivatives of the
/// weights by the grid coordinate. A pixel outside the image has weight and slope 0.
template <class T>
struct AxisTaps {
  int count = 0;
  std::int64_t pixel[4];
  T weight[4];
  T slope[4];
};

/// Reflects u between low and high as often as needed; `slope` becomes the derivative, 1 or -1.
template <class T>
T reflected(T u, T low, T high, T& slope) {
  slope = 1;
  const T range = high - low;
  if (u >= low && u <= high) return u;
  if (range <= 0) return slope = 0, low;
  const bool below = u < low;
  const T distance = below ? low - u : u - high;
  const T turns = std::floor(distance / range);
  const T rest = distance - turns * range;
  const bool even = std::fmod(turns, T(2)) == 0;
  slope = even ? T(-1) : T(1);
  return below == even ? low + rest : high - rest;
}

/// Keys' cubic of a distance in [0, 1] or [1, 2], and its derivative.
template <class T>
T cubic(T d, T& slope) {
  constexpr T a = T(-0.75);
  if (d <= 1) {
    slope = (3 * (a + 2) * d - 2 * (a + 3)) * d;
    return ((a + 2) * d - (a + 3)) * d * d + 1;
  }
  slope = (3 * a * d - 10 * a) * d + 8 * a;
  return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

/// The pixel for index i after padding, or -1 outside.
template <class T>
std::int64_t pixel_at(const GridGeometry& g, std::int64_t i, std::int64_t extent) {
  if (i >= 0 && i < extent) return i;
  if (g.padding == GridPadding::kZeros) return -1;
  if (g.padding == GridPadding::kReflection) {
    T ignored;
    const T low = g.align_corners ? T(0) : T(-0.5);
    i = static_cast<std::int64_t>(
        reflected(static_cast<T>(i), low, static_cast<T>(extent - 1) - low, ignored));
  }
  return std::clamp<std::int64_t>(i, 0, extent - 1);
}

template <class T>
AxisTaps<T> axis_taps(const GridGeometry& g, T number, std::int64_t extent) {
  const auto size = static_cast<T>(extent);
  T u = g.align_corners ? (number + 1) / 2 * (size - 1) : ((number + 1) * size - 1) / 2;
  T du = g.align_corners ? (size - 1) / 2 : size / 2;
  if (g.mode == GridMode::kNearest) {
    u = std::rint(u);
    du = 0;
  }
  // As in PyTorch and ONNX Runtime, a cubic that still reads pixels inside goes beyond the border.
  const bool cubic_border = g.mode == GridMode::kCubic && g.padding == GridPadding::kBorder;
  const T low = cubic_border ? T(-1) : g.align_corners ? T(0) : T(-0.5);
  const T high = size - 1 - low;
  if (!(u >= low && u <= high)) {
    if (g.padding == GridPadding::kBorder) {
      u = u > high ? size - 1 : T(0);
      du = 0;
    } else if (g.padding == GridPadding::kReflection) {
      T slope;
      u = reflected(u, low, high, slope);
      du *= slope;
    }
  }
  // As in PyTorch, the border counts as outside.
  if (g.mode == GridMode::kLinear && g.padding != GridPadding::kZeros && (u <= 0 || u >= size - 1))
    du = 0;
  // Far positions and NaN stay outside without overflowing an index.
  if (!(u > T(-1e9) && u < T(1e9))) u = T(-1e9);
  AxisTaps<T> out;
  if (g.mode == GridMode::kNearest) {
    out.count = 1;
    out.pixel[0] = pixel_at<T>(g, static_cast<std::int64_t>(u), extent);
    out.weight[0] = 1;
    out.slope[0] = 0;
  } else {
    const T floor = std::floor(u);
    const T t = u - floor;
    const auto first = static_cast<std::int64_t>(floor);
    if (g.mode == GridMode::kLinear) {
      out.count = 2;
      out.weight[0] = 1 - t;
      out.weight[1] = t;
      out.slope[0] = -du;
      out.slope[1] = du;
    } else {
      out.count = 4;
      const T distance[4] = {1 + t, t, 1 - t, 2 - t};
      for (int i = 0; i < 4; ++i) {
        T slope;
        out.weight[i] = cubic(distance[i], slope);
        out.slope[i] = (i < 2 ? slope : -slope) * du;
      }
    }
    const std::int64_t begin = first - (out.count == 4 ? 1 : 0);
    for (int i = 0; i < out.count; ++i) out.pixel[i] = pixel_at<T>(g, begin + i, extent);
  }
  for (int i = 0; i < out.count; ++i) {
    if (out.pixel[i] >= 0) continue;
    out.pixel[i] = 0;
    out.weight[i] = out.slope[i] = 0;
  }
  return out;
}

/// All pixels that a position reads: offsets in a plane, weights, and derivatives per axis.
template <class T>
struct PositionTaps {
  int count = 0;
  std::int64_t offset[64];
  T weight[64];
  T slope[3][64];
};

/// `numbers` are the r grid coordinates of the position, the last spatial axis first.
template <class T>
void position_taps(const GridGeometry& g, const T* numbers, PositionTaps<T>& out) {
  out.count = 1;
  out.offset[0] = 0;
  out.weight[0] = 1;
  for (auto& slope : out.slope) slope[0] = 1;
  for (std::int64_t axis = 0; axis < g.rank; ++axis) {
    const AxisTaps<T> taps = axis_taps(g, numbers[g.rank - 1 - axis], g.extent[axis]);
    // In reverse, so that the first tap can be overwritten in place.
    for (int i = out.count; i-- > 0;) {
      for (int k = taps.count; k-- > 0;) {
        const int to = i * taps.count + k;
        out.offset[to] = out.offset[i] + taps.pixel[k] * g.stride[axis];
        for (std::int64_t other = 0; other < g.rank; ++other) {
          out.slope[other][to] =
              out.slope[other][i] * (other == axis ? taps.slope[k] : taps.weight[k]);
        }
        out.weight[to] = out.weight[i] * taps.weight[k];
      }
    }
    out.count *= taps.count;
  }
}

/// Computes positions [first, last), numbered over all samples.
template <class T>
void sample_positions(const GridGeometry& g, const T* x, const T* grid, T* y, std::int64_t first,
                      std::int64_t last) {
  PositionTaps<T> taps;
  for (std::int64_t at = first; at < last; ++at) {
    const std::int64_t sample = at / g.positions;
    position_taps(g, grid + at * g.rank, taps);
    const T* image = x + sample * g.channels * g.plane;
    T* to = y + sample * g.channels * g.positions + at % g.positions;
    for (std::int64_t c = 0; c < g.channels; ++c) {
      T sum = 0;
      for (int i = 0; i < taps.count; ++i) {
        sum += taps.weight[i] * image[c * g.plane + taps.offset[i]];
      }
      to[c * g.positions] = sum;
    }
  }
}

/// Gradients of one sample; dx or dgrid may be null.
template <class T>
void sample_gradients(const GridGeometry& g, std::int64_t sample, const T* dy, const T* x,
                      const T* grid, T* dx, T* dgrid) {
  dy += sample * g.channels * g.positions;
  x += sample * g.channels * g.plane;
  if (dx) {
    dx += sample * g.channels * g.plane;
    std::fill_n(dx, g.channels * g.plane, T(0));
  }
  PositionTaps<T> taps;
  for (std::int64_t position = 0; position < g.positions; ++position) {
    const std::int64_t at = (sample * g.positions + position) * g.rank;
    position_taps(g, grid + at, taps);
    T slopes[3] = {};
    for (std::int64_t c = 0; c < g.channels; ++c) {
      const T gradient = dy[c * g.positions + position];
      for (int i = 0; i < taps.count; ++i) {
        const std::int64_t pixel = c * g.plane + taps.offset[i];
        if (dx) dx[pixel] += taps.weight[i] * gradient;
        for (std::int64_t axis = 0; dgrid && axis < g.rank; ++axis) {
          slopes[axis] += taps.slope[axis][i] * gradient * x[pixel];
        }
      }
    }
    for (std::int64_t axis = 0; dgrid && axis < g.rank; ++axis) {
      dgrid[at + g.rank - 1 - axis] = slopes[axis];
    }
  }
}

}  // namespace
}  // namespace pipetrain
