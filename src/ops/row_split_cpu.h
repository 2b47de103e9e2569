// How the rows of a product are divided among inner loops of up to six.
#pragma once

#include <cstdint>

namespace pipetrain {

/// Rows of the next inner loop, of `rest` that are left: six fill the registers; what is left over
/// is halved, since few rows wait for latency.
constexpr std::int64_t rows_together(std::int64_t rest) {
  return rest >= 12 || rest == 6 ? 6 : rest > 6 ? (rest + 1) / 2 : rest;
}

}  // namespace pipetrain
