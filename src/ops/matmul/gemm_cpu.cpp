#include "ops/matmul/gemm_cpu.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "ops/kernel/narrow_cpu.h"
#include "ops/matmul/gemm_blocks_cpu.h"
#include "ops/matmul/gemm_packing_cpu.h"
#include "ops/matmul/gemm_prefetcher_cpu.h"
#include "ops/matmul/gemm_split_cpu.h"
#include "ops/matmul/gemm_tiles_cpu.h"
#include "ops/matmul/gemm_transposed_cpu.h"
#include "ops/matmul/tile_product_cpu.h"

namespace pipetrain {
namespace {

using namespace gemm_panels;

// Up to this depth a panel of a stays in the L1 cache for all columns of b; c is then written row
// by row, which dominates the time of such products.
constexpr std::int64_t kShortDepth = 64;

std::int64_t tiles_of(std::int64_t rows, std::int64_t columns) {
  return ((rows + kRows - 1) / kRows) * ((columns + kColumns - 1) / kColumns);
}

/// One block of c, with packed panels of its operands; `depth` is the k-block in packed elements.
template <class Out>
struct Block {
  std::int64_t rows, columns, depth;
  const float* a;  // packed
  const float* b;
  const float* bias;
  bool add;
  Out* c;
  std::int64_t row;  // elements from one row of c to the next
  bool streams;      // b is read from memory, not from a cache
};

template <class Source, class Out>
void multiply_tile(const Block<Out>& block, const RowPanels& panels, std::int64_t panel,
                   std::int64_t j) {
  const std::int64_t width = std::min(kColumns, block.columns - j);
  const std::int64_t depth = block.depth;
  const float* shift = block.bias ? block.bias + j : nullptr;
  const float* a = block.a + panel * kRows * depth;
  const float* b = block.b + j * depth;
  const std::int64_t height = panels.height(panel);
  Out* to = block.c + panels.first(panel) * block.row + j;
  if constexpr (std::is_same_v<Source, Floats>) {
    if (width < kColumns)
      return multiply_edge(height, width, depth, a, b, shift, block.add, to, block.row);
    if (!block.streams)
      return multiply<false>(height, depth, a, b, nullptr, shift, block.add, to, block.row);
    // Prefetches the panel after the next, a quarter in each of the first four tiles.
    const float* next =
        panel < kPrefetchSteps ? b + (2 * depth + panel * (depth / kPrefetchSteps)) * kColumns : b;
    multiply<true>(height, depth, a, b, next, shift, block.add, to, block.row);
  } else {
    multiply_wide_edge<Source>(height, width, depth, a, b, shift, block.add, to, block.row);
  }
}

/// Up to two panels of rows times up to two of columns.
template <class Source, class Out>
void multiply_wide_tile(const Block<Out>& block, const RowPanels& panels, std::int64_t panel,
                        std::int64_t j) {
  const std::int64_t whole = (block.columns - j) / kColumns;
  const bool two = panel + 1 < panels.count();
  if (whole > 0) {
    const std::int64_t top = panels.height(panel), bottom = two ? panels.height(panel + 1) : 0;
    // Prefetches the next two panels, one in each of the first two tiles. Addresses beyond the last
    // panel are harmless.
    const bool prefetches = panel < 4;
    const WideTile<Out> tile = whole > 1 ? tile_of<Source, Out, 2>(top, bottom, prefetches)
                                         : tile_of<Source, Out, 1>(top, bottom, prefetches);
    const float* b = block.b + j * block.depth;
    const float* next = prefetches ? b + (2 + panel / 2) * kColumns * block.depth : b;
    tile(block.depth, block.a + panel * kRows * block.depth, b, next,
         block.bias ? block.bias + j : nullptr, block.add,
         block.c + panels.first(panel) * block.row + j, block.row);
  }
  const std::int64_t edge = j + whole * kColumns;
  if (whole > 1 || edge >= block.columns) return;
  multiply_tile<Source>(block, panels, panel, edge);
  if (two) multiply_tile<Source>(block, panels, panel + 1, edge);
}

/// Whether tiles are those of AVX-512, which prefetch the next panels of b themselves.
template <class Source>
bool is_wide() {
  return !std::is_same_v<Source, Floats> || has_avx512();
}

/// BLIS's macro-kernel. Loops over the rows for each panel of b, which is in the L1 cache; for a
/// short depth over the columns for each panel of a.
template <class Source, class Out>
void multiply_block(const Block<Out>& block, Prefetcher<typename Source::Element>& next_a,
                    Prefetcher<typename Source::Element>& next_b) {
  const RowPanels panels(block.rows);
  const bool wide = is_wide<Source>();
  const std::int64_t together = wide ? 2 : 1;  // panels of either operand
  const auto tile = [&](std::int64_t panel, std::int64_t j) {
    for (std::int64_t i = 0; i < together * together; ++i) {
      next_a.next_portion();
      next_b.next_portion();
    }
    (wide ? multiply_wide_tile<Source, Out> : multiply_tile<Source, Out>)(block, panels, panel, j);
  };
  if (block.depth <= kShortDepth) {
    for (std::int64_t panel = 0; panel < panels.count(); panel += together) {
      for (std::int64_t j = 0; j < block.columns; j += together * kColumns) tile(panel, j);
    }
    return;
  }
  for (std::int64_t j = 0; j < block.columns; j += together * kColumns) {
    for (std::int64_t panel = 0; panel < panels.count(); panel += together) tile(panel, j);
  }
}

/// The right operand: a strided view, or packed in advance.
template <class Element>
struct RightOperand {
  MatrixOf<Element> view;
  const float* packed = nullptr;
};

template <class Source, Write kWrite>
void pack_block(const MatrixOf<typename Source::Element>& b, std::int64_t left,
                std::int64_t columns, std::int64_t begin, std::int64_t k_block, float* to) {
  constexpr std::int64_t kWidth = kColumnPanels * kColumns;
  for (std::int64_t j = 0; j < columns; j += kWidth) {
    pack_columns<Source, kWrite>(b, left + j, std::min(kWidth, columns - j), begin, k_block,
                                 to + j * packed_depth<Source>(k_block));
  }
}

/// c = (or +=) a b + bias.
template <class Element, class Out>
struct Product {
  GemmShape shape;
  MatrixOf<Element> a;
  RightOperand<Element> b;
  const float* bias;
  bool add;
  Out* c;
};

template <class Source, class Out>
void multiply_part(const Product<typename Source::Element, Out>& product, const Part& part,
                   const Blocks& blocks, float* packed_a, float* packed_b) {
  using Lines = Prefetcher<typename Source::Element>;
  if (part.top >= part.bottom) return;  // more threads than parts with rows
  const auto& [shape, a, b, bias, add, c] = product;
  const std::int64_t height = part.bottom - part.top;
  for (std::int64_t left = part.left; left < part.right; left += blocks.columns) {
    const std::int64_t columns = std::min(blocks.columns, part.right - left);
    for (std::int64_t begin = 0; begin < shape.k; begin += blocks.k_block) {
      const std::int64_t k_block = std::min(blocks.k_block, shape.k - begin);
      const std::int64_t depth = packed_depth<Source>(k_block);
      const std::int64_t end = begin + k_block, after = std::min(blocks.k_block, shape.k - end);
      const float* panels = packed_b;
      Lines next_b;
      if (b.packed) {
        panels =
            b.packed + begin / Source::kPerElement * round_up(shape.n, kColumns) + left * depth;
      } else {
        pack_block<Source, Write::kCached>(b.view, left, columns, begin, k_block, packed_b);
        if (after > 0) next_b = Lines(b.view, end, after, left, columns, tiles_of(height, columns));
      }
      for (std::int64_t top = part.top; top < part.bottom; top += blocks.rows) {
        const std::int64_t rows = std::min(blocks.rows, part.bottom - top);
        pack_rows<Source>(a, top, rows, shape.m - top, begin, k_block, packed_a);
        const std::int64_t tiles = tiles_of(rows, columns);
        Lines next_a;
        if (const std::int64_t below = top + rows; below < part.bottom) {
          next_a =
              Lines(a, below, std::min(blocks.rows, part.bottom - below), begin, k_block, tiles);
        } else if (after > 0) {
          next_a = Lines(a, part.top, std::min(blocks.rows, height), end, after, tiles);
        }
        multiply_block<Source, Out>(
            {rows, columns, depth, packed_a, panels, bias && begin == 0 ? bias + left : nullptr,
             add || begin > 0, c + top * shape.n + left, shape.n, b.packed && top == part.top},
            next_a, next_b);
      }
    }
  }
}

void multiply_split(const Product<float, float>& product, std::byte* workspace, int threads) {
  const auto& [shape, a, b, bias, add, c] = product;
  const bool a_by_k = a.column_stride != 1, b_by_k = b.view.row_stride != 1;
  const EvenLines a_lines(a_by_k ? a.column_stride : a.row_stride), c_lines(shape.n);
  const EvenLines b_lines(b.view.row_stride == 1 ? b.view.column_stride : b.view.row_stride);
  const PackedLines packed(shape.n, shape.k, k_block_of<Floats>(shape.k));
  const SplitOperand right = b.packed ? SplitOperand{b.packed, &packed, true}
                                      : SplitOperand{b.view.data, &b_lines, b_by_k};
  gemm_split(shape, {a.data, &a_lines, a_by_k}, right, bias, add, {c, &c_lines}, workspace,
             threads);
}

template <class Source, class Out>
void multiply_parts(const Product<typename Source::Element, Out>& product, std::byte* workspace,
                    int threads) {
  if constexpr (std::is_same_v<Source, Floats>) {
    if (gemm_splits(product.shape)) return multiply_split(product, workspace, threads);
  }
  const Grid grid = grid_of(product.shape, threads);
  const Blocks blocks = blocks_of<Source>(product.shape, grid);
  const std::int64_t b_elements = product.b.packed ? 0 : blocks.b_elements();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    float* packed_b =
        reinterpret_cast<float*>(workspace) + thread * (blocks.a_elements() + b_elements);
    multiply_part<Source>(product, part_of(product.shape, grid, thread), blocks,
                          packed_b + b_elements, packed_b);
  }
}

template <class Source>
std::size_t workspace_bytes(const GemmShape& shape, bool packed, int threads) {
  if (std::is_same_v<Source, Floats> && gemm_splits(shape))
    return gemm_split_workspace_bytes(shape, threads);
  const Blocks blocks = blocks_of<Source>(shape, grid_of(shape, threads));
  const std::int64_t floats = blocks.a_elements() + (packed ? 0 : blocks.b_elements());
  return static_cast<std::size_t>(threads * floats) * sizeof(float);
}

/// Packs b, given as Source, in the k-blocks of products over Target.
template <class Source, class Target>
void pack_matrix(std::int64_t n, std::int64_t k, const MatrixOf<typename Source::Element>& b,
                 float* packed, int threads) {
  const std::int64_t depth = k_block_of<Target>(k);
  const std::int64_t width = round_up((n + threads - 1) / threads, kColumns);
  const auto pack = can_stream(packed) ? pack_block<Source, Write::kStreamed>
                                       : pack_block<Source, Write::kCached>;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t left = std::min(n, thread * width), right = std::min(n, left + width);
    for (std::int64_t begin = 0; begin < k; begin += depth) {
      const std::int64_t k_block = std::min(depth, k - begin);
      pack(b, left, right - left, begin, k_block,
           packed + begin / Source::kPerElement * round_up(n, kColumns) +
               left * packed_depth<Source>(k_block));
    }
    end_stream();
  }
}

/// Sizes of gemm_packed_transposed(): its workspace holds c^T in blocks (columns, 16 rows) and, for
/// each thread, one k-block of a.
struct Transposed {
  explicit Transposed(const GemmShape& shape)
      : rows(round_up(shape.m, kColumns)),
        pass(k_block_of<Floats>(shape.k)),
        sums(rows * shape.n),
        a(rows * round_up(std::min(pass, shape.k), kColumns)) {}
  std::int64_t rows, pass;  // k-block: whole panels of b^T
  std::int64_t sums, a;     // floats of workspace
};

/// Columns [left, right) of c.
void multiply_transposed(const GemmShape& shape, const float* a, const float* packed, float* c,
                         const Transposed& sizes, float* sums, float* packed_a, std::int64_t left,
                         std::int64_t right) {
  const std::int64_t height = k_block_of<Floats>(shape.n);  // lines of b^T in a panel
  for (std::int64_t begin = 0; begin < shape.k; begin += sizes.pass) {
    const std::int64_t k_block = std::min(sizes.pass, shape.k - begin);
    const std::int64_t panels = round_up(k_block, kColumns) / kColumns;
    pack_across(a + begin, shape.k, shape.m, k_block, packed_a);
    for (std::int64_t top = left / height * height; top < right; top += height) {
      const std::int64_t lines = std::min(height, shape.n - top);
      const std::int64_t first = std::max(left, top);
      const float* b = packed + top * round_up(shape.k, kColumns) + begin * lines;
      const RowPanels tiles(std::min(right, top + lines) - first);
      for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
        const std::int64_t line = first + tiles.first(tile);
        for (std::int64_t row = 0; row < sizes.rows; row += kColumns) {
          multiply_across(tiles.height(tile), panels, b + (line - top) * kColumns, lines * kColumns,
                          packed_a + row * panels * kColumns, begin > 0,
                          sums + row * shape.n + line * kColumns);
        }
      }
    }
  }
  for (std::int64_t row = 0; row < shape.m; row += kColumns) {
    store_across(sums + row * shape.n + left * kColumns, right - left,
                 std::min(kColumns, shape.m - row), c + row * shape.n + left, shape.n);
  }
}

/// Whether the sums of a product are stored in the workspace before they are rounded.
template <class Source, class Out>
bool rounds_behind(const GemmShape& shape) {
  return !std::is_same_v<Out, float> && k_block_of<Source>(shape.k) < shape.k;
}
std::size_t sums_bytes(const GemmShape& shape) {
  return static_cast<std::size_t>(round_up(shape.m * shape.n, 16)) * sizeof(float);
}

template <class Source, class Out>
void multiply_and_round(const Product<std::uint16_t, Out>& product, std::byte* workspace,
                        int threads) {
  if (!rounds_behind<Source, Out>(product.shape))
    return multiply_parts<Source, Out>(product, workspace, threads);
  if constexpr (!std::is_same_v<Out, float>) {
    const auto& [shape, a, b, bias, add, c] = product;
    auto* sums = reinterpret_cast<float*>(workspace);
    multiply_parts<Source, float>({shape, a, b, bias, add, sums}, workspace + sums_bytes(shape),
                                  threads);
    const std::int64_t rows = shape.m, columns = shape.n;
    Out* const to = c;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t row = 0; row < rows; ++row)
      round_to_bfloat16(sums + row * columns, to + row * columns, columns);
  }
}

template <class Out>
void multiply_bfloat16(const Product<std::uint16_t, Out>& product, std::byte* workspace,
                       int threads) {
  if (has_amx()) {
    const auto& [shape, a, b, bias, add, c] = product;
    const auto* packed = reinterpret_cast<const std::uint16_t*>(b.packed);
    return tiles::multiply<Out>(tiles::amx(), {shape, a, b.view, packed, bias, add, c}, workspace,
                                threads);
  }
  has_fast_bfloat16_products() ? multiply_and_round<Pairs, Out>(product, workspace, threads)
                               : multiply_and_round<Widened, Out>(product, workspace, threads);
}

template <class Source, class Out>
std::size_t bfloat16_workspace_bytes(const GemmShape& shape, bool packed, int threads) {
  return workspace_bytes<Source>(shape, packed, threads) +
         (rounds_behind<Source, Out>(shape) ? sums_bytes(shape) : 0);
}

}  // namespace

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads) {
  return workspace_bytes<Floats>(shape, /*packed=*/false, threads);
}

void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads) {
  multiply_parts<Floats, float>({shape, a, {b}, bias, /*add=*/false, c}, workspace, threads);
}

bool gemm_adds(const GemmShape& shape) {
  return gemm_splits(shape) ? gemm_split_adds(shape) : k_block_of<Floats>(shape.k) >= shape.k;
}

void gemm_adding(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                 std::byte* workspace, int threads) {
  multiply_parts<Floats, float>({shape, a, {b}, nullptr, /*add=*/true, c}, workspace, threads);
}

std::int64_t gemm_packed_floats(std::int64_t n, std::int64_t k) {
  return round_up(n, kColumns) * k;
}

void gemm_pack(std::int64_t n, std::int64_t k, const MatrixView& b, float* packed, int threads) {
  pack_matrix<Floats, Floats>(n, k, b, packed, threads);
}

std::size_t gemm_packed_workspace_bytes(const GemmShape& shape, int threads) {
  return workspace_bytes<Floats>(shape, /*packed=*/true, threads);
}

void gemm_packed(const GemmShape& shape, const MatrixView& a, const float* packed,
                 const float* bias, float* c, std::byte* workspace, int threads) {
  multiply_parts<Floats, float>({shape, a, {{}, packed}, bias, /*add=*/false, c}, workspace,
                                threads);
}

bool gemm_takes_transposed(const GemmShape& shape) {
  constexpr std::int64_t kMostRows = 64;  // their k-block stays in the L2
  return !is_wide<Floats>() && shape.m <= kMostRows &&
         8 * (round_up(shape.m, kColumns) - shape.m) <= shape.m;
}

std::size_t gemm_transposed_workspace_bytes(const GemmShape& shape, int threads) {
  const Transposed sizes(shape);
  return static_cast<std::size_t>(sizes.sums + threads * sizes.a) * sizeof(float);
}

void gemm_packed_transposed(const GemmShape& shape, const MatrixView& a, const float* packed,
                            float* c, std::byte* workspace, int threads) {
  const Transposed sizes(shape);
  auto* const sums = reinterpret_cast<float*>(workspace);
  const std::int64_t width = round_up((shape.n + threads - 1) / threads, kColumns);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    const std::int64_t left = std::min(shape.n, thread * width);
    const std::int64_t right = std::min(shape.n, left + width);
    if (left < right) {
      multiply_transposed(shape, a.data, packed, c, sizes, sums,
                          sums + sizes.sums + thread * sizes.a, left, right);
    }
  }
}

bool has_gemm_bfloat16() { return has_avx512_bfloat16(); }

template <class Out>
std::size_t gemm_bfloat16_workspace_bytes(const GemmShape& shape, bool packed, int threads) {
  if (has_amx()) return tiles::workspace_bytes(shape, packed, threads);
  return has_fast_bfloat16_products()
             ? bfloat16_workspace_bytes<Pairs, Out>(shape, packed, threads)
             : bfloat16_workspace_bytes<Widened, Out>(shape, packed, threads);
}

template <class Out>
void gemm_bfloat16(const GemmShape& shape, const BFloat16Matrix& a, const BFloat16Matrix& b,
                   const float* bias, Out* c, std::byte* workspace, int threads) {
  multiply_bfloat16<Out>({shape, a, {b}, bias, /*add=*/false, c}, workspace, threads);
}

bool gemm_bfloat16_adds(const GemmShape& shape) {
  if (has_amx()) return true;
  const auto pass = has_fast_bfloat16_products() ? k_block_of<Pairs> : k_block_of<Widened>;
  return pass(shape.k) >= shape.k;
}

void gemm_bfloat16_adding(const GemmShape& shape, const BFloat16Matrix& a, const BFloat16Matrix& b,
                          float* c, std::byte* workspace, int threads) {
  multiply_bfloat16<float>({shape, a, {b}, nullptr, /*add=*/true, c}, workspace, threads);
}

std::int64_t gemm_bfloat16_packed_elements(std::int64_t n, std::int64_t k) {
  if (has_amx()) return tiles::packed_elements(n, k);
  return round_up(n, kColumns) * (has_fast_bfloat16_products() ? round_up(k, 2) : 2 * k);
}

void gemm_bfloat16_pack(std::int64_t n, std::int64_t k, const BFloat16Matrix& b,
                        std::uint16_t* packed, int threads) {
  if (has_amx()) return tiles::pack(n, k, b, packed, threads);
  const auto pack =
      has_fast_bfloat16_products() ? pack_matrix<Pairs, Pairs> : pack_matrix<Widened, Widened>;
  pack(n, k, b, reinterpret_cast<float*>(packed), threads);
}

void gemm_bfloat16_pack(std::int64_t n, std::int64_t k, const MatrixView& b, std::uint16_t* packed,
                        int threads) {
  if (has_amx()) return tiles::pack(n, k, b, packed, threads);
  const auto pack = has_fast_bfloat16_products() ? pack_matrix<RoundedPairs, Pairs>
                                                 : pack_matrix<RoundedFloats, Widened>;
  pack(n, k, b, reinterpret_cast<float*>(packed), threads);
}

template <class Out>
void gemm_bfloat16_packed(const GemmShape& shape, const BFloat16Matrix& a,
                          const std::uint16_t* packed, const float* bias, Out* c,
                          std::byte* workspace, int threads) {
  const auto* elements = reinterpret_cast<const float*>(packed);
  multiply_bfloat16<Out>({shape, a, {{}, elements}, bias, /*add=*/false, c}, workspace, threads);
}

template std::size_t gemm_bfloat16_workspace_bytes<float>(const GemmShape&, bool, int);
template std::size_t gemm_bfloat16_workspace_bytes<std::uint16_t>(const GemmShape&, bool, int);
template void gemm_bfloat16(const GemmShape&, const BFloat16Matrix&, const BFloat16Matrix&,
                            const float*, float*, std::byte*, int);
template void gemm_bfloat16(const GemmShape&, const BFloat16Matrix&, const BFloat16Matrix&,
                            const float*, std::uint16_t*, std::byte*, int);
template void gemm_bfloat16_packed(const GemmShape&, const BFloat16Matrix&, const std::uint16_t*,
                                   const float*, float*, std::byte*, int);
template void gemm_bfloat16_packed(const GemmShape&, const BFloat16Matrix&, const std::uint16_t*,
                                   const float*, std::uint16_t*, std::byte*, int);

}  // namespace pipetrain
