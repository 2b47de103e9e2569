// What stages share when they are threads of one machine, measured: memory, hand-overs between two
// threads, sums over all of them, and how fast each multiplies matrices while the others do.
#pragma once

#include <cstddef>
#include <functional>

namespace pipetrain {

/// How one thread hands memory to another, in order of units 0, 1, …; the receiver is done with a
/// unit when it receives the next one.
struct ThreadLink {
  std::function<void(int unit, const std::byte* memory)> send;
  std::function<const std::byte*(int unit)> receive;
};

/// Makes a fresh link.
using MakeThreadLink = std::function<ThreadLink()>;

/// Bytes per second that each of `threads` threads copies at the same time, from memory to memory,
/// in blocks that no cache holds. (A byte copied is read once and written once.)
double measure_memory_copy(int threads);

/// Floating-point operations per second of each of `threads` threads, in single-precision products
/// of square matrices that fit into a cache.
double measure_matrix_product(int threads);

/// The same of so many threads together, measured once: kept where profiles are, with `cache`.
double matrix_product_rate(int threads, bool cache);

/// Seconds from a send until the other thread, which sleeps, has received: half the median round
/// trip of two threads that do nothing else.
double measure_hand_over(const MakeThreadLink& make);

/// Bytes per second at which a thread copies what another one has just written and handed over, in
/// blocks of this size. Small ones come out of the other one's cache.
double measure_copy_between_threads(const MakeThreadLink& make,
                                    std::size_t block_bytes = std::size_t{8} << 20);

/// Seconds in which `threads` threads, each with a buffer of this size, bring the sum of all
/// buffers into each: every thread sums its part of all, then copies the others' parts.
double measure_all_reduce(int threads, std::size_t bytes);

/// The bandwidth of links that would take as long for it in a ring: 2 (n - 1) / n of the bytes over
/// each link. 0 for one thread.
double ring_bytes_per_second(int threads, std::size_t bytes, double seconds);

}  // namespace pipetrain
