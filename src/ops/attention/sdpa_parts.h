// How attention is split into groups of samples, or of heads of one sample, for a smaller
// workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// The size of equal groups of `count` samples or heads that need about 1 / `times` of the
/// workspace. Each group must begin at a multiple of 16 bytes, as cuDNN's kernels expect; `floats`:
/// the float32 numbers of one sample or head. `count` if no smaller group does.
inline std::int64_t group_size(std::int64_t count, std::size_t times, std::int64_t floats) {
  const auto fits = [&](std::int64_t size) { return count % size == 0 && size * floats % 4 == 0; };
  const std::int64_t most = std::max<std::int64_t>(1, count / static_cast<std::int64_t>(times));
  for (std::int64_t size = most; size > 0; --size) {
    if (fits(size)) return size;
  }
  for (std::int64_t size = most + 1; size < count; ++size) {
    if (fits(size)) return size;
  }
  return count;
}

}  // namespace pipetrain
