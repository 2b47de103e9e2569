#include "ops/conv/weight_blocks_cpu.h"

#include <algorithm>

#include "ops/kernel/vector8_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = 8;

/// Transposes eight columns (outputs) of eight rows (inputs and taps) into eight lines of `to`.
template <bool kAdd>
[[gnu::always_inline]] inline void put_square(const float* const (&rows)[kLanes], float* to,
                                              std::int64_t line) {
  Vector8 square[kLanes];
  for (int r = 0; r < kLanes; ++r) square[r] = load8(rows[r]);
  transpose(square);
  for (int r = 0; r < kLanes; ++r) {
    float* place = to + r * line;
    store8(place, kAdd ? load8(place) + square[r] : square[r]);
  }
}

/// Writes one block of channels to `to`, one line per output.
template <std::int64_t kBlock, bool kAdd>
void unblock(const float* block, std::int64_t outputs, std::int64_t inputs, std::int64_t taps,
             float* to, std::int64_t line) {
  const std::int64_t rows = inputs * taps;
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    for (std::int64_t half = 0; half < outputs; half += kLanes) {
      for (std::int64_t part = first; part < std::min(first + kBlock, rows); part += kLanes) {
        const float* places[kLanes];
        std::int64_t input = part / taps, tap = part % taps;
        for (const float*& row : places) {
          row = block + (tap * kBlock + input) * kBlock + half;
          if (++tap == taps) tap = 0, ++input;
        }
        put_square<kAdd>(places, to + half * line + part, line);
      }
    }
  }
}

}  // namespace

void unblock_weights(const WeightBlocks& shape, const float* blocked, bool add, float* weights,
                     int threads) {
  const std::int64_t size = shape.block, line = shape.inputs * shape.taps;
  const std::int64_t columns = (shape.inputs + size - 1) / size;
  const std::int64_t blocks = (shape.outputs + size - 1) / size * columns;
  const auto one = size == 16 ? add ? unblock<16, true> : unblock<16, false>
                   : add ? unblock<8, true>
                              : unblock<8, false>;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t output = i / columns * size, input = i % columns * size;
    one(blocked + i * size * size * shape.taps, std::min(size, shape.outputs - output),
        std::min(size, shape.inputs - input), shape.taps,
        weights + output * line + input * shape.taps, line);
  }
}

}  // namespace pipetrain
