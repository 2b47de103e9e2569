// Work on large memory by several threads. Where pages are touched for the first time, the system's
// zeroing of them is most of the work (base/page_block.h).
//
// The threads end with the work. OpenMP's would stay, and if OpenMP has more threads than there are
// cores, all of them sleep between kernels instead of spinning, those of the stages, too.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>

namespace pipetrain {

/// Threads that work on blocks at most, where several processes share cores. Set before other
/// threads begin.
inline int most_block_threads = std::numeric_limits<int>::max();

/// Whether this thread goes on where another one cannot be started.
inline thread_local bool threads_are_optional = false;

/// Calls `work(begin, count)` for blocks that together are `bytes` bytes: in any order, on as many
/// threads as the caller has cores. It must not throw.
void in_parallel_blocks(std::size_t bytes,
                        const std::function<void(std::size_t begin, std::size_t count)>& work);

/// memcpy() by these threads.
void copy_in_parallel(void* to, const void* from, std::size_t bytes);

}  // namespace pipetrain
