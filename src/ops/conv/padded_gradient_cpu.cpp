#include "ops/conv/padded_gradient_cpu.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops/conv/padded_maps_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain {
namespace {

using tiles::kBlock;
using tiles::kSide;
using tiles::kStep;
using tiles::kTile;
using Bits = std::uint16_t;  // of a bfloat16

constexpr std::int64_t kTogether = PaddedMaps::kTogether;
constexpr std::int64_t kSums = kBlock * kBlock;

/// A product (outputs × positions) (positions × panels), in which a panel is what one tap reads of
/// a block of 16 channels. Of each block there are two copies in pairs of positions, which begin at
/// even and at odd positions: panels are parts of these.
class PaddedGradient {
 public:
  PaddedGradient(const TileConvolution& shape, const tiles::Instructions& instructions, int threads)
      : shape_(shape),
        instructions_(instructions),
        line_(shape, /*input_gradient=*/false),
        depth_(depth_of(shape, line_.positions())),
        copy_(tiles::round_up(depth_ + line_.reach() + 2, kTogether) * kSide),
        row_blocks_((shape.outputs + kBlock - 1) / kBlock),
        threads_(tiles::useful_threads(
            {shape.outputs, shape.inputs * shape.taps(), line_.positions()}, threads)),
        part_(tiles::largest_part(row_blocks_ * kBlock, column_blocks() * kBlock, threads_, kBlock,
                                  /*packing=*/0)) {
    // Blocks of channels in twos, so that 32 columns mostly have the same tap.
    const std::int64_t blocks = shape.inputs / kSide, taps = shape.taps();
    for (std::int64_t block = 0; block < blocks; block += 2) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        for (std::int64_t b = block; b < std::min(blocks, block + 2); ++b)
          panels_.push_back({b, tap});
      }
    }
  }

  std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(a_elements() + b_elements()) * sizeof(Bits) +
           static_cast<std::size_t>(row_blocks_ * column_blocks() * kSums) * sizeof(float);
  }

  void run(const Bits* x, const Bits* dy, bool add, float* dw, std::byte* workspace) const {
    auto* const a = reinterpret_cast<Bits*>(workspace);
    Bits* const b = a + a_elements();
    auto* const sums = reinterpret_cast<float*>(b + b_elements());
#pragma omp parallel num_threads(threads_)
    {
      instructions_.begin();
      for (std::int64_t begin = 0; begin < line_.positions(); begin += depth_) {
        const std::int64_t steps = tiles::tiles_along(std::min(depth_, line_.positions() - begin));
        pack_gradients(dy, begin, steps, a);
        pack_copies(x, begin, steps, b);
#pragma omp barrier
        multiply(a, b, begin == 0, steps, sums);
#pragma omp barrier
      }
      instructions_.end();
      store(sums, add, dw);
    }
  }

  /// Positions that are packed at a time, which stay in the outer caches.
  static std::int64_t depth_of(const TileConvolution& shape, std::int64_t positions) {
    constexpr std::int64_t kElements = 1 << 19, kLeast = 768, kMost = 2048;
    const std::int64_t most =
        std::clamp(kElements / (shape.outputs + 2 * shape.inputs), kLeast, kMost);
    return tiles::chunk_of(positions, most, most, kTogether);
  }

 private:
  struct Panel {
    std::int64_t block, tap;
  };

  std::int64_t panel_count() const { return shape_.inputs / kSide * shape_.taps(); }
  std::int64_t column_blocks() const { return (panel_count() + 1) / 2; }
  std::int64_t a_elements() const { return shape_.outputs * depth_; }
  std::int64_t b_elements() const { return shape_.inputs / kSide * 2 * copy_; }

  /// Calls body(first position, positions) for this thread's share of `count`.
  template <class Body>
  static void for_share(std::int64_t count, Body body) {
    const std::int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const std::int64_t chunks = (count + kTogether - 1) / kTogether;
    for (std::int64_t c = chunks * thread / threads; c < chunks * (thread + 1) / threads; ++c)
      body(c * kTogether, std::min(kTogether, count - c * kTogether));
  }

  void pack_gradients(const Bits* dy, std::int64_t begin, std::int64_t steps, Bits* a) const {
    const PaddedSource source{dy, shape_.outputs, shape_.rows.output, shape_.columns.output};
    for_share(steps * kStep, [&](std::int64_t first, std::int64_t count) {
      std::array<const Bits*, kTogether> from;
      source.find(line_, begin + first, count, from.data());
      for (std::int64_t panel = 0; panel < shape_.outputs / kSide; ++panel) {
        Bits* const to = a + (panel * steps + first / kStep) * kTile;
        instructions_.interleave(from.data(), count, panel * source.block(), to);
        for (std::int64_t tile = 0; tile < count / kStep; ++tile)
          instructions_.transpose(to + tile * kTile, to + tile * kTile);
      }
    });
  }

  void pack_copies(const Bits* x, std::int64_t begin, std::int64_t steps, Bits* b) const {
    const PaddedSource source{x, shape_.inputs, shape_.rows.input, shape_.columns.input};
    const std::int64_t lowest = line_.lowest_tap();
    for_share(steps * kStep + line_.reach() + 1, [&](std::int64_t first, std::int64_t) {
      std::array<const Bits*, kTogether + 1> from;
      source.find(line_, begin + lowest + first, kTogether + 1, from.data());
      for (std::int64_t block = 0; block < shape_.inputs / kSide; ++block) {
        for (std::int64_t odd = 0; odd < 2; ++odd) {
          instructions_.interleave(from.data() + odd, kTogether, block * source.block(),
                                   b + (2 * block + odd) * copy_ + first * kSide);
        }
      }
    });
  }

  const Bits* panel(const Bits* b, std::int64_t index) const {
    const auto [block, tap] = panels_[static_cast<std::size_t>(index)];
    const std::int64_t at = line_.tap(tap) - line_.lowest_tap();
    return b + (2 * block + at % 2) * copy_ + at / 2 * kStep;
  }

  /// Computes this thread's parts of the product, or adds to their sums.
  void multiply(const Bits* a, const Bits* b, bool first, std::int64_t steps, float* sums) const {
    const std::int64_t down = part_.rows / kBlock, across = part_.columns / kBlock;
    const std::int64_t parts_across = (column_blocks() + across - 1) / across;
    const std::int64_t parts = (row_blocks_ + down - 1) / down * parts_across;
    for (std::int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
      const std::int64_t top = part / parts_across * down, left = part % parts_across * across;
      for (std::int64_t step = 0; step < steps; step += tiles::kMostSteps) {
        for (std::int64_t c = left; c < std::min(left + across, column_blocks()); ++c) {
          const bool pair = 2 * c + 1 < panel_count();
          const Bits* const right = panel(b, 2 * c);
          const std::int64_t apart = pair ? panel(b, 2 * c + 1) - right : 0;
          for (std::int64_t r = top; r < std::min(top + down, row_blocks_); ++r) {
            const bool two = r * kBlock + kSide < shape_.outputs;
            instructions_.multiply[two][pair](std::min(tiles::kMostSteps, steps - step),
                                              {a + (r * 2 * steps + step) * kTile, steps * kTile},
                                              {right + step * kTile, apart}, !(first && step == 0),
                                              sums + (c * row_blocks_ + r) * kSums, kBlock);
          }
        }
      }
    }
  }

  /// Sums of all threads to (outputs, inputs, taps).
  void store(const float* sums, bool add, float* dw) const {
    const std::int64_t taps = shape_.taps();
#pragma omp for schedule(static)
    for (std::int64_t o = 0; o < shape_.outputs; ++o) {
      const float* const line = sums + o / kBlock * kSums + o % kBlock * kBlock;
      for (std::int64_t p = 0; p < panel_count(); ++p) {
        const auto [block, tap] = panels_[static_cast<std::size_t>(p)];
        const float* const from = line + p / 2 * row_blocks_ * kSums + p % 2 * kSide;
        float* const to = dw + (o * shape_.inputs + block * kSide) * taps + tap;
        for (std::int64_t i = 0; i < kSide; ++i)
          to[i * taps] = add ? to[i * taps] + from[i] : from[i];
      }
    }
  }

  TileConvolution shape_;
  const tiles::Instructions& instructions_;
  PaddedMaps line_;
  std::int64_t depth_;       // positions that are packed at a time
  std::int64_t copy_;        // elements of a copy of a block
  std::int64_t row_blocks_;  // of 32 outputs
  int threads_;
  tiles::Part part_;
  std::vector<Panel> panels_;  // in the order of the columns
};

}  // namespace

bool padded_gradient_pays(const TileConvolution& shape) {
  if (shape.rows.stride != 1 || shape.columns.stride != 1 || shape.taps() == 1) return false;
  const PaddedMaps line(shape, /*input_gradient=*/false);
  // Both copies of a chunk of positions are less than what all taps read of it.
  const std::int64_t depth = PaddedGradient::depth_of(shape, line.positions());
  return line.adds_few_zeros() && 2 * (depth + line.reach()) <= shape.taps() * depth;
}

std::unique_ptr<Kernel> make_padded_gradient(const TileConvolution& shape,
                                             const tiles::Instructions& instructions) {
  PaddedGradient gradient(shape, instructions, omp_get_max_threads());
  const std::size_t bytes = gradient.workspace_bytes();
  return make_adding_kernel(
      [gradient = std::move(gradient)](std::span<const Tensor> in, std::span<const Tensor> out,
                                       const RunContext& context, bool add) {
        gradient.run(in[0].as<Bits>(), in[1].as<Bits>(), add, out[0].as<float>(),
                     context.workspace);
      },
      bytes);
}

}  // namespace pipetrain
