#include "ops/conv/padded_pass_cpu.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/conv/padded_maps_cpu.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/tile_worker_cpu.h"

namespace pipetrain {
namespace {

using tiles::kBlock;
using tiles::kSide;
using tiles::kStep;
using tiles::kTile;
using Bits = std::uint16_t;  // of a bfloat16

/// A product (positions × channels of all taps) (channels of all taps × results). A tile of the
/// maps has 32 channels of 16 positions, and those of the taps overlap.
class PaddedPass {
 public:
  PaddedPass(const TileConvolution& shape, bool input_gradient,
             const tiles::Instructions& instructions, int threads)
      : shape_(shape),
        input_gradient_(input_gradient),
        instructions_(instructions),
        line_(shape, input_gradient),
        channels_(input_gradient ? shape.outputs : shape.inputs),
        results_(input_gradient ? shape.inputs : shape.outputs),
        steps_(channels_ / kStep * shape.taps()),
        threads_(tiles::useful_threads({line_.positions(), results_, steps_ * kStep}, threads)),
        rows_(tiles::ApartSizes::chunk_rows({line_.positions(), results_, channels_}, threads_)),
        packed_rows_(tiles::round_up(rows_ + line_.reach(), kTogether)) {
    for (std::int64_t tap = 0; tap < shape.taps(); ++tap) {
      order_.push_back(tap);
      for (std::int64_t pair = 0; pair < channels_ / kStep; ++pair)
        tiles_.push_back((pair * packed_rows_ + line_.tap(tap) - line_.lowest_tap()) * kStep);
    }
  }

  std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(weights() + b_elements()) * sizeof(Bits) +
           static_cast<std::size_t>(threads_) * own_bytes();
  }

  void run(const Bits* map, const Bits* w, const float* bias, Bits* out,
           std::byte* workspace) const {
    auto* const ordered = reinterpret_cast<Bits*>(workspace);
    Bits* const b = ordered + weights();
    order_weights(shape_, /*input_gradient=*/true, order_, w, ordered, threads_);
#pragma omp parallel num_threads(threads_)
    {
      const std::int64_t thread = omp_get_thread_num();
      std::byte* const own = workspace +
                             static_cast<std::size_t>(weights() + b_elements()) * sizeof(Bits) +
                             static_cast<std::size_t>(thread) * own_bytes();
      auto* const a = reinterpret_cast<Bits*>(own);
      auto* const sums = reinterpret_cast<float*>(a + a_elements());
      pack_weights(ordered, b);
      instructions_.begin();
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t top = 0; top < line_.positions(); top += rows_) {
        const std::int64_t rows = std::min(rows_, line_.positions() - top);
        pack_maps(map, top, rows, a);
        multiply(a, b, bias, top, rows, sums, out);
      }
      instructions_.end();
    }
  }

 private:
  static constexpr std::int64_t kTogether = PaddedMaps::kTogether;

  std::int64_t weights() const { return shape_.outputs * shape_.inputs * shape_.taps(); }
  std::int64_t b_elements() const { return results_ * steps_ * kStep; }
  std::int64_t a_elements() const { return packed_rows_ * channels_; }
  std::size_t own_bytes() const {
    return static_cast<std::size_t>(a_elements()) * sizeof(Bits) +
           static_cast<std::size_t>(rows_ * kBlock) * sizeof(float);
  }

  void pack_weights(const Bits* ordered, Bits* b) const {
    const std::int64_t taps = shape_.taps(), tap_tiles = channels_ / kStep;
#pragma omp for schedule(static) collapse(2)
    for (std::int64_t panel = 0; panel < results_ / kSide; ++panel) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const Bits* const from = ordered + tap * shape_.outputs * shape_.inputs;
        const tiles::Lines<Bits> lines = input_gradient_
                                             ? tiles::Lines<Bits>{from, 1, shape_.inputs}
                                             : tiles::Lines<Bits>{from, shape_.inputs, 1};
        lines.pack<tiles::Order::kPairs>(panel * kSide, kSide, 0, channels_,
                                         b + (panel * steps_ + tap * tap_tiles) * kTile);
      }
    }
  }

  void pack_maps(const Bits* map, std::int64_t top, std::int64_t rows, Bits* a) const {
    const WindowAxis &down = shape_.rows, &across = shape_.columns;
    const PaddedSource source{map, channels_, input_gradient_ ? down.output : down.input,
                              input_gradient_ ? across.output : across.input};
    const std::int64_t count = rows + line_.reach();
    for (std::int64_t first = 0; first < count; first += kTogether) {
      std::array<const Bits*, kTogether> from;
      source.find(line_, top + line_.lowest_tap() + first, kTogether, from.data());
      for (std::int64_t block = 0; block < channels_ / kSide; ++block) {
        Bits* to = a + (block / 2 * packed_rows_ + first) * kStep + block % 2 * kSide;
        const std::int64_t offset = block * source.block();
        for (const Bits* const numbers : from) {
          if (numbers) {
            __builtin_prefetch(numbers + offset + kTogether * kSide);
            std::memcpy(to, numbers + offset, kSide * sizeof *to);
          } else {
            std::memset(to, 0, kSide * sizeof *to);
          }
          to += kStep;
        }
      }
    }
  }

  void multiply(const Bits* a, const Bits* b, const float* bias, std::int64_t top,
                std::int64_t rows, float* sums, Bits* out) const {
    const std::int64_t most = tiles::chunk_of(steps_, tiles::kMostSteps, tiles::kOnlySteps, 1);
    const std::int64_t panel = steps_ * kTile;
    for (std::int64_t column = 0; column < results_; column += kBlock) {
      const std::int64_t columns = std::min(kBlock, results_ - column);
      for (std::int64_t step = 0; step < steps_; step += most) {
        const std::int64_t steps = std::min(most, steps_ - step);
        for (std::int64_t row = 0; row < rows; row += kBlock) {
          const std::int64_t some = std::min(kBlock, rows - row);
          float* const kept = sums + row * kBlock;
          instructions_.multiply[some > kSide][columns > kSide](
              steps, {a + row * kStep, kTile, tiles_.data() + step},
              {b + column / kSide * panel + step * kTile, panel}, step > 0, kept, kBlock);
          if (step + steps == steps_) store(kept, top + row, some, column, columns, bias, out);
        }
      }
    }
  }

  /// Stores those of `count` rows of sums at which windows stand.
  void store(const float* sums, std::int64_t position, std::int64_t count, std::int64_t column,
             std::int64_t columns, const float* bias, Bits* out) const {
    const std::int64_t width = line_.width(), plane = line_.plane();
    const std::int64_t down = line_.rows.windows, across = line_.columns.windows;
    const std::int64_t windows = down * across;
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t place = (position + done) % plane, row = place / width,
                         first = place % width;
      const std::int64_t line = std::min(count - done, width - first);
      const std::int64_t some = row < down ? std::min(line, across - first) : 0;
      Bits* const to =
          out + (position + done) / plane * results_ * windows + (row * across + first) * kSide;
      for (std::int64_t c = 0; c < columns && some > 0; c += kSide) {
        instructions_.store_rounded(sums + done * kBlock + c, some, kSide,
                                    bias ? bias + column + c : nullptr, to + (column + c) * windows,
                                    kSide);
      }
      done += line;
    }
  }

  TileConvolution shape_;
  bool input_gradient_;
  const tiles::Instructions& instructions_;
  PaddedMaps line_;
  std::int64_t channels_, results_;
  std::int64_t steps_;  // tiles along all taps
  int threads_;
  std::int64_t rows_;                // of a thread at a time
  std::int64_t packed_rows_;         // of them and what their taps read
  std::vector<std::int64_t> order_;  // of taps in the ordered weights
  std::vector<std::int64_t> tiles_;  // where the tiles of a step begin
};

}  // namespace

bool padded_pass_pays(const TileConvolution& shape, bool input_gradient) {
  constexpr std::int64_t kMostWeights = 1 << 24;
  const std::int64_t channels = input_gradient ? shape.outputs : shape.inputs;
  if (shape.rows.stride != 1 || shape.columns.stride != 1 || shape.taps() == 1) return false;
  if (channels % kStep != 0 || shape.outputs * shape.inputs * shape.taps() > kMostWeights)
    return false;
  const PaddedMaps line(shape, input_gradient);
  // What a whole chunk packs beyond its own positions is less than half of what all taps read.
  return line.adds_few_zeros() &&
         2 * line.reach() <= (shape.taps() - 1) * tiles::ApartSizes::most_rows(channels);
}

std::unique_ptr<Kernel> make_padded_pass(const TileConvolution& shape, bool input_gradient,
                                         const tiles::Instructions& instructions) {
  PaddedPass pass(shape, input_gradient, instructions, omp_get_max_threads());
  const std::size_t bytes = pass.workspace_bytes();
  return make_kernel(
      [pass = std::move(pass)](std::span<const Tensor> in, std::span<const Tensor> out,
                               const RunContext& context) {
        pass.run(in[0].as<Bits>(), in[1].as<Bits>(), data_or_null<float>(in, 2), out[0].as<Bits>(),
                 context.workspace);
      },
      bytes);
}

}  // namespace pipetrain
