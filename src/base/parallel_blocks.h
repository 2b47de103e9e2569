// Work on large memory by the calling thread's OpenMP team. Where pages are touched for the first
// time, the system's zeroing of them is most of the work (base/page_block.h).
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace pipetrain {

inline constexpr std::size_t kParallelBlock = std::size_t{4} << 20;

/// Threads that work on blocks at most, where several processes share cores. Set before other
/// threads begin.
inline int most_block_threads = std::numeric_limits<int>::max();

/// Calls `work(begin, count)` for blocks that together are `bytes` bytes: in any order, on several
/// threads. It must not throw.
template <class Work>
void in_parallel_blocks(std::size_t bytes, const Work& work) {
  const auto blocks = static_cast<std::int64_t>((bytes + kParallelBlock - 1) / kParallelBlock);
#ifdef _OPENMP
  const int threads = std::min(most_block_threads, omp_get_max_threads());
#endif
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (blocks > 1)
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::size_t begin = static_cast<std::size_t>(i) * kParallelBlock;
    work(begin, std::min(kParallelBlock, bytes - begin));
  }
}

/// memcpy() by the team.
inline void copy_in_parallel(void* to, const void* from, std::size_t bytes) {
  if (bytes <= kParallelBlock) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  in_parallel_blocks(bytes, [&](std::size_t begin, std::size_t count) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                count);
  });
}

}  // namespace pipetrain
