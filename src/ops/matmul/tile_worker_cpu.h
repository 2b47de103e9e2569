// How a product on tiles is divided among threads and caches, whatever its operands are gathered
// from and its sums go to. Include it from *_cpu.cpp files only.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/tile_packing_cpu.h"

namespace pipetrain::tiles {

// What is packed at a time stays in the outer caches.
constexpr std::int64_t kMostLines = 1024;                     // rows of a, columns of b
constexpr std::int64_t kMostDepth = 2048, kOnlyDepth = 3072;  // of a pass; of a single one
// Of a thread at a time: its sums and its part of the operands stay in the L2 cache, and 32 columns
// of b in the L1.
constexpr std::int64_t kMostSide = 384, kMostSteps = 16, kOnlySteps = 24;

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The size of equal chunks of at most `most`, or of one chunk of up to `only`, in multiples of
/// `unit`.
inline std::int64_t chunk_of(std::int64_t count, std::int64_t most, std::int64_t only,
                             std::int64_t unit) {
  if (count <= only) return std::max(unit, round_up(count, unit));
  const std::int64_t chunks = (count + most - 1) / most;
  return round_up((count + chunks - 1) / chunks, unit);
}

/// The largest rectangle of rows and columns that one of `threads` computes, in multiples of
/// `unit`, where it is least work; to pack an element of an operand costs `packing`
/// multiplications.
struct Part {
  std::int64_t rows = 0, columns = 0;
};
inline Part largest_part(std::int64_t rows, std::int64_t columns, int threads, std::int64_t unit,
                         std::int64_t packing) {
  Part best;
  std::int64_t least = 0;
  for (std::int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const std::int64_t across = threads / down;
    const Part part{round_up((rows + down - 1) / down, unit),
                    round_up((columns + across - 1) / across, unit)};
    const std::int64_t cost = part.rows * part.columns + packing * (part.rows + part.columns);
    if (least > 0 && cost >= least) continue;
    least = cost;
    best = part;
  }
  return best;
}

inline std::int64_t depth_of(std::int64_t k) { return chunk_of(k, kMostDepth, kOnlyDepth, kStep); }

/// How a product is divided; in elements, but for steps and parts.
struct Sizes {
  Sizes(const GemmShape& shape, int threads)
      : rows(chunk_of(shape.m, kMostLines, kMostLines, kBlock)),
        columns(chunk_of(shape.n, kMostLines, kMostLines, kBlock)),
        depth(depth_of(shape.k)),
        steps(chunk_of(depth / kStep, kMostSteps, kOnlySteps, 1)) {
    const Part part = largest_part(rows, columns, threads, kBlock, /*packing=*/kBlock);
    part_rows = part.rows;
    part_columns = part.columns;
    parts_across = (columns + part_columns - 1) / part_columns;
    parts = (rows + part_rows - 1) / part_rows * parts_across;
    side_rows = chunk_of(part_rows, kMostSide, kMostSide, kBlock);
    side_columns = chunk_of(part_columns, kMostSide, kMostSide, kBlock);
    const bool one_pass = shape.k <= depth, one_block = depth <= steps * kStep;
    kept_rows = !one_pass ? part_rows : one_block ? kBlock : side_rows;
    kept_columns = !one_pass ? part_columns : one_block ? kBlock : side_columns;
  }

  std::int64_t a_elements() const { return rows * depth; }
  std::int64_t b_elements() const { return columns * depth; }
  std::int64_t sums() const { return kept_rows * kept_columns; }
  std::size_t workspace_bytes(bool packed) const {
    return static_cast<std::size_t>(a_elements() + (packed ? 0 : b_elements())) *
               sizeof(std::uint16_t) +
           static_cast<std::size_t>(parts * sums()) * sizeof(float);
  }

  std::int64_t rows, columns, depth;     // packed at a time by all threads
  std::int64_t steps;                    // tiles along k that follow each other
  std::int64_t part_rows, part_columns;  // of a thread
  std::int64_t parts_across, parts;
  std::int64_t side_rows, side_columns;  // of a thread at a time
  std::int64_t kept_rows, kept_columns;  // sums that a thread keeps
};

/// The ranges of a, b and c that are packed and multiplied at a time.
struct Range {
  std::int64_t top, rows, left, columns, begin, depth;
  std::int64_t tiles() const { return tiles_along(depth); }
};

/// A product whose operands are packed by a.pack<Order::kLines>(first line, lines, begin, depth,
/// to) and b.pack<Order::kPairs>(…), unless b is packed already, and whose sums go to
/// c.store(instructions, sums, row, rows, column, columns).
template <class A, class B, class C>
struct Operation {
  GemmShape shape;
  A a;
  B b;
  const std::uint16_t* packed;  // b, or null
  C c;
};
// clang before 17 makes none for aggregates.
template <class A, class B, class C>
Operation(GemmShape, A, B, const std::uint16_t*, C) -> Operation<A, B, C>;

/// One thread's work.
template <class A, class B, class C>
class Worker {
 public:
  Worker(const Instructions& instructions, const Operation<A, B, C>& operation, const Sizes& sizes,
         std::byte* workspace)
      : Worker(instructions, operation, sizes, workspace,
               reinterpret_cast<std::uint16_t*>(workspace) + sizes.a_elements(),
               operation.packed ? 0 : sizes.b_elements(), omp_get_thread_num(),
               omp_get_num_threads()) {}

  /// One of `threads`, or the only one, that reads b where another worker has packed it.
  Worker(const Instructions& instructions, const Operation<A, B, C>& operation, const Sizes& sizes,
         std::byte* workspace, std::uint16_t* b, std::int64_t b_elements, std::int64_t thread,
         std::int64_t threads)
      : instructions_(instructions),
        operation_(operation),
        sizes_(sizes),
        a_(reinterpret_cast<std::uint16_t*>(workspace)),
        b_(b),
        sums_(reinterpret_cast<float*>(a_ + sizes.a_elements() + b_elements)),
        thread_(thread),
        threads_(threads) {}

  /// Packs this thread's share of the rows of a.
  void pack_a(const Range& range) const {
    pack_share<Order::kLines>(operation_.a, range.top, range.rows, range, a_);
  }
  void pack_b(const Range& range) const {
    pack_share<Order::kPairs>(operation_.b, range.left, range.columns, range, b_);
  }

  /// Computes this thread's parts of c, or adds to their sums.
  void multiply(const Range& range) const {
    for (std::int64_t part = thread_; part < sizes_.parts; part += threads_) {
      const std::int64_t top = part / sizes_.parts_across * sizes_.part_rows;
      const std::int64_t left = part % sizes_.parts_across * sizes_.part_columns;
      const std::int64_t bottom = std::min(range.rows, top + sizes_.part_rows);
      const std::int64_t right = std::min(range.columns, left + sizes_.part_columns);
      float* const sums = sums_ + part * sizes_.sums();
      for (std::int64_t row = top; row < bottom; row += sizes_.side_rows) {
        for (std::int64_t column = left; column < right; column += sizes_.side_columns) {
          const Side side{row, std::min(bottom, row + sizes_.side_rows), column,
                          std::min(right, column + sizes_.side_columns)};
          float* const kept = sums + (row - top) % sizes_.kept_rows * sizes_.kept_columns +
                              (column - left) % sizes_.kept_columns * kBlock;
          for (std::int64_t tile = 0; tile < range.tiles(); tile += sizes_.steps)
            multiply_side(range, side, tile, kept);
        }
      }
    }
  }

 private:
  /// Rows and columns of a range.
  struct Side {
    std::int64_t top, bottom, left, right;
  };

  template <Order kOrder, class Source>
  void pack_share(const Source& source, std::int64_t first, std::int64_t lines, const Range& range,
                  std::uint16_t* to) const {
    const std::int64_t width = round_up((lines + threads_ - 1) / threads_, kSide);
    const std::int64_t begin = std::min(lines, thread_ * width);
    source.template pack<kOrder>(first + begin, std::min(width, lines - begin), range.begin,
                                 range.depth, to + begin * range.tiles() * kStep);
  }

  /// Multiplies some tiles of each panel from `tile` on.
  void multiply_side(const Range& range, const Side& side, std::int64_t tile, float* kept) const {
    const GemmShape& shape = operation_.shape;
    const std::uint16_t* const packed = operation_.packed;
    const std::int64_t panel = range.tiles() * kTile, at = tile * kTile;
    const std::int64_t steps = std::min(sizes_.steps, range.tiles() - tile);
    const bool first = range.begin + tile == 0;
    const bool last = range.begin + (tile + steps) * kStep >= shape.k;
    const bool single = first && last;
    const std::uint16_t* const columns =
        packed ? packed + range.begin * round_up(shape.n, kSide) + range.left / kSide * panel : b_;
    for (std::int64_t column = side.left; column < side.right; column += kBlock) {
      const std::int64_t width = std::min(kBlock, side.right - column);
      const Panels right{columns + column / kSide * panel + at, panel};
      for (std::int64_t row = side.top; row < side.bottom; row += kBlock) {
        const std::int64_t height = std::min(kBlock, side.bottom - row);
        const Panels left{a_ + row / kSide * panel + at, panel};
        float* const sums =
            single ? kept
                   : kept + (row - side.top) * sizes_.kept_columns + (column - side.left) * kBlock;
        instructions_.multiply[height > kSide][width > kSide](steps, left, right, !first, sums,
                                                              kBlock);
        if (last) {
          operation_.c.store(instructions_, sums, range.top + row, height, range.left + column,
                             width);
        }
      }
    }
  }

  const Instructions& instructions_;
  const Operation<A, B, C>& operation_;
  const Sizes& sizes_;
  std::uint16_t* a_;  // packed
  std::uint16_t* b_;
  float* sums_;
  std::int64_t thread_, threads_;
};

template <class A, class B, class C>
void work(const Instructions& instructions, const Operation<A, B, C>& operation, const Sizes& sizes,
          std::byte* workspace) {
  const GemmShape& shape = operation.shape;
  const Worker<A, B, C> worker(instructions, operation, sizes, workspace);
  const bool one_pass = shape.k <= sizes.depth;
  instructions.begin();
  for (std::int64_t top = 0; top < shape.m; top += sizes.rows) {
    for (std::int64_t left = 0; left < shape.n; left += sizes.columns) {
      for (std::int64_t begin = 0; begin < shape.k; begin += sizes.depth) {
        const Range range{top,   std::min(sizes.rows, shape.m - top),
                          left,  std::min(sizes.columns, shape.n - left),
                          begin, std::min(sizes.depth, shape.k - begin)};
        if (left == 0 || !one_pass) worker.pack_a(range);
        if (!operation.packed && (top == 0 || !one_pass || shape.n > sizes.columns))
          worker.pack_b(range);
#pragma omp barrier
        worker.multiply(range);
#pragma omp barrier
      }
    }
  }
  instructions.end();
}

/// Threads that are worth their start.
inline int useful_threads(const GemmShape& shape, int threads) {
  constexpr std::int64_t kParallel = 1 << 20;
  return shape.m * shape.n * shape.k >= kParallel ? threads : 1;
}

/// Products of many rows with a b that stays in the caches: it is packed once, and then each thread
/// packs and multiplies rows of its own, so that nobody waits, and one can pack while another that
/// shares its tiles multiplies.
struct ApartSizes {
  static constexpr std::int64_t kMostElements = 1 << 17, kMostOfB = 1 << 20, kLeastChunks = 4;

  ApartSizes(const GemmShape& shape, int threads)
      : chunk(chunk_rows(shape, threads)), own({chunk, shape.n, shape.k}, /*threads=*/1) {}

  /// Rows of `k` numbers that stay in the L2 cache.
  static std::int64_t most_rows(std::int64_t k) {
    return std::clamp(kMostElements / k / kBlock * kBlock, 2 * kBlock, 16 * kBlock);
  }
  static std::int64_t chunk_rows(const GemmShape& shape, int threads) {
    const std::int64_t most = most_rows(shape.k);
    const std::int64_t rounds = (shape.m + threads * most - 1) / (threads * most);
    return round_up((shape.m + threads * rounds - 1) / (threads * rounds), kBlock);
  }
  static bool pays(const GemmShape& shape, int threads) {
    return shape.n <= kMostLines && shape.k <= kOnlyDepth && shape.n * shape.k <= kMostOfB &&
           shape.m >= kLeastChunks * threads * 2 * kBlock;
  }

  std::size_t b_bytes() const {
    return static_cast<std::size_t>(own.b_elements()) * sizeof(std::uint16_t);
  }
  std::size_t own_bytes() const { return own.workspace_bytes(/*packed=*/true); }

  std::int64_t chunk;
  Sizes own;  // of one chunk
};

/// The workspace of a product of which nothing is packed already.
inline std::size_t run_workspace_bytes(const GemmShape& shape, int threads) {
  const int team = useful_threads(shape, threads);
  if (ApartSizes::pays(shape, team)) {
    const ApartSizes sizes(shape, team);
    return sizes.b_bytes() + static_cast<std::size_t>(team) * sizes.own_bytes();
  }
  return Sizes(shape, team).workspace_bytes(/*packed=*/false);
}

template <class A, class B, class C>
void work_apart(const Instructions& instructions, const Operation<A, B, C>& operation,
                const ApartSizes& sizes, std::byte* workspace) {
  const GemmShape& shape = operation.shape;
  auto* const b = reinterpret_cast<std::uint16_t*>(workspace);
  const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  std::byte* const own =
      workspace + sizes.b_bytes() + static_cast<std::size_t>(thread) * sizes.own_bytes();
  const Worker<A, B, C> packer(instructions, operation, sizes.own, own, b, 0, thread, threads);
  const Worker<A, B, C> worker(instructions, operation, sizes.own, own, b, 0, 0, 1);
  const auto range = [&](std::int64_t top) {
    return Range{top, std::min(sizes.chunk, shape.m - top), 0, shape.n, 0, shape.k};
  };
  instructions.begin();
  packer.pack_b(range(0));
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
  for (std::int64_t top = 0; top < shape.m; top += sizes.chunk) {
    worker.pack_a(range(top));
    worker.multiply(range(top));
  }
  instructions.end();
}

template <class A, class B, class C>
void run(const Instructions& instructions, const Operation<A, B, C>& operation,
         std::byte* workspace, int threads) {
  const int team = useful_threads(operation.shape, threads);
  if (!operation.packed && ApartSizes::pays(operation.shape, team)) {
    const ApartSizes sizes(operation.shape, team);
#pragma omp parallel num_threads(team)
    work_apart(instructions, operation, sizes, workspace);
    return;
  }
  const Sizes sizes(operation.shape, team);
#pragma omp parallel num_threads(team)
  work(instructions, operation, sizes, workspace);
}

/// Sums go to the rows of a matrix.
template <class Out>
struct Rows {
  Out* data;
  std::int64_t stride;
  const float* bias;
  bool add;  // only if Out is float

  void store(const Instructions& instructions, const float* sums, std::int64_t row,
             std::int64_t rows, std::int64_t column, std::int64_t columns) const {
    Out* const to = data + row * stride + column;
    const float* const shift = bias ? bias + column : nullptr;
    if constexpr (std::is_same_v<Out, float>) {
      instructions.store(sums, rows, columns, shift, add, to, stride);
    } else {
      instructions.store_rounded(sums, rows, columns, shift, to, stride);
    }
  }
};

}  // namespace pipetrain::tiles
