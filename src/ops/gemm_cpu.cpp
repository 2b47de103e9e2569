#include "ops/gemm_cpu.h"

#include <omp.h>

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "ops/vector8_cpu.h"

namespace pipetrain {
namespace {

using Vector = Vector8;

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kRows = 6;       // of c in the inner loop: 12 vectors of sums in registers
constexpr std::int64_t kColumns = 16;   // and columns
constexpr std::int64_t kDepth = 192;    // terms of a sum per pass: a panel of b stays in the L1
constexpr std::int64_t kOnePass = 256;  // unless so many are all of them: then c is written once
constexpr std::int64_t kRowBlock = 72;  // rows of a packed together: they stay in the L2
constexpr std::int64_t kColumnBlock = 1024;  // columns of b packed together
// Panels packed side by side, so that whole cache lines are read at a time.
constexpr std::int64_t kRowPanels = 8, kColumnPanels = 16;
constexpr std::int64_t kSlack = 16;  // floats that packing a may write behind its panels
// Up to so many terms a panel of a stays in the first cache while all columns pass: then c is
// written in the order of its rows, which is what takes the time.
constexpr std::int64_t kFewTerms = 64;

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Equal pieces of at most `most`, multiples of `unit` but for the last: a short rest would be all
/// overhead.
std::int64_t balanced(std::int64_t count, std::int64_t most, std::int64_t unit) {
  const std::int64_t pieces = std::max<std::int64_t>(1, (count + most - 1) / most);
  return std::max(unit, round_up((count + pieces - 1) / pieces, unit));
}

/// Terms of a sum per pass.
std::int64_t depth_of(std::int64_t k) {
  return balanced(k, k <= kOnePass ? kOnePass : kDepth, kLanes);
}

/// Rows of a in panels of six or one less where they do not divide: two rows alone would take as
/// long as four.
class RowPanels {
 public:
  explicit RowPanels(std::int64_t rows)
      : count_((rows + kRows - 1) / kRows), least_(rows / count_), higher_(rows % count_) {}
  std::int64_t count() const { return count_; }
  std::int64_t first(std::int64_t panel) const { return panel * least_ + std::min(panel, higher_); }
  std::int64_t height(std::int64_t panel) const { return least_ + (panel < higher_ ? 1 : 0); }

 private:
  std::int64_t count_, least_, higher_;
};

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

/// A tile of one or two panels of rows by one or two of columns with AVX-512: twice the width, and
/// the rows of both panels hide the latency. The second panel of b is depth * 16 behind the first.
template <int kTop, int kBottom, int kPanels>
PIPETRAIN_AVX512 void multiply_wide(std::int64_t depth, const float* a, const float* b,
                                    const float* bias, bool add, float* c, std::int64_t row) {
  constexpr int kCount = kTop + kBottom;
  Vector16 sums[kCount][kPanels] = {};
  for (std::int64_t r = 0; r < kCount; ++r) {
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(c + r * row + p * kColumns, 1);
    __builtin_prefetch(c + r * row + kPanels * kColumns - 1, 1);
  }
  const float* below = a + depth * kRows;
  for (std::int64_t i = 0; i < depth; ++i, a += kRows, below += kRows, b += kColumns) {
    Vector16 columns[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) columns[p] = load16(b + p * depth * kColumns);
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      const Vector16 factor = fill16(r < kTop ? a[r] : below[r - kTop]);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) sums[r][p] += factor * columns[p];
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    const Vector16 shift = bias ? load16(bias + p * kColumns) : Vector16{};
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      float* to = c + r * row + p * kColumns;
      Vector16 sum = sums[r][p];
      if (bias) sum += shift;
      if (add) sum += load16(to);
      store16(to, sum);
    }
  }
}

using WideTile = void (*)(std::int64_t depth, const float* a, const float* b, const float* bias,
                          bool add, float* c, std::int64_t row);

/// Heights of neighbouring panels differ by one at most, the higher one first.
template <int kPanels>
WideTile wide_tile(std::int64_t top, std::int64_t bottom) {
  static constexpr WideTile kAlone[] = {multiply_wide<1, 0, kPanels>, multiply_wide<2, 0, kPanels>,
                                        multiply_wide<3, 0, kPanels>, multiply_wide<4, 0, kPanels>,
                                        multiply_wide<5, 0, kPanels>, multiply_wide<6, 0, kPanels>};
  static constexpr WideTile kPairs[] = {multiply_wide<4, 3, kPanels>, multiply_wide<4, 4, kPanels>,
                                        multiply_wide<5, 4, kPanels>, multiply_wide<5, 5, kPanels>,
                                        multiply_wide<6, 5, kPanels>, multiply_wide<6, 6, kPanels>};
  return bottom == 0 ? kAlone[top - 1] : kPairs[top + bottom - 7];
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

/// Rows [first, first + rows) and terms [begin, begin + depth) of a as panels (depth, 6). What
/// stands behind the rows of a panel of fewer is not read.
void pack_rows(const MatrixView& a, std::int64_t first, std::int64_t rows, std::int64_t begin,
               std::int64_t depth, float* to) {
  const float* from = a.data + first * a.row_stride + begin * a.column_stride;
  const RowPanels panels(rows);
  // Six rows may be read wherever six are left of this block.
  std::int64_t whole = panels.count();
  while (whole > 0 && panels.first(whole - 1) + kRows > rows) --whole;
  if (a.row_stride == 1) {
    for (std::int64_t group = 0; group < whole; group += kRowPanels) {
      const std::int64_t end = std::min(whole, group + kRowPanels);
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t panel = group; panel < end; ++panel) {
          std::memcpy(to + (panel * depth + k) * kRows,
                      from + k * a.column_stride + panels.first(panel), kRows * sizeof(float));
        }
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      transpose_six(from + panels.first(panel) * a.row_stride, a.row_stride, depth,
                    to + panel * depth * kRows);
    }
  }
  for (std::int64_t panel = whole; panel < panels.count(); ++panel) {
    const float* line = from + panels.first(panel) * a.row_stride;
    float* part = to + panel * depth * kRows;
    const std::int64_t height = panels.height(panel);
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t r = 0; r < kRows; ++r)
        part[k * kRows + r] = r < height ? line[r * a.row_stride + k * a.column_stride] : 0.0F;
    }
  }
}

/// Where packed columns go: a workspace that is read next, or memory that is read much later, past
/// the caches (whose lines need not be read before they are written then).
enum class Write { kCached, kStreamed };

template <Write kWrite>
[[gnu::always_inline]] inline void put(float* to, Vector low, Vector high) {
#ifdef __AVX__
  if constexpr (kWrite == Write::kStreamed) {
    _mm256_stream_ps(to, reinterpret_cast<__m256>(low));
    _mm256_stream_ps(to + kLanes, reinterpret_cast<__m256>(high));
    return;
  }
#endif
  store8(to, low);
  store8(to + kLanes, high);
}

/// Streamed writes need addresses that are multiples of a vector, and a fence before other threads
/// read.
bool can_stream(const float* to) { return reinterpret_cast<std::uintptr_t>(to) % 32 == 0; }
void end_stream() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

/// Columns [first, first + columns), at most kColumnPanels panels of them, and terms [begin, begin
/// + depth) of b as panels (depth, 16).
template <Write kWrite>
void pack_columns(const MatrixView& b, std::int64_t first, std::int64_t columns, std::int64_t begin,
                  std::int64_t depth, float* to) {
  const float* from = b.data + begin * b.row_stride + first * b.column_stride;
  const std::int64_t whole = columns / kColumns;
  if (b.column_stride == 1) {
    constexpr std::int64_t kRowsAhead = 12;  // the hardware does not look beyond the end of a row
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t panel = 0; panel < whole; ++panel) {
        const float* line = from + k * b.row_stride + panel * kColumns;
        __builtin_prefetch(line + kRowsAhead * b.row_stride);
        put<kWrite>(to + (panel * depth + k) * kColumns, load8(line), load8(line + kLanes));
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      const float* lines = from + panel * kColumns * b.column_stride;
      float* part = to + panel * depth * kColumns;
      std::int64_t k = 0;
      for (; k + kLanes <= depth; k += kLanes) {
        Vector low[8], high[8];
        for (int j = 0; j < 8; ++j) low[j] = load8(lines + j * b.column_stride + k);
        transpose(low);
        for (int j = 0; j < 8; ++j) high[j] = load8(lines + (8 + j) * b.column_stride + k);
        transpose(high);
        for (int i = 0; i < 8; ++i) put<kWrite>(part + (k + i) * kColumns, low[i], high[i]);
      }
      for (; k < depth; ++k) {
        for (std::int64_t j = 0; j < kColumns; ++j)
          part[k * kColumns + j] = lines[j * b.column_stride + k];
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
          balanced(std::min(shape.n, grid.width), kColumnBlock, kColumns), depth_of(shape.k)};
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

/// One block of c.
struct Block {
  std::int64_t rows, columns, depth;
  const float* a;  // packed
  const float* b;
  const float* bias;
  bool add;
  float* c;
  std::int64_t row;  // floats from one row of c to the next
};

void multiply_tile(const Block& block, const RowPanels& panels, std::int64_t panel,
                   std::int64_t j) {
  const std::int64_t width = std::min(kColumns, block.columns - j);
  const std::int64_t depth = block.depth;
  const float* shift = block.bias ? block.bias + j : nullptr;
  const float* a = block.a + panel * kRows * depth;
  float* to = block.c + panels.first(panel) * block.row + j;
  if (width == kColumns) {
    multiply(panels.height(panel), depth, a, block.b + j * depth, shift, block.add, to, block.row);
  } else {
    multiply_edge(panels.height(panel), width, depth, a, block.b + j * depth, shift, block.add, to,
                  block.row);
  }
}

/// Up to two panels of rows times up to two of columns.
void multiply_wide_tile(const Block& block, const RowPanels& panels, std::int64_t panel,
                        std::int64_t j) {
  const std::int64_t whole = (block.columns - j) / kColumns;
  const bool two = panel + 1 < panels.count();
  if (whole > 0) {
    const std::int64_t top = panels.height(panel), bottom = two ? panels.height(panel + 1) : 0;
    const WideTile tile = whole > 1 ? wide_tile<2>(top, bottom) : wide_tile<1>(top, bottom);
    tile(block.depth, block.a + panel * kRows * block.depth, block.b + j * block.depth,
         block.bias ? block.bias + j : nullptr, block.add,
         block.c + panels.first(panel) * block.row + j, block.row);
  }
  const std::int64_t edge = j + whole * kColumns;
  if (whole > 1 || edge >= block.columns) return;
  multiply_tile(block, panels, panel, edge);
  if (two) multiply_tile(block, panels, panel + 1, edge);
}

/// A panel of b serves all rows while it is in the first cache, or a short panel of a all columns.
void multiply_block(const Block& block, Ahead& next_a, Ahead& next_b) {
  const RowPanels panels(block.rows);
  const bool wide = has_avx512();
  const std::int64_t together = wide ? 2 : 1;  // panels of either operand
  const auto tile = [&](std::int64_t panel, std::int64_t j) {
    for (std::int64_t i = 0; i < together * together; ++i) {
      next_a.next_portion();
      next_b.next_portion();
    }
    (wide ? multiply_wide_tile : multiply_tile)(block, panels, panel, j);
  };
  if (block.depth <= kFewTerms) {
    for (std::int64_t panel = 0; panel < panels.count(); panel += together) {
      for (std::int64_t j = 0; j < block.columns; j += together * kColumns) tile(panel, j);
    }
    return;
  }
  for (std::int64_t j = 0; j < block.columns; j += together * kColumns) {
    for (std::int64_t panel = 0; panel < panels.count(); panel += together) tile(panel, j);
  }
}

/// What b is read from: where it lies, or packed as a whole.
struct RightOperand {
  MatrixView view;
  const float* packed = nullptr;
};

template <Write kWrite>
void pack_block(const MatrixView& b, std::int64_t left, std::int64_t columns, std::int64_t begin,
                std::int64_t depth, float* to) {
  constexpr std::int64_t kWidth = kColumnPanels * kColumns;
  for (std::int64_t j = 0; j < columns; j += kWidth)
    pack_columns<kWrite>(b, left + j, std::min(kWidth, columns - j), begin, depth, to + j * depth);
}

void multiply_part(const GemmShape& shape, const Part& part, const Blocks& blocks,
                   const MatrixView& a, const RightOperand& b, const float* bias, bool add,
                   float* c, float* packed_a, float* packed_b) {
  const std::int64_t height = part.bottom - part.top;
  for (std::int64_t left = part.left; left < part.right; left += blocks.columns) {
    const std::int64_t columns = std::min(blocks.columns, part.right - left);
    for (std::int64_t begin = 0; begin < shape.k; begin += blocks.depth) {
      const std::int64_t depth = std::min(blocks.depth, shape.k - begin);
      const std::int64_t end = begin + depth, depth_after = std::min(blocks.depth, shape.k - end);
      const float* panels = packed_b;
      Ahead next_b;
      if (b.packed) {
        panels = b.packed + begin * round_up(shape.n, kColumns) + left * depth;
      } else {
        pack_block<Write::kCached>(b.view, left, columns, begin, depth, packed_b);
        if (depth_after > 0) {
          next_b = Ahead(b.view, end, depth_after, left, columns, tiles_of(height, columns));
        }
      }
      for (std::int64_t top = part.top; top < part.bottom; top += blocks.rows) {
        const std::int64_t rows = std::min(blocks.rows, part.bottom - top);
        pack_rows(a, top, rows, begin, depth, packed_a);
        const std::int64_t tiles = tiles_of(rows, columns);
        if (b.packed && top == part.top) {
          // The panels come in order: each tile calls in its share of the panel after the next.
          next_b =
              Ahead({panels + 2 * depth * kColumns, depth * kColumns, 1}, 0,
                    std::max<std::int64_t>(0, columns / kColumns - 2), 0, depth * kColumns, tiles);
        }
        Ahead next_a;
        if (const std::int64_t below = top + rows; below < part.bottom) {
          next_a = Ahead(a, below, std::min(blocks.rows, part.bottom - below), begin, depth, tiles);
        } else if (depth_after > 0) {
          next_a = Ahead(a, part.top, std::min(blocks.rows, height), end, depth_after, tiles);
        }
        multiply_block(
            {rows, columns, depth, packed_a, panels, bias && begin == 0 ? bias + left : nullptr,
             add || begin > 0, c + top * shape.n + left, shape.n},
            next_a, next_b);
      }
    }
  }
}

void multiply_parts(const GemmShape& shape, const MatrixView& a, const RightOperand& b,
                    const float* bias, bool add, float* c, std::byte* workspace, int threads) {
  const Grid grid = grid_of(shape, threads);
  const Blocks blocks = blocks_of(shape, grid);
  const std::int64_t b_floats = b.packed ? 0 : blocks.b_floats();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    float* packed_b = reinterpret_cast<float*>(workspace) + thread * (blocks.a_floats() + b_floats);
    multiply_part(shape, part_of(shape, grid, thread), blocks, a, b, bias, add, c,
                  packed_b + b_floats, packed_b);
  }
}

std::size_t workspace_bytes(const Blocks& blocks, std::int64_t b_floats, int threads) {
  return static_cast<std::size_t>(threads * (blocks.a_floats() + b_floats)) * sizeof(float);
}

}  // namespace

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads) {
  const Blocks blocks = blocks_of(shape, grid_of(shape, threads));
  return workspace_bytes(blocks, blocks.b_floats(), threads);
}

void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads) {
  multiply_parts(shape, a, {b}, bias, /*add=*/false, c, workspace, threads);
}

bool gemm_adds(const GemmShape& shape) { return depth_of(shape.k) >= shape.k; }

void gemm_adding(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                 std::byte* workspace, int threads) {
  multiply_parts(shape, a, {b}, nullptr, /*add=*/true, c, workspace, threads);
}

std::int64_t gemm_packed_floats(std::int64_t n, std::int64_t k) {
  return round_up(n, kColumns) * k;
}

void gemm_pack(std::int64_t n, std::int64_t k, const MatrixView& b, float* packed, int threads) {
  const std::int64_t depth = depth_of(k);
  const std::int64_t width = round_up((n + threads - 1) / threads, kColumns);
  const auto pack = can_stream(packed) ? pack_block<Write::kStreamed> : pack_block<Write::kCached>;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t left = std::min(n, thread * width), right = std::min(n, left + width);
    for (std::int64_t begin = 0; begin < k; begin += depth) {
      const std::int64_t terms = std::min(depth, k - begin);
      pack(b, left, right - left, begin, terms,
           packed + begin * round_up(n, kColumns) + left * terms);
    }
    end_stream();
  }
}

std::size_t gemm_packed_workspace_bytes(const GemmShape& shape, int threads) {
  return workspace_bytes(blocks_of(shape, grid_of(shape, threads)), 0, threads);
}

void gemm_packed(const GemmShape& shape, const MatrixView& a, const float* packed,
                 const float* bias, float* c, std::byte* workspace, int threads) {
  multiply_parts(shape, a, {{}, packed}, bias, /*add=*/false, c, workspace, threads);
}

}  // namespace pipetrain
