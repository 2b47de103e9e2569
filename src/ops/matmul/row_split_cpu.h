// How the rows of a product are divided among micro-kernel calls.
#pragma once

#include <cstdint>

namespace pipetrain {

constexpr int kMostRows =
    6;  // of an inner loop: with two vectors of 8 each they fill the registers
constexpr int kMostWideRows = 16;  // with one vector of 16 each

/// Rows of the next micro-kernel call, of `rest` remaining: six fill the registers; a remainder is
/// halved, since very few rows cannot hide latency.
constexpr std::int64_t rows_together(std::int64_t rest) {
  return rest >= 2 * kMostRows || rest == kMostRows ? kMostRows
         : rest > kMostRows                         ? (rest + 1) / 2
                                                    : rest;
}

/// The same with AVX-512: split as evenly as possible.
constexpr std::int64_t wide_rows_together(std::int64_t rest) {
  const std::int64_t loops = (rest + kMostWideRows - 1) / kMostWideRows;
  return (rest + loops - 1) / loops;
}

}  // namespace pipetrain
