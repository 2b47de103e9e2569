#include "ops/matmul/gemm_split_cpu.h"

#include "base/vectors.h"
#include "ops/matmul/gemm_cpu.h"

#ifdef __x86_64__
#include <omp.h>

#include <algorithm>

#include "ops/matmul/gemm_split_tiles_cpu.h"
#endif

namespace pipetrain {

#ifdef __x86_64__
namespace {

using namespace gemm_split_panels;

constexpr std::int64_t kRowBlock = 256;    // of a, whose parts stay in the L2 cache
constexpr std::int64_t kPassDepth = 256;   // elements of k whose panel of b stays in the L1 cache
constexpr std::int64_t kMostDepth = 1024;  // elements of k that are summed before c is written
constexpr std::int64_t kColumnBlock = 1024;
constexpr std::int64_t kPackedElements = 512 * 1024;  // of b

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
std::int64_t balanced(std::int64_t count, std::int64_t most, std::int64_t unit) {
  const std::int64_t parts = std::max<std::int64_t>(1, (count + most - 1) / most);
  return std::max(unit, round_up((count + parts - 1) / parts, unit));
}

/// The part of c that a thread computes, and its blocks.
struct Plan {
  Plan(const GemmShape& shape, int threads) {
    depth = balanced(shape.k, kMostDepth, kChunk);
    const std::int64_t most_columns =
        std::clamp(kPackedElements / depth / kPanel * kPanel, 4 * kPanel, kColumnBlock);
    std::int64_t least = 0;
    for (std::int64_t r = 1; r <= threads; ++r) {
      if (threads % r != 0) continue;
      const std::int64_t c = threads / r;
      const std::int64_t high = round_up((shape.m + r - 1) / r, kPanel);
      const std::int64_t wide = round_up((shape.n + c - 1) / c, kPanel);
      const std::int64_t block = balanced(wide, most_columns, kPanel);
      constexpr std::int64_t kPacking = 40;  // multiplications in the time of packing an element
      const std::int64_t work =
          high * wide + kPacking * (high * ((wide + block - 1) / block) + wide);
      if (r > 1 && work >= least) continue;
      least = work;
      parts_across = c;
      height = high;
      width = wide;
      columns = block;
    }
    rows = balanced(height, kRowBlock, kPanel);
    pass = balanced(depth, kPassDepth, kChunk);
  }
  std::size_t a_bytes() const {
    return static_cast<std::size_t>(rows / kPanel * (pass / kChunk) * kChunkBytes);
  }
  std::int64_t b_panel_bytes() const { return depth / kChunk * kChunkBytes; }
  std::size_t b_bytes() const {
    return static_cast<std::size_t>(columns / kPanel * b_panel_bytes());
  }
  std::size_t sum_bytes() const { return static_cast<std::size_t>(rows * columns) * sizeof(float); }
  std::size_t bytes() const { return a_bytes() + b_bytes() + sum_bytes(); }

  std::int64_t parts_across = 0, height = 0, width = 0;
  std::int64_t rows, columns, depth, pass;
};

struct Product {
  GemmShape shape;
  SplitOperand a, b;
  const float* bias;
  bool add;
  SplitResult c;
};

using MultiplyTiles = void (*)(std::int64_t, const std::byte*, const std::byte*, Upcoming, bool,
                               float*);
MultiplyTiles tiles_of(std::int64_t rows, std::int64_t columns) {
  if (rows > kLines) return columns > kLines ? multiply_tiles<2, 2> : multiply_tiles<2, 1>;
  return columns > kLines ? multiply_tiles<1, 2> : multiply_tiles<1, 1>;
}

/// Rows, columns and elements of k of one product of blocks.
struct Block {
  std::int64_t top, rows, left, columns, begin, depth;
};

/// The sums of a tile as float products: parts of infinities do not add up to them.
PIPETRAIN_SPLIT void multiply_plainly(const Product& p, const Block& block, float* sums) {
  Vector16 rows[kLines] = {}, a[kLines], b[kLines];  // a: by rows; b: by elements of k
  for (std::int64_t k = 0; k < block.depth; k += kLines) {
    const std::int64_t count = std::min(kLines, block.depth - k);
    load_square(p.a, block.top, block.rows, block.begin + k, count, p.a.lines_are_k, a);
    load_square(p.b, block.left, block.columns, block.begin + k, count, !p.b.lines_are_k, b);
    for (std::int64_t each = 0; each < count; ++each)
      for (std::int64_t i = 0; i < kLines; ++i) rows[i] += a[i][each] * b[each];
  }
  for (std::int64_t i = 0; i < kLines; ++i)
    _mm512_store_ps(sums + i * kLines, reinterpret_cast<__m512>(rows[i]));
}

/// Whether all sums of a tile are numbers.
PIPETRAIN_SPLIT bool are_numbers(const Block& block, const float* sums) {
  __mmask16 odd = 0;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const __m512 line = _mm512_load_ps(sums + i * kLines);
    odd |= _mm512_cmp_ps_mask(line, line, _CMP_UNORD_Q);
  }
  return (odd & mask_of(block.columns)) == 0;
}

/// Writes a tile of sums to c.
PIPETRAIN_SPLIT void store_tile(const Product& p, const Block& block, float* sums) {
  if (!are_numbers(block, sums)) multiply_plainly(p, block, sums);
  const __mmask16 mask = mask_of(block.columns);
  const bool add = p.add || block.begin > 0, shifts = p.bias && block.begin == 0;
  const __m512 shift =
      shifts ? _mm512_maskz_loadu_ps(mask, p.bias + block.left) : _mm512_setzero_ps();
  std::int64_t offsets[kLines];
  p.c.map->locate(block.top, block.rows, block.left / kLines, offsets);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    float* to = p.c.data + offsets[i];
    __m512 sum = _mm512_load_ps(sums + i * kLines);
    if (shifts) sum = _mm512_add_ps(sum, shift);
    if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
    _mm512_mask_storeu_ps(to, mask, sum);
  }
}

void store_block(const Product& p, const Block& block, float* sums) {
  const std::int64_t panels = (block.rows + kPanel - 1) / kPanel;
  for (std::int64_t i = 0; i < block.rows; i += kLines) {
    for (std::int64_t j = 0; j < block.columns; j += kLines) {
      float* tile =
          sums + ((j / kPanel * panels + i / kPanel) * 4 + i / kLines % 2 * 2 + j / kLines % 2) *
                     kTileSums;
      const Block part{block.top + i,  std::min(kLines, block.rows - i),
                       block.left + j, std::min(kLines, block.columns - j),
                       block.begin,    block.depth};
      store_tile(p, part, tile);
    }
  }
}

/// Sums of a block of c from packed b, and from a, which it packs.
void multiply_block(const Product& p, const Plan& plan, const Block& block, std::byte* packed_a,
                    const std::byte* packed_b, float* sums) {
  const std::int64_t panels = (block.rows + kPanel - 1) / kPanel;
  for (std::int64_t k = 0; k < block.depth; k += plan.pass) {
    const std::int64_t pass = std::min(plan.pass, block.depth - k);
    const std::int64_t chunks = (pass + kChunk - 1) / kChunk;
    const std::int64_t a_panel = chunks * kChunkBytes;
    pack_panels</*kOfA=*/true>(p.a, block.top, block.rows, block.begin + k, pass, packed_a,
                               a_panel);
    // The panels of b come from beyond the L2 cache: each product prefetches its share of the next.
    const std::int64_t share = (a_panel / 64 + panels * chunks - 1) / (panels * chunks);
    float* to = sums;
    for (std::int64_t j = 0; j < block.columns; j += kPanel) {
      const std::byte* b = packed_b + j / kPanel * plan.b_panel_bytes() + k / kChunk * kChunkBytes;
      const std::byte* next = b + plan.b_panel_bytes();
      for (std::int64_t i = 0; i < panels; ++i, to += 4 * kTileSums, next += share * chunks * 64) {
        tiles_of(block.rows - i * kPanel, block.columns - j)(chunks, packed_a + i * a_panel, b,
                                                             {next, share}, k > 0, to);
      }
    }
  }
}

void multiply_part(const Product& p, const Plan& plan, std::int64_t part, std::byte* workspace) {
  const std::int64_t top = part / plan.parts_across * plan.height;
  const std::int64_t left = part % plan.parts_across * plan.width;
  const std::int64_t bottom = std::min(p.shape.m, top + plan.height);
  const std::int64_t right = std::min(p.shape.n, left + plan.width);
  std::byte* const packed_a = workspace;
  std::byte* const packed_b = packed_a + plan.a_bytes();
  auto* const sums = reinterpret_cast<float*>(packed_b + plan.b_bytes());
  for (std::int64_t column = left; column < right; column += plan.columns) {
    const std::int64_t columns = std::min(plan.columns, right - column);
    for (std::int64_t begin = 0; begin < p.shape.k; begin += plan.depth) {
      const std::int64_t depth = std::min(plan.depth, p.shape.k - begin);
      pack_panels</*kOfA=*/false>(p.b, column, columns, begin, depth, packed_b,
                                  plan.b_panel_bytes());
      for (std::int64_t row = top; row < bottom; row += plan.rows) {
        const Block block{row, std::min(plan.rows, bottom - row), column, columns, begin, depth};
        multiply_block(p, plan, block, packed_a, packed_b, sums);
        store_block(p, block, sums);
      }
    }
  }
}

PIPETRAIN_SPLIT void configure_tiles() {
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}
PIPETRAIN_SPLIT void release_tiles() { _tile_release(); }

}  // namespace

bool gemm_splits(const GemmShape& shape) {
  constexpr std::int64_t kFewest = 48, kShallow = 64;
  return has_amx() && shape.m >= kFewest && shape.n >= kFewest && shape.k >= kShallow;
}

std::size_t gemm_split_workspace_bytes(const GemmShape& shape, int threads) {
  return static_cast<std::size_t>(threads) * Plan(shape, threads).bytes();
}

void gemm_split(const GemmShape& shape, const SplitOperand& a, const SplitOperand& b,
                const float* bias, bool add, const SplitResult& c, std::byte* workspace,
                int threads) {
  const Plan plan(shape, threads);
  const Product product{shape, a, b, bias, add, c};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int thread = 0; thread < threads; ++thread) {
    configure_tiles();
    multiply_part(product, plan, thread,
                  workspace + static_cast<std::size_t>(thread) * plan.bytes());
    release_tiles();
  }
}

bool gemm_split_adds(const GemmShape& shape) { return shape.k <= kMostDepth; }
#else
bool gemm_splits(const GemmShape&) { return false; }
#endif

}  // namespace pipetrain
