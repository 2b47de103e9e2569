#include "ops/conv/pair_weight_gradient_cpu.h"

#include <omp.h>

#include <algorithm>

#include "ops/conv/channel_sums_cpu.h"
#include "ops/conv/tile_windows_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain {
namespace {

using tiles::chunk_of;
using tiles::kPairPanels;
using tiles::kPairRows;
using tiles::kSide;
using tiles::kTile;
using Bits = std::uint16_t;  // of a bfloat16

// What a thread packs at a time stays in its L2 cache, with the sums that are made of it.
constexpr std::int64_t kMostPositions = 512, kMostRows = 256, kMostColumns = 18 * kSide;

/// The product: a row for each output, a column for each input of each tap, k for positions of y.
struct Sizes {
  Sizes(const TileConvolution& shape, int threads)
      : rows(shape.outputs),
        columns(shape.inputs * shape.taps()),
        k(shape.batch * shape.rows.output * shape.columns.output),
        depth(chunk_of(k, kMostPositions, kMostPositions, tiles::kStep)) {
    // To pack an element takes as long as to multiply it by several.
    constexpr std::int64_t kPacking = 8;
    const tiles::Part part = tiles::largest_part(rows, columns, threads, kSide, kPacking);
    part_rows = part.rows;
    part_columns = part.columns;
    most_rows = chunk_of(part_rows, kMostRows, kMostRows, kSide);
    most_columns = chunk_of(part_columns, kMostColumns, kMostColumns, kSide);
  }
  /// Of a thread.
  std::size_t packed_bytes() const {
    return static_cast<std::size_t>((most_rows + most_columns) * depth) * sizeof(Bits);
  }
  std::size_t sums_bytes() const {
    return static_cast<std::size_t>(rows * columns) * sizeof(float);
  }

  std::int64_t rows, columns, k;
  std::int64_t depth;                    // positions that are packed at a time
  std::int64_t part_rows, part_columns;  // of a thread
  std::int64_t most_rows, most_columns;  // of it at a time
};

/// Products that so many panels are divided among, and how many the first of them takes: a product
/// of one panel alone is slow.
std::int64_t groups_of(std::int64_t panels) { return (panels + kPairPanels - 1) / kPairPanels; }
std::int64_t panels_together(std::int64_t panels) {
  const std::int64_t groups = groups_of(panels);
  return (panels + groups - 1) / groups;
}

/// Reads some channels of a map in blocks of 16 into the cache before they are packed, a portion at
/// a time. Positions [first, last) are those of all samples.
class MapReader {
 public:
  MapReader(const Windows& map, std::int64_t channel, std::int64_t channels, std::int64_t first,
            std::int64_t last, std::int64_t portions)
      : map_(map),
        begin_(channel / kSide),
        end_((channel + channels + kSide - 1) / kSide),
        block_(begin_),
        position_(first),
        last_(last) {
    const std::int64_t lines = (end_ - begin_) * (last - first) * kSide / kLine;
    portion_ = (lines + portions - 1) / portions;
    if (position_ < last_) start_run();
  }

  void next_portion() {
    for (std::int64_t i = 0; i < portion_ && position_ < last_; ++i) {
      __builtin_prefetch(line_, 0, 2);
      line_ += std::min<std::int64_t>(kLine, run_end_ - line_);
      if (line_ < run_end_) continue;
      if (++block_ == end_) {
        block_ = begin_;
        position_ += run_;
      }
      if (position_ < last_) start_run();
    }
  }

 private:
  static constexpr std::int64_t kLine = 32;  // elements of a cache line

  void start_run() {
    const std::int64_t place = position_ % map_.positions;
    run_ = std::min(last_ - position_, map_.positions - place);
    line_ = map_.map +
            (position_ / map_.positions * map_.channels + block_ * kSide) * map_.positions +
            place * kSide;
    run_end_ = line_ + run_ * kSide;
  }

  const Windows& map_;
  std::int64_t begin_, end_, block_;
  std::int64_t position_, last_;
  std::int64_t run_ = 0, portion_ = 0;
  const Bits *line_ = nullptr, *run_end_ = nullptr;
};

/// The position of x at which the row of windows begins that window k is in.
std::int64_t position_of(const Windows& x, std::int64_t k) {
  const std::int64_t windows = x.across() * x.down();
  const std::int64_t row = k % windows / x.across() * x.rows.stride;
  return k / windows * x.positions + std::min(row, x.rows.input) * x.width;
}

/// One thread's work.
class Worker {
 public:
  Worker(const tiles::Instructions& instructions, const Sizes& sizes, const Windows& dy,
         const Windows& x, std::byte* packed, float* sums)
      : instructions_(instructions),
        sizes_(sizes),
        dy_(dy),
        x_(x),
        a_(reinterpret_cast<Bits*>(packed)),
        b_(a_ + sizes.most_rows * sizes.depth),
        sums_(sums) {}

  void multiply(std::int64_t top, std::int64_t bottom, std::int64_t left,
                std::int64_t right) const {
    for (std::int64_t row = top; row < bottom; row += sizes_.most_rows) {
      const std::int64_t rows = std::min(sizes_.most_rows, bottom - row);
      for (std::int64_t column = left; column < right; column += sizes_.most_columns) {
        const std::int64_t columns = std::min(sizes_.most_columns, right - column);
        for (std::int64_t k = 0; k < sizes_.k; k += sizes_.depth) {
          const std::int64_t depth = std::min(sizes_.depth, sizes_.k - k);
          dy_.pack<tiles::Order::kPairs>(row, rows, k, depth, a_);
          x_.pack<tiles::Order::kPairs>(column, columns, k, depth, b_);
          Readers readers = readers_of(row, rows, column, columns, k + depth);
          multiply_packed(rows, columns, tiles::tiles_along(depth), k > 0,
                          sums_ + row * sizes_.columns + column, readers);
        }
      }
    }
  }

 private:
  struct Readers {
    MapReader dy, x;
  };

  /// Of what is packed next, from position `k` on, while the product of these rows and columns is
  /// made.
  Readers readers_of(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
                     std::int64_t k) const {
    const std::int64_t end = std::min(k + sizes_.depth, sizes_.k);
    const std::int64_t portions = rows / kPairRows * groups_of(columns / kSide);
    // All taps of a channel read the same.
    std::int64_t channel = column % x_.channels, channels = columns;
    if (channel + channels > x_.channels) channel = 0, channels = x_.channels;
    return {MapReader(dy_, row, rows, k, end, portions),
            MapReader(x_, channel, channels, position_of(x_, k), position_of(x_, end), portions)};
  }

  void multiply_packed(std::int64_t rows, std::int64_t columns, std::int64_t tile_count, bool add,
                       float* sums, Readers& readers) const {
    const std::int64_t panel = tile_count * kTile, panels = columns / kSide;
    for (std::int64_t first = 0; first < panels;) {
      const std::int64_t count = panels_together(panels - first);
      const tiles::Panels right{b_ + first * panel, panel};
      for (std::int64_t row = 0; row < rows; row += kPairRows) {
        readers.dy.next_portion();
        readers.x.next_portion();
        instructions_.multiply_pairs[count - 1](
            tile_count * kSide, a_ + row / kSide * panel + row % kSide * 2, right, add,
            sums + row * sizes_.columns + first * kSide, sizes_.columns);
      }
      first += count;
    }
  }

  const tiles::Instructions& instructions_;
  const Sizes& sizes_;
  const Windows &dy_, &x_;
  Bits *a_, *b_;  // packed
  float* sums_;
};

void bias_gradient(const TileConvolution& shape, const BFloat16* dy, bool add, float* sums,
                   int threads) {
  const blocked::ChannelBlocks tensor{shape.outputs, shape.rows.output * shape.columns.output,
                                      kSide};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t block = 0; block < shape.outputs / blocked::kLanes; ++block)
    sum_channels(tensor, shape.batch, dy, block, add, sums);
}

void weight_gradient(const TileConvolution& shape, const tiles::Instructions& instructions,
                     const Bits* x, const Bits* dy, bool add, float* dw, std::byte* workspace,
                     int threads) {
  const Sizes sizes(shape, threads);
  const std::int64_t positions = shape.rows.output * shape.columns.output;
  const Windows windows{
      instructions,        x,          shape.inputs,  shape.rows.input * shape.columns.input,
      shape.columns.input, shape.rows, shape.columns,
      /*transposed=*/false};
  const Windows gradients = windows_of_one(instructions, dy, shape.outputs, positions);
  const bool direct = shape.taps() == 1 && !add;
  float* const sums = direct ? dw : reinterpret_cast<float*>(workspace);
  std::byte* const packed = workspace + (direct ? 0 : sizes.sums_bytes());
  const std::int64_t across = (sizes.columns + sizes.part_columns - 1) / sizes.part_columns;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t thread = 0; thread < threads; ++thread) {
    const std::int64_t top = thread / across * sizes.part_rows;
    const std::int64_t left = thread % across * sizes.part_columns;
    const Worker worker(instructions, sizes, gradients, windows,
                        packed + static_cast<std::size_t>(thread) * sizes.packed_bytes(), sums);
    worker.multiply(top, std::min(sizes.rows, top + sizes.part_rows), left,
                    std::min(sizes.columns, left + sizes.part_columns));
  }
  if (!direct) store_in_order(shape, sums, add, dw, threads);
}

}  // namespace

std::unique_ptr<Kernel> make_pair_weight_gradient(const TileConvolution& shape,
                                                  const tiles::Instructions& instructions) {
  const int threads = omp_get_max_threads();
  const Sizes sizes(shape, threads);
  const std::size_t bytes =
      sizes.sums_bytes() + static_cast<std::size_t>(threads) * sizes.packed_bytes();
  return make_adding_kernel(
      [=, &instructions](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext& context, bool add) {
        weight_gradient(shape, instructions, in[0].as<Bits>(), in[1].as<Bits>(), add,
                        out[0].as<float>(), context.workspace, threads);
        if (auto* const dbias = data_or_null<float>(out, 1))
          bias_gradient(shape, in[1].as<BFloat16>(), add, dbias, threads);
      },
      bytes);
}

}  // namespace pipetrain
