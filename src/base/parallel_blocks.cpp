#include "base/parallel_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cores.h"

namespace pipetrain {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;
constexpr int kMostThreads = 16;  // more do not make memory faster

/// Threads that are started meanwhile may be refused.
class OptionalThreads {
 public:
  OptionalThreads() { threads_are_optional = true; }
  ~OptionalThreads() { threads_are_optional = before_; }
  OptionalThreads(const OptionalThreads&) = delete;
  OptionalThreads& operator=(const OptionalThreads&) = delete;

 private:
  const bool before_ = threads_are_optional;
};

}  // namespace

void in_parallel_blocks(std::size_t bytes,
                        const std::function<void(std::size_t begin, std::size_t count)>& work) {
  const std::size_t blocks = (bytes + kBlock - 1) / kBlock;
  std::atomic<std::size_t> next = 0;
  const auto run = [&] {
    for (std::size_t i = next++; i < blocks; i = next++)
      work(i * kBlock, std::min(kBlock, bytes - i * kBlock));
  };
  std::vector<std::thread> others;
  if (blocks > 1) {
    const int threads = std::min({available_cores(), most_block_threads, kMostThreads});
    others.reserve(kMostThreads);
    try {
      const OptionalThreads optional;
      for (int t = 1; t < threads && static_cast<std::size_t>(t) < blocks; ++t)
        others.emplace_back(run);
    } catch (const std::system_error&) {
      // The system allows no more threads: those that run do all of it.
    }
  }
  run();
  for (std::thread& other : others) other.join();
}

void copy_in_parallel(void* to, const void* from, std::size_t bytes) {
  if (bytes <= kBlock) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  in_parallel_blocks(bytes, [&](std::size_t begin, std::size_t count) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                count);
  });
}

}  // namespace pipetrain
