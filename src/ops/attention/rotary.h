// Rotary position embedding (Su et al. 2021): pairs of elements of every vector are rotated by an
// angle that depends on the position.
//
//   Rotary{heads, interleaved, inverse}(x, cosine, sine) -> y
//     x, y: (B, H, T, D), or (B, T, H D) with `heads`     cosine, sine: (B or 1, T, R / 2)
//     The first R elements of a vector are rotated: pairs (i, i + R / 2), or (2 i, 2 i + 1) when
//     interleaved; the others are copied. inverse: by the opposite angle, which is the gradient.
#pragma once

#include <span>

#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"

namespace pipetrain::rotary {

struct Geometry {
  std::int64_t batch = 0, heads = 0, steps = 0, width = 0;
  std::int64_t pairs = 0;  // R / 2
  std::int64_t batch_stride = 0, head_stride = 0, step_stride = 0;
  std::int64_t table_batch_stride = 0;  // 0: one table for all samples
  bool interleaved = false;
  bool inverse = false;
};

/// Error (kModel) when the shapes are incompatible.
Geometry geometry_of(const Attributes& attributes, const Shape& x, const Shape& cosine);

/// Rotates the vector at x into y. Shared by the reference and CPU kernels.
template <class T>
void turn(const Geometry& g, const T* __restrict x, const T* __restrict cosine,
          const T* __restrict sine, T* __restrict y) {
  const T sign = g.inverse ? T{-1} : T{1};
  const std::int64_t step = g.interleaved ? 2 : 1;
  const std::int64_t distance = g.interleaved ? 1 : g.pairs;
  for (std::int64_t i = 0; i < g.pairs; ++i) {
    const T first = x[i * step];
    const T second = x[i * step + distance];
    const T s = sign * sine[i];
    y[i * step] = cosine[i] * first - s * second;
    y[i * step + distance] = s * first + cosine[i] * second;
  }
  for (std::int64_t i = 2 * g.pairs; i < g.width; ++i) y[i] = x[i];
}

std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

}  // namespace pipetrain::rotary
