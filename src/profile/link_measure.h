// Measures communication between threads of one machine: memory bandwidth, latency and bandwidth
// between two threads, all-reduce, and the matmul rate under full load.
#pragma once

#include <cstddef>
#include <functional>

namespace pipetrain {

/// A link between two threads: messages are sent in order 0, 1, …; the receiver releases a message
/// when it receives the next one.
struct ThreadLink {
  std::function<void(int unit, const std::byte* memory)> send;
  std::function<const std::byte*(int unit)> receive;
};

/// Makes a fresh link.
using MakeThreadLink = std::function<ThreadLink()>;

/// Bytes per second that each of `threads` threads copies concurrently, in blocks larger than the
/// caches. (A byte copied is read once and written once.)
double measure_memory_copy(int threads);

/// Floating-point operations per second of each of `threads` threads, in single-precision products
/// of square matrices that fit into a cache.
double measure_matrix_product(int threads);

/// The total of this many threads, cached with the profiles if `cache` is set.
double matrix_product_rate(int threads, bool cache);

/// Seconds from a send until the other thread, which sleeps, has received: half the median round
/// trip of two threads that do nothing else.
double measure_hand_over(const MakeThreadLink& make);

/// The time from notifying a sleeping thread until it runs.
struct WakeSeconds {
  double idle_core = 0;  // on another core, which is idle
  double notify = 0;     // the part of that during which the notifying thread is blocked
  double same_core = 0;  // on the core of the notifying thread, once that thread leaves it
};

/// Measures them with two threads on cores of this process; cached with the profiles if `cache` is
/// set. With a single core notifying takes nothing, and the others are the same.
WakeSeconds measure_wakes(bool cache);
/// Takes them out of the cache.
void forget_wakes();

/// Bytes per second at which a thread copies what another one has just written and handed over, in
/// blocks of this size. Small blocks come from the other core's cache.
double measure_copy_between_threads(const MakeThreadLink& make,
                                    std::size_t block_bytes = std::size_t{8} << 20);

/// Seconds in which `threads` threads, each with a buffer of this size, bring the sum of all
/// buffers into each: every thread sums its part of all, then copies the others' parts.
double measure_all_reduce(int threads, std::size_t bytes);

/// The bandwidth of links that would take as long for it in a ring: 2 (n - 1) / n of the bytes over
/// each link. 0 for one thread.
double ring_bytes_per_second(int threads, std::size_t bytes, double seconds);

}  // namespace pipetrain
