#include "base/random.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace pipetrain {

namespace {

// Eight rounds: four make a pseudorandom permutation of a large domain, small ones need more.
constexpr std::uint32_t kRounds = 8;
// Separates the shuffle's random numbers from those of a RandomStream with the same seed.
constexpr std::uint32_t kShuffle = 0x73687566;

struct Feistel {
  PhiloxKey key;
  std::uint64_t epoch;
  int low_bits;
  int high_bits;

  // Each round adds a keyed hash of one half to the other half, so it is invertible.
  std::uint64_t operator()(std::uint64_t value) const {
    const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
    const std::uint64_t high_mask = (std::uint64_t{1} << high_bits) - 1;
    std::uint64_t low = value & low_mask;
    std::uint64_t high = value >> low_bits;
    for (std::uint32_t round = 0; round < kRounds; round += 2) {
      low ^= hash(high, round) & low_mask;
      high ^= hash(low, round + 1) & high_mask;
    }
    return high << low_bits | low;
  }

  std::uint64_t hash(std::uint64_t half, std::uint32_t round) const {
    const PhiloxKey when = philox_key(epoch);
    const PhiloxBlock block = philox(
        key, {{static_cast<std::uint32_t>(half), when.word[0], when.word[1], kShuffle + round}});
    return std::uint64_t{block.word[1]} << 32 | block.word[0];
  }
};

}  // namespace

std::uint64_t shuffled_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                             std::uint64_t position) {
  assert(position < count);
  if (count < 2) return 0;
  const int bits = std::max(2, static_cast<int>(std::bit_width(count - 1)));
  const Feistel permute{philox_key(seed), epoch, bits / 2, bits - bits / 2};
  // Cycle walking: the cycle starts below count, so it returns below count.
  std::uint64_t index = permute(position);
  while (index >= count) index = permute(index);
  return index;
}

}  // namespace pipetrain
