// Counter-based random numbers: every number is a pure function of (seed, counter), so the results
// do not depend on order, thread or device. Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cmath>
#include <cstdint>

namespace pipetrain {

struct PhiloxKey {
  std::uint32_t word[2];
};
struct PhiloxBlock {
  std::uint32_t word[4];
};

constexpr PhiloxKey philox_key(std::uint64_t seed) {
  return {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
}

/// Ten rounds of Philox: 128 random bits for one counter. Plain and constexpr, so that kernels on
/// any device can call it.
constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53} * counter.word[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(odd >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(odd),
                static_cast<std::uint32_t>(even >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(even)}};
    key.word[0] += 0x9E3779B9;
    key.word[1] += 0xBB67AE85;
  }
  return counter;
}

/// Uniform in [0, 1), a multiple of 2^-24.
constexpr float uniform_float(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Uniform in [0, bound); 0 for bound 0. Multiplicative, biased by less than bound / 2^32.
constexpr std::uint32_t uniform_below(std::uint32_t bits, std::uint32_t bound) {
  return static_cast<std::uint32_t>((std::uint64_t{bits} * bound) >> 32);
}

struct NormalPair {
  float first;
  float second;
};

/// Two independent standard normal values from two random words (Box and Muller 1958); never
/// infinite.
inline NormalPair normal_pair(std::uint32_t a, std::uint32_t b) {
  const float radius = std::sqrt(-2.0f * std::log(static_cast<float>((a >> 8) + 1) * 0x1p-24f));
  const float angle = 6.28318530717958648f * uniform_float(b);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// A sequence of random numbers; `stream` distinguishes the sequences of one seed.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream)
      : key_(philox_key(seed)), stream_(philox_key(stream)) {}

  std::uint32_t next() {
    const auto lane = static_cast<std::uint32_t>(drawn_ & 3);
    if (lane == 0) {
      const PhiloxKey block = philox_key(drawn_ >> 2);
      block_ = philox(key_, {{block.word[0], block.word[1], stream_.word[0], stream_.word[1]}});
    }
    ++drawn_;
    return block_.word[lane];
  }
  /// Uniform in [0, 1).
  float uniform() { return uniform_float(next()); }
  /// Uniform in [0, bound).
  std::uint32_t below(std::uint32_t bound) { return uniform_below(next(), bound); }
  /// Standard normal; uses two random words per call.
  float normal() {
    const std::uint32_t a = next();
    return normal_pair(a, next()).first;
  }

 private:
  PhiloxKey key_;
  PhiloxKey stream_;
  PhiloxBlock block_{};
  std::uint64_t drawn_ = 0;
};

/// The index that a seeded shuffle of 0..count-1 has at `position`: for fixed (seed, epoch, count)
/// an exact permutation, computed without memory and in any order. Needs position < count. A
/// Feistel network over the next power of two, with cycle walking (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", 2002).
std::uint64_t shuffled_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                             std::uint64_t position);

}  // namespace pipetrain
