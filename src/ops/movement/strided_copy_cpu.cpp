#include "ops/movement/strided_copy_cpu.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/kernel/transposed_tile_cpu.h"
#include "ops/kernel/type_switch.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelElements = 65536;
constexpr std::int64_t kTaskElements = 16384;
constexpr std::int64_t kBlock = 16;

#ifdef __AVX2__
/// Transposes 8 x 8 floats: row r of the source starts at from + r * from_stride.
[[gnu::always_inline]] inline void transpose_8x8(const float* from, std::int64_t from_stride,
                                                 float* to, std::int64_t to_stride) {
  __m256 pairs[8];
  // Rows i and i + 4 in one register, so that only in-lane shuffles are needed.
  for (int i = 0; i < 4; ++i) {
    const float* upper = from + i * from_stride;
    const float* lower = from + (i + 4) * from_stride;
    pairs[i] =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(lower), 1);
    pairs[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper + 4)),
                                        _mm_loadu_ps(lower + 4), 1);
  }
  for (int half = 0; half < 2; ++half) {
    const __m256 low01 = _mm256_unpacklo_ps(pairs[4 * half], pairs[4 * half + 1]);
    const __m256 high01 = _mm256_unpackhi_ps(pairs[4 * half], pairs[4 * half + 1]);
    const __m256 low23 = _mm256_unpacklo_ps(pairs[4 * half + 2], pairs[4 * half + 3]);
    const __m256 high23 = _mm256_unpackhi_ps(pairs[4 * half + 2], pairs[4 * half + 3]);
    float* column = to + 4 * half * to_stride;
    _mm256_storeu_ps(column, _mm256_shuffle_ps(low01, low23, 0x44));
    _mm256_storeu_ps(column + to_stride, _mm256_shuffle_ps(low01, low23, 0xee));
    _mm256_storeu_ps(column + 2 * to_stride, _mm256_shuffle_ps(high01, high23, 0x44));
    _mm256_storeu_ps(column + 3 * to_stride, _mm256_shuffle_ps(high01, high23, 0xee));
  }
}
#endif

/// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns; both at most
/// kBlock.
template <class T>
void transpose_block(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
                     std::int64_t rows, std::int64_t columns) {
#ifdef __AVX2__
  if constexpr (sizeof(T) == sizeof(float)) {
    if (rows == kBlock && columns == kBlock) {
      // Through a buffer, so that each cache line of either side is accessed once: rows that are a
      // multiple of 4 KiB apart would evict each other.
      alignas(64) float lines[kBlock * kBlock];
      for (std::int64_t i = 0; i < kBlock; ++i) {
        std::memcpy(lines + i * kBlock, from + i * from_stride, kBlock * sizeof(float));
      }
      for (std::int64_t j = 0; j < kBlock; j += 8) {
        float* column = reinterpret_cast<float*>(to) + j * to_stride;
        transpose_8x8(lines + j, kBlock, column, to_stride);
        transpose_8x8(lines + 8 * kBlock + j, kBlock, column + 8, to_stride);
      }
      return;
    }
  }
#endif
  if constexpr (sizeof(T) == sizeof(std::uint16_t)) {
    static_assert(kBlock == transposed::kTile);
    if (rows == kBlock && columns == kBlock) {
      transposed::transpose_tile(from, from_stride, to, to_stride);
      return;
    }
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

/// Offsets of the outer dimensions at a linear index; dimension `skipped` is ignored.
struct Offsets {
  std::int64_t target;
  std::int64_t source;
};
Offsets offsets_at(const BroadcastPlan& walk, std::size_t dimensions, std::size_t skipped,
                   std::int64_t index) {
  Offsets out{0, 0};
  for (std::size_t axis = dimensions; axis-- > 0;) {
    if (axis == skipped) continue;
    const std::int64_t at = index % walk.dims[axis];
    index /= walk.dims[axis];
    out.target += at * walk.strides[0][axis];
    out.source += at * walk.strides[1][axis];
  }
  return out;
}

}  // namespace

template <class T>
struct StridedCopyLoops {
  static void row(const T* __restrict from, std::int64_t from_stride, T* __restrict to,
                  std::int64_t to_stride, std::int64_t count) {
    if (to_stride == 1 && from_stride == 1) {
      // For a short run, a memcpy call costs more than the copy.
      if (count * static_cast<std::int64_t>(sizeof(T)) >= 64) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
      }
    } else if (to_stride == 1 && from_stride == 0) {
      std::fill_n(to, count, *from);
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
    }
  }

  /// Copies rows of the innermost dimension; tasks are ranges of rows, or chunks of one long row.
  static void rows(const StridedCopy& copy, const void* source, void* target) {
    const BroadcastPlan& walk = copy.plan_.walk;
    const T* from = static_cast<const T*>(source) + copy.plan_.source_offset;
    T* to = static_cast<T*>(target) + copy.plan_.target_offset;
    const std::size_t last = copy.rank_ - 1;
    const std::int64_t columns = walk.dims[last];
    const std::int64_t rows = walk.count() / columns;
    const std::int64_t from_stride = walk.strides[1][last];
    const std::int64_t to_stride = walk.strides[0][last];
    const std::int64_t chunk = std::min(columns, 2 * kTaskElements);
    const std::int64_t chunks = (columns + chunk - 1) / chunk;
    const std::int64_t rows_per_task = std::max<std::int64_t>(1, kTaskElements / columns);
    const std::int64_t tasks = (rows + rows_per_task - 1) / rows_per_task * chunks;
#pragma omp parallel for schedule(static) if (rows * columns > kParallelElements)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t first = task / chunks * rows_per_task;
      const std::int64_t column = task % chunks * chunk;
      const std::int64_t count = std::min(chunk, columns - column);
      const std::int64_t end = std::min(rows, first + rows_per_task);
      // The next outer dimension has a separate loop, so that offsets are computed rarely.
      const std::int64_t size = last ? walk.dims[last - 1] : 1;
      const std::int64_t from_row = last ? walk.strides[1][last - 1] : 0;
      const std::int64_t to_row = last ? walk.strides[0][last - 1] : 0;
      for (std::int64_t row_index = first; row_index < end;) {
        const Offsets at = offsets_at(walk, last, last, row_index);
        const T* x = from + at.source + column * from_stride;
        T* y = to + at.target + column * to_stride;
        for (std::int64_t i = row_index % size; i < size && row_index < end; ++i, ++row_index) {
          row(x, from_stride, y, to_stride, count);
          x += from_row;
          y += to_row;
        }
      }
    }
  }

  /// The source is contiguous along another dimension than the target: transposes in blocks.
  static void transposed(const StridedCopy& copy, const void* source, void* target) {
    const BroadcastPlan& walk = copy.plan_.walk;
    const T* from = static_cast<const T*>(source) + copy.plan_.source_offset;
    T* to = static_cast<T*>(target) + copy.plan_.target_offset;
    const std::size_t last = copy.rank_ - 1;
    const std::size_t swapped = copy.swapped_;
    const std::int64_t rows = walk.dims[last];        // contiguous in the target
    const std::int64_t columns = walk.dims[swapped];  // contiguous in the source
    const std::int64_t from_stride = walk.strides[1][last];
    const std::int64_t to_stride = walk.strides[0][swapped];
    const std::int64_t bands = (columns + kBlock - 1) / kBlock;
    const std::int64_t tasks = walk.count() / (rows * columns) * bands;
#pragma omp parallel for schedule(static) if (walk.count() > kParallelElements)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const Offsets at = offsets_at(walk, last, swapped, task / bands);
      const std::int64_t column = task % bands * kBlock;
      const std::int64_t width = std::min(kBlock, columns - column);
      for (std::int64_t i = 0; i < rows; i += kBlock) {
        transpose_block(from + at.source + i * from_stride + column, from_stride,
                        to + at.target + column * to_stride + i, to_stride,
                        std::min(kBlock, rows - i), width);
      }
    }
  }
};

StridedCopy::StridedCopy(const CopyPlan& plan, std::size_t element_bytes)
    : plan_(plan), rank_(plan.walk.dims.size()) {
  const BroadcastPlan& walk = plan_.walk;
  bool transposes = false;
  if (walk.strides[0][rank_ - 1] == 1 && walk.strides[1][rank_ - 1] > 1) {
    for (std::size_t axis = 0; axis + 1 < rank_; ++axis) {
      if (walk.strides[1][axis] != 1) continue;
      swapped_ = axis;
      transposes = true;
    }
  }
  const auto choose = [&]<class T>(T) {
    run_ = transposes ? StridedCopyLoops<T>::transposed : StridedCopyLoops<T>::rows;
  };
  if (walk.count() == 0) {
    run_ = [](const StridedCopy&, const void*, void*) {};
  } else if (element_bytes == 1) {
    choose(std::uint8_t{});
  } else if (element_bytes == 2) {
    choose(std::uint16_t{});
  } else if (element_bytes == 4) {
    choose(std::uint32_t{});
  } else {
    choose(std::uint64_t{});
  }
}

}  // namespace pipetrain
