// Four adjacent floats that a thread loads or stores together, for .cu files. The lanes of a warp
// access adjacent quads: 512 bytes of float32 in one instruction, 256 bytes of a narrow type.
#pragma once

#include <cstdint>

#include "ops/cuda/stored_access_cuda.h"

namespace pipetrain {

constexpr int kQuad = 4;

struct Quad {
  float values[kQuad];
};

/// Elements from `element`, whose address is aligned to four elements.
__device__ __forceinline__ Quad load_quad(const ConstFloatView& from, std::int64_t element) {
  struct alignas(16) Floats {
    float values[kQuad];
  };
  struct alignas(8) Narrow {
    std::uint16_t values[kQuad];
  };
  Quad out;
  if (from.stored == Stored::kFloat) {
    const Floats floats =
        *reinterpret_cast<const Floats*>(static_cast<const float*>(from.data) + element);
    PT_UNROLL
    for (int i = 0; i < kQuad; ++i) out.values[i] = floats.values[i];
    return out;
  }
  const Narrow narrow =
      *reinterpret_cast<const Narrow*>(static_cast<const std::uint16_t*>(from.data) + element);
  PT_UNROLL
  for (int i = 0; i < kQuad; ++i) out.values[i] = widened(narrow.values[i], from.stored);
  return out;
}

__device__ __forceinline__ void store_quad(const FloatView& to, std::int64_t element,
                                           const Quad& from) {
  struct alignas(16) Floats {
    float values[kQuad];
  };
  struct alignas(8) Narrow {
    std::uint16_t values[kQuad];
  };
  if (to.stored == Stored::kFloat) {
    Floats floats;
    PT_UNROLL
    for (int i = 0; i < kQuad; ++i) floats.values[i] = from.values[i];
    *reinterpret_cast<Floats*>(static_cast<float*>(to.data) + element) = floats;
    return;
  }
  Narrow narrow;
  PT_UNROLL
  for (int i = 0; i < kQuad; ++i) narrow.values[i] = narrowed(from.values[i], to.stored);
  *reinterpret_cast<Narrow*>(static_cast<std::uint16_t*>(to.data) + element) = narrow;
}

/// The columns of a row, for a thread that accesses quads. `whole`: rows consist of whole, aligned
/// quads in all operands, which kernels for known types rely on. Each thread takes the same
/// elements in the same order either way.
template <class Types>
struct QuadRow {
  std::int64_t width;
  bool whole;

  __device__ bool is_whole() const { return Types::kKnown || whole; }
  __device__ bool has(std::int64_t column) const { return column < width; }
  /// Whether element i of the quad from `column` is one of the row.
  __device__ bool has(std::int64_t column, int i) const {
    return Types::kKnown ? column < width : column + i < width;
  }
  /// Absent elements are `missing`.
  __device__ Quad load(const ConstFloatView& row, std::int64_t column, float missing = 0) const {
    Quad out;
    PT_UNROLL
    for (int i = 0; i < kQuad; ++i) out.values[i] = missing;
    if (is_whole()) {
      if (has(column)) out = load_quad(row, column);
      return out;
    }
    PT_UNROLL
    for (int i = 0; i < kQuad; ++i) {
      if (has(column, i)) out.values[i] = row[column + i];
    }
    return out;
  }
  __device__ void store(const FloatView& row, std::int64_t column, const Quad& from) const {
    if (is_whole()) {
      if (has(column)) store_quad(row, column, from);
      return;
    }
    PT_UNROLL
    for (int i = 0; i < kQuad; ++i) {
      if (has(column, i)) row[column + i] = from.values[i];
    }
  }
};

}  // namespace pipetrain
