#include "ops/gemm_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

namespace pipetrain {
namespace {

using Vector = float __attribute__((vector_size(32), aligned(4), may_alias));

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kRows = 6;        // of c in the inner loop: 12 vectors of sums in registers
constexpr std::int64_t kColumns = 16;    // and columns
constexpr std::int64_t kDepth = 256;     // terms of a sum per pass: a panel of b fills half the L1
constexpr std::int64_t kRowBlock = 120;  // rows of a packed together: they stay in the L2
constexpr std::int64_t kColumnBlock = 2048;  // columns of b packed together
constexpr std::int64_t kPanels = 4;  // of b packed side by side, which uses whole cache lines

Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
Vector fill(float value) { return Vector{value, value, value, value, value, value, value, value}; }

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// c[0..6)[0..16) = (or +=) a b over `depth` terms; a packed (depth, 6), b packed (depth, 16).
void multiply(std::int64_t depth, const float* a, const float* b, const float* bias, bool add,
              float* c, std::int64_t row) {
  Vector low[kRows] = {}, high[kRows] = {};
  for (std::int64_t r = 0; r < kRows; ++r) {
    __builtin_prefetch(c + r * row, 1);
    __builtin_prefetch(c + r * row + kColumns - 1, 1);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < depth; ++i, a += kRows, b += kColumns) {
    const Vector b_low = load(b), b_high = load(b + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = fill(a[r]);
      low[r] += factor * b_low;
      high[r] += factor * b_high;
    }
  }
  if (bias) {
    const Vector bias_low = load(bias), bias_high = load(bias + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      low[r] += bias_low;
      high[r] += bias_high;
    }
  }
  if (add) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      low[r] += load(c + r * row);
      high[r] += load(c + r * row + kLanes);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    store(c + r * row, low[r]);
    store(c + r * row + kLanes, high[r]);
  }
}

/// The same for a corner of `rows` x `columns` at the edge of c.
void multiply_edge(std::int64_t depth, const float* a, const float* b, const float* bias, bool add,
                   float* c, std::int64_t row, std::int64_t rows, std::int64_t columns) {
  float corner[kRows * kColumns];
  float shift[kColumns] = {};
  if (bias) std::copy_n(bias, columns, shift);
  multiply(depth, a, b, shift, /*add=*/false, corner, kColumns);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float& to = c[r * row + j];
      to = corner[r * kColumns + j] + (add ? to : 0.0F);
    }
  }
}

/// Rows [first, first + rows) and terms [begin, begin + depth) of a as panels (depth, 6).
void pack_rows(const MatrixView& a, std::int64_t first, std::int64_t rows, std::int64_t begin,
               std::int64_t depth, float* to) {
  for (std::int64_t i = 0; i < rows; i += kRows, to += depth * kRows) {
    const std::int64_t count = std::min(kRows, rows - i);
    const float* from = a.data + (first + i) * a.row_stride + begin * a.column_stride;
    if (count < kRows) {
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t r = 0; r < kRows; ++r) {
          to[k * kRows + r] = r < count ? from[r * a.row_stride + k * a.column_stride] : 0.0F;
        }
      }
    } else if (a.row_stride == 1) {
      for (std::int64_t k = 0; k < depth; ++k) {
        std::memcpy(to + k * kRows, from + k * a.column_stride, kRows * sizeof(float));
      }
    } else {
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t r = 0; r < kRows; ++r) to[k * kRows + r] = from[r * a.row_stride + k];
      }
    }
  }
}

/// Stores `depth` terms of 8 columns, which lie `stride` apart with their terms in order, 16 apart.
void transpose_eight(const float* from, std::int64_t stride, std::int64_t depth, float* to) {
  using Indices = int __attribute__((vector_size(32)));
  std::int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vector rows[8], pairs[8], quads[8];
    for (int r = 0; r < 8; ++r) rows[r] = load(from + r * stride + k);
    for (int r = 0; r < 8; r += 2) {
      pairs[r] = __builtin_shuffle(rows[r], rows[r + 1], Indices{0, 8, 1, 9, 4, 12, 5, 13});
      pairs[r + 1] = __builtin_shuffle(rows[r], rows[r + 1], Indices{2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int r = 0; r < 8; r += 4) {
      for (int half = 0; half < 2; ++half) {
        quads[r + 2 * half] = __builtin_shuffle(pairs[r + half], pairs[r + 2 + half],
                                                Indices{0, 1, 8, 9, 4, 5, 12, 13});
        quads[r + 2 * half + 1] = __builtin_shuffle(pairs[r + half], pairs[r + 2 + half],
                                                    Indices{2, 3, 10, 11, 6, 7, 14, 15});
      }
    }
    for (int q = 0; q < 4; ++q) {
      store(to + (k + q) * kColumns,
            __builtin_shuffle(quads[q], quads[q + 4], Indices{0, 1, 2, 3, 8, 9, 10, 11}));
      store(to + (k + q + 4) * kColumns,
            __builtin_shuffle(quads[q], quads[q + 4], Indices{4, 5, 6, 7, 12, 13, 14, 15}));
    }
  }
  for (; k < depth; ++k) {
    for (int r = 0; r < 8; ++r) to[k * kColumns + r] = from[r * stride + k];
  }
}

/// Columns [first, first + columns), at most kPanels panels of them, and terms [begin, begin +
/// depth) of b as panels (depth, 16).
void pack_columns(const MatrixView& b, std::int64_t first, std::int64_t columns, std::int64_t begin,
                  std::int64_t depth, float* to) {
  const float* from = b.data + begin * b.row_stride + first * b.column_stride;
  const std::int64_t whole = columns / kColumns;
  if (b.column_stride == 1) {
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t panel = 0; panel < whole; ++panel) {
        std::memcpy(to + (panel * depth + k) * kColumns, from + k * b.row_stride + panel * kColumns,
                    kColumns * sizeof(float));
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      for (std::int64_t half = 0; half < kColumns; half += kLanes) {
        transpose_eight(from + (panel * kColumns + half) * b.column_stride, b.column_stride, depth,
                        to + panel * depth * kColumns + half);
      }
    }
  }
  const std::int64_t rest = columns - whole * kColumns;
  if (rest == 0) return;
  from += whole * kColumns * b.column_stride;
  to += whole * depth * kColumns;
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t j = 0; j < kColumns; ++j) {
      to[k * kColumns + j] = j < rest ? from[k * b.row_stride + j * b.column_stride] : 0.0F;
    }
  }
}

/// What one thread computes: all of c between two rows, or two columns. Nobody waits for anybody,
/// at the price of packing the other operand once per thread.
struct Part {
  std::int64_t top, bottom, left, right;
};
Part part_of(const GemmShape& shape, int thread, int threads) {
  if (shape.n >= shape.m) {
    const std::int64_t width = round_up((shape.n + threads - 1) / threads, kColumns);
    return {0, shape.m, std::min(shape.n, thread * width), std::min(shape.n, (thread + 1) * width)};
  }
  const std::int64_t height = round_up((shape.m + threads - 1) / threads, kRows);
  return {std::min(shape.m, thread * height), std::min(shape.m, (thread + 1) * height), 0, shape.n};
}

struct Packed {
  std::int64_t a_floats, b_floats;  // of one thread
};
Packed packed(const GemmShape& shape, int threads) {
  const Part part = part_of(shape, 0, threads);
  const std::int64_t depth = std::min(shape.k, kDepth);
  return {depth * std::min(round_up(part.bottom, kRows), kRowBlock),
          depth * std::min(round_up(part.right, kColumns), kColumnBlock)};
}

/// Rows [top, bottom) of columns [first, first + columns), of which b is packed.
void multiply_packed(const GemmShape& shape, const MatrixView& a, const Part& part,
                     std::int64_t first, std::int64_t columns, std::int64_t begin,
                     std::int64_t depth, const float* bias, float* c, float* packed_a,
                     const float* packed_b) {
  for (std::int64_t top = part.top; top < part.bottom; top += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, part.bottom - top);
    pack_rows(a, top, rows, begin, depth, packed_a);
    for (std::int64_t j = 0; j < columns; j += kColumns) {
      const float* shift = bias && begin == 0 ? bias + first + j : nullptr;
      const std::int64_t width = std::min(kColumns, columns - j);
      for (std::int64_t i = 0; i < rows; i += kRows) {
        float* to = c + (top + i) * shape.n + first + j;
        const std::int64_t height = std::min(kRows, rows - i);
        const float* a_panel = packed_a + i * depth;
        const float* b_panel = packed_b + j * depth;
        if (height == kRows && width == kColumns) {
          multiply(depth, a_panel, b_panel, shift, begin > 0, to, shape.n);
        } else {
          multiply_edge(depth, a_panel, b_panel, shift, begin > 0, to, shape.n, height, width);
        }
      }
    }
  }
}

}  // namespace

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads) {
  const Packed sizes = packed(shape, threads);
  return static_cast<std::size_t>(threads * (sizes.a_floats + sizes.b_floats)) * sizeof(float);
}

void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads) {
  const Packed sizes = packed(shape, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    const Part part = part_of(shape, thread, threads);
    float* packed_b =
        reinterpret_cast<float*>(workspace) + thread * (sizes.a_floats + sizes.b_floats);
    float* packed_a = packed_b + sizes.b_floats;
    for (std::int64_t first = part.left; first < part.right; first += kColumnBlock) {
      const std::int64_t columns = std::min(kColumnBlock, part.right - first);
      for (std::int64_t begin = 0; begin < shape.k; begin += kDepth) {
        const std::int64_t depth = std::min(kDepth, shape.k - begin);
        constexpr std::int64_t kWidth = kPanels * kColumns;
        for (std::int64_t j = 0; j < columns; j += kWidth) {
          pack_columns(b, first + j, std::min(kWidth, columns - j), begin, depth,
                       packed_b + j * depth);
        }
        multiply_packed(shape, a, part, first, columns, begin, depth, bias, c, packed_a, packed_b);
      }
    }
  }
}

}  // namespace pipetrain
