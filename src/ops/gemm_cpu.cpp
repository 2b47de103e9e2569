#include "ops/gemm_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "ops/vector8_cpu.h"

namespace pipetrain {
namespace {

using Vector = Vector8;

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kRows = 6;       // of c in the inner loop: 12 vectors of sums in registers
constexpr std::int64_t kColumns = 16;   // and columns
constexpr std::int64_t kDepth = 256;    // terms of a sum per pass: a panel of b stays in the L1
constexpr std::int64_t kRowBlock = 72;  // rows of a packed together: they stay in the L2
constexpr std::int64_t kColumnBlock = 1024;  // columns of b packed together
// Panels packed side by side, so that whole cache lines are read at a time.
constexpr std::int64_t kRowPanels = 8, kColumnPanels = 16;
constexpr std::int64_t kSlack = 16;  // floats that packing a may write behind its panels

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Equal pieces of at most `most`, multiples of `unit` but for the last: a short rest would be all
/// overhead.
std::int64_t balanced(std::int64_t count, std::int64_t most, std::int64_t unit) {
  const std::int64_t pieces = std::max<std::int64_t>(1, (count + most - 1) / most);
  return std::max(unit, round_up((count + pieces - 1) / pieces, unit));
}

/// c[0..kCount)[0..16) = (or +=) a b over `depth` terms; a packed (depth, 6), b packed (depth, 16).
template <int kCount>
void multiply(std::int64_t depth, const float* a, const float* b, const float* bias, bool add,
              float* c, std::int64_t row) {
  Vector low[kCount] = {}, high[kCount] = {};
  for (std::int64_t r = 0; r < kCount; ++r) {
    __builtin_prefetch(c + r * row, 1);
    __builtin_prefetch(c + r * row + kColumns - 1, 1);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < depth; ++i, a += kRows, b += kColumns) {
    const Vector b_low = load8(b), b_high = load8(b + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      const Vector factor = fill8(a[r]);
      low[r] += factor * b_low;
      high[r] += factor * b_high;
    }
  }
  if (bias) {
    const Vector bias_low = load8(bias), bias_high = load8(bias + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      low[r] += bias_low;
      high[r] += bias_high;
    }
  }
  if (add) {
#pragma GCC unroll 6
    for (int r = 0; r < kCount; ++r) {
      low[r] += load8(c + r * row);
      high[r] += load8(c + r * row + kLanes);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kCount; ++r) {
    store8(c + r * row, low[r]);
    store8(c + r * row + kLanes, high[r]);
  }
}

void multiply(std::int64_t rows, std::int64_t depth, const float* a, const float* b,
              const float* bias, bool add, float* c, std::int64_t row) {
  switch (rows) {
    case 1:
      return multiply<1>(depth, a, b, bias, add, c, row);
    case 2:
      return multiply<2>(depth, a, b, bias, add, c, row);
    case 3:
      return multiply<3>(depth, a, b, bias, add, c, row);
    case 4:
      return multiply<4>(depth, a, b, bias, add, c, row);
    case 5:
      return multiply<5>(depth, a, b, bias, add, c, row);
    default:
      return multiply<kRows>(depth, a, b, bias, add, c, row);
  }
}

/// The same for fewer than 16 columns at the right edge of c.
void multiply_edge(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* a,
                   const float* b, const float* bias, bool add, float* c, std::int64_t row) {
  float corner[kRows * kColumns];
  float shift[kColumns] = {};
  if (bias) std::copy_n(bias, columns, shift);
  multiply(rows, depth, a, b, shift, /*add=*/false, corner, kColumns);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float& to = c[r * row + j];
      to = corner[r * kColumns + j] + (add ? to : 0.0F);
    }
  }
}

/// `depth` terms of 6 rows, which lie `stride` apart with their terms in order, as (depth, 6); may
/// write two floats more.
void transpose_six(const float* from, std::int64_t stride, std::int64_t depth, float* to) {
  std::int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vector rows[8] = {};
    for (int r = 0; r < kRows; ++r) rows[r] = load8(from + r * stride + k);
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) store8(to + (k + i) * kRows, rows[i]);
  }
  for (; k < depth; ++k) {
    for (int r = 0; r < kRows; ++r) to[k * kRows + r] = from[r * stride + k];
  }
}

/// Rows [first, first + rows) and terms [begin, begin + depth) of a as panels (depth, 6).
void pack_rows(const MatrixView& a, std::int64_t first, std::int64_t rows, std::int64_t begin,
               std::int64_t depth, float* to) {
  const float* from = a.data + first * a.row_stride + begin * a.column_stride;
  const std::int64_t whole = rows / kRows;
  if (a.row_stride == 1) {
    for (std::int64_t group = 0; group < whole; group += kRowPanels) {
      const std::int64_t end = std::min(whole, group + kRowPanels);
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t panel = group; panel < end; ++panel) {
          std::memcpy(to + (panel * depth + k) * kRows, from + k * a.column_stride + panel * kRows,
                      kRows * sizeof(float));
        }
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      transpose_six(from + panel * kRows * a.row_stride, a.row_stride, depth,
                    to + panel * depth * kRows);
    }
  }
  from += whole * kRows * a.row_stride;
  to += whole * depth * kRows;
  const std::int64_t rest = rows - whole * kRows;
  for (std::int64_t k = 0; rest > 0 && k < depth; ++k) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      to[k * kRows + r] = r < rest ? from[r * a.row_stride + k * a.column_stride] : 0.0F;
    }
  }
}

/// Columns [first, first + columns), at most kColumnPanels panels of them, and terms [begin, begin
/// + depth) of b as panels (depth, 16).
void pack_columns(const MatrixView& b, std::int64_t first, std::int64_t columns, std::int64_t begin,
                  std::int64_t depth, float* to) {
  const float* from = b.data + begin * b.row_stride + first * b.column_stride;
  const std::int64_t whole = columns / kColumns;
  if (b.column_stride == 1) {
    constexpr std::int64_t kRowsAhead = 12;  // the hardware does not look beyond the end of a row
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t panel = 0; panel < whole; ++panel) {
        __builtin_prefetch(from + (k + kRowsAhead) * b.row_stride + panel * kColumns);
        std::memcpy(to + (panel * depth + k) * kColumns, from + k * b.row_stride + panel * kColumns,
                    kColumns * sizeof(float));
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      for (std::int64_t half = 0; half < kColumns; half += kLanes) {
        transpose_eight(from + (panel * kColumns + half) * b.column_stride, b.column_stride, depth,
                        to + panel * depth * kColumns + half, kColumns);
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

/// What one thread computes: a rectangle of c. Nobody waits for anybody, at the price of packing an
/// operand once per thread that shares it.
struct Part {
  std::int64_t top, bottom, left, right;
};

/// How threads share c out: by rows and by columns, so that the largest part is the least work,
/// packing included (about as much as eight multiplications an element).
struct Grid {
  std::int64_t rows, columns;  // of parts
  std::int64_t height, width;  // of a part
};
Grid grid_of(const GemmShape& shape, int threads) {
  constexpr std::int64_t kPacking = 8;
  Grid best{};
  std::int64_t least = 0;
  for (std::int64_t rows = 1; rows <= threads; ++rows) {
    if (threads % rows != 0) continue;
    const std::int64_t columns = threads / rows;
    const std::int64_t height = round_up((shape.m + rows - 1) / rows, kRows);
    const std::int64_t width = round_up((shape.n + columns - 1) / columns, kColumns);
    const std::int64_t work = height * width + kPacking * (height + width);
    if (best.rows > 0 && work >= least) continue;
    best = {rows, columns, height, width};
    least = work;
  }
  return best;
}
Part part_of(const GemmShape& shape, const Grid& grid, int thread) {
  const std::int64_t row = thread / grid.columns, column = thread % grid.columns;
  return {std::min(shape.m, row * grid.height), std::min(shape.m, (row + 1) * grid.height),
          std::min(shape.n, column * grid.width), std::min(shape.n, (column + 1) * grid.width)};
}

/// The pieces that a thread packs at a time.
struct Blocks {
  std::int64_t rows, columns, depth;
  std::int64_t a_floats() const { return depth * rows + kSlack; }
  std::int64_t b_floats() const { return depth * columns; }
};
Blocks blocks_of(const GemmShape& shape, const Grid& grid) {
  return {balanced(std::min(shape.m, grid.height), kRowBlock, kRows),
          balanced(std::min(shape.n, grid.width), kColumnBlock, kColumns),
          balanced(shape.k, kDepth, kLanes)};
}

/// Rows [top, top + rows) and columns [left, left + columns) of a matrix, called into the cache a
/// few lines at a time, so that packing them next does not wait for memory.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const MatrixView& matrix, std::int64_t top, std::int64_t rows, std::int64_t left,
        std::int64_t columns, std::int64_t portions)
      : line_(matrix.data + top * matrix.row_stride + left * matrix.column_stride) {
    const bool row_major = matrix.column_stride == 1;
    stride_ = row_major ? matrix.row_stride : matrix.column_stride;
    length_ = row_major ? columns : rows;
    lines_ = row_major ? rows : columns;
    portion_ = (lines_ * ((length_ + kLine - 1) / kLine) + portions - 1) / portions;
  }

  void next_portion() {
    for (std::int64_t i = 0; i < portion_ && lines_ > 0; ++i) {
      __builtin_prefetch(line_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < length_) continue;
      at_ = 0;
      line_ += stride_;
      --lines_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 16;
  const float* line_ = nullptr;
  std::int64_t stride_ = 0, length_ = 0, lines_ = 0, portion_ = 0, at_ = 0;
};

std::int64_t tiles_of(std::int64_t rows, std::int64_t columns) {
  return ((rows + kRows - 1) / kRows) * ((columns + kColumns - 1) / kColumns);
}

/// One block of c; a panel of b serves all rows while it is in the first cache.
void multiply_block(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* a,
                    const float* b, const float* bias, bool add, float* c, std::int64_t row,
                    Ahead& next_a, Ahead& next_b) {
  for (std::int64_t j = 0; j < columns; j += kColumns) {
    const std::int64_t width = std::min(kColumns, columns - j);
    const float* shift = bias ? bias + j : nullptr;
    for (std::int64_t i = 0; i < rows; i += kRows) {
      const std::int64_t height = std::min(kRows, rows - i);
      float* to = c + i * row + j;
      next_a.next_portion();
      next_b.next_portion();
      if (width == kColumns) {
        multiply(height, depth, a + i * depth, b + j * depth, shift, add, to, row);
      } else {
        multiply_edge(height, width, depth, a + i * depth, b + j * depth, shift, add, to, row);
      }
    }
  }
}

void multiply_part(const GemmShape& shape, const Part& part, const Blocks& blocks,
                   const MatrixView& a, const MatrixView& b, const float* bias, float* c,
                   float* packed_a, float* packed_b) {
  const std::int64_t height = part.bottom - part.top;
  for (std::int64_t left = part.left; left < part.right; left += blocks.columns) {
    const std::int64_t columns = std::min(blocks.columns, part.right - left);
    for (std::int64_t begin = 0; begin < shape.k; begin += blocks.depth) {
      const std::int64_t depth = std::min(blocks.depth, shape.k - begin);
      constexpr std::int64_t kWidth = kColumnPanels * kColumns;
      for (std::int64_t j = 0; j < columns; j += kWidth) {
        pack_columns(b, left + j, std::min(kWidth, columns - j), begin, depth,
                     packed_b + j * depth);
      }
      const std::int64_t end = begin + depth, depth_after = std::min(blocks.depth, shape.k - end);
      Ahead next_b;
      if (depth_after > 0) {
        next_b = Ahead(b, end, depth_after, left, columns, tiles_of(height, columns));
      }
      for (std::int64_t top = part.top; top < part.bottom; top += blocks.rows) {
        const std::int64_t rows = std::min(blocks.rows, part.bottom - top);
        pack_rows(a, top, rows, begin, depth, packed_a);
        const std::int64_t tiles = tiles_of(rows, columns);
        Ahead next_a;
        if (const std::int64_t below = top + rows; below < part.bottom) {
          next_a = Ahead(a, below, std::min(blocks.rows, part.bottom - below), begin, depth, tiles);
        } else if (depth_after > 0) {
          next_a = Ahead(a, part.top, std::min(blocks.rows, height), end, depth_after, tiles);
        }
        multiply_block(rows, columns, depth, packed_a, packed_b,
                       bias && begin == 0 ? bias + left : nullptr, /*add=*/begin > 0,
                       c + top * shape.n + left, shape.n, next_a, next_b);
      }
    }
  }
}

}  // namespace

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads) {
  const Blocks blocks = blocks_of(shape, grid_of(shape, threads));
  return static_cast<std::size_t>(threads * (blocks.a_floats() + blocks.b_floats())) *
         sizeof(float);
}

void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads) {
  const Grid grid = grid_of(shape, threads);
  const Blocks blocks = blocks_of(shape, grid);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    float* packed_b =
        reinterpret_cast<float*>(workspace) + thread * (blocks.a_floats() + blocks.b_floats());
    multiply_part(shape, part_of(shape, grid, thread), blocks, a, b, bias, c,
                  packed_b + blocks.b_floats(), packed_b);
  }
}

}  // namespace pipetrain
