#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

namespace pipetrain {
namespace {

void expect_block(PhiloxBlock got, std::vector<std::uint32_t> want) {
  EXPECT_EQ(std::vector<std::uint32_t>(got.word, got.word + 4), want);
}

// Known answers that the authors publish with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  expect_block(philox({{0, 0}}, {{0, 0, 0, 0}}), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t ones = 0xffffffff;
  expect_block(philox({{ones, ones}}, {{ones, ones, ones, ones}}),
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_block(
      philox({{0xa4093822, 0x299f31d0}}, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}),
      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox({{0, 0}}, {{0, 0, 0, 0}}).word[0] == 0x6627e8d5);
  static_assert(philox_key(0x0123456789abcdef).word[1] == 0x01234567);
}

TEST(Uniform, StaysBelowOneAndBelowTheBound) {
  EXPECT_EQ(uniform_float(0), 0.0f);
  EXPECT_LT(uniform_float(0xffffffff), 1.0f);
  EXPECT_EQ(uniform_float(0x80000000), 0.5f);
  EXPECT_EQ(uniform_below(0xffffffff, 10), 9u);
  EXPECT_EQ(uniform_below(0, 10), 0u);
}

TEST(RandomStream, NormalHasTheMomentsOfTheNormalDistribution) {
  RandomStream stream(3, 4);
  const int count = 200000;
  double sum = 0, square = 0, fourth = 0;
  for (int i = 0; i < count; ++i) {
    const double x = stream.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  // Standard errors: 1 / sqrt(n), sqrt(2 / n), sqrt(96 / n); the bounds are above four of them.
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(square / count, 1, 0.015);
  EXPECT_NEAR(fourth / count, 3, 0.1);
}

TEST(RandomStream, StreamsAndSeedsDiffer) {
  const auto first = [](std::uint64_t seed, std::uint64_t stream) {
    return RandomStream(seed, stream).next();
  };
  EXPECT_EQ(first(1, 2), first(1, 2));
  EXPECT_NE(first(1, 2), first(1, 3));
  EXPECT_NE(first(1, 2), first(2, 2));
  EXPECT_NE(first(1, 2), first(1, 2 | std::uint64_t{1} << 40));
}

std::vector<std::uint64_t> shuffled(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count) {
  std::vector<std::uint64_t> out(count);
  for (std::uint64_t i = 0; i < count; ++i) out[i] = shuffled_index(seed, epoch, count, i);
  return out;
}

TEST(ShuffledIndex, IsAPermutationForEveryCount) {
  std::vector<std::uint64_t> counts = {1000, 1023, 1024, 1025, 65537, 100003};
  for (std::uint64_t count = 1; count <= 130; ++count) counts.push_back(count);
  for (std::uint64_t count : counts) {
    std::vector<std::uint64_t> got = shuffled(7, 3, count);
    std::sort(got.begin(), got.end());
    std::vector<std::uint64_t> want(count);
    std::iota(want.begin(), want.end(), 0);
    ASSERT_EQ(got, want) << "count " << count;
  }
}

TEST(ShuffledIndex, WorksBeyondFourBillion) {
  const std::uint64_t count = (std::uint64_t{1} << 40) + 5;
  EXPECT_LT(shuffled_index(1, 0, count, count - 1), count);
  EXPECT_NE(shuffled_index(1, 0, count, 0), shuffled_index(1, 0, count, count - 1));
}

TEST(ShuffledIndex, DependsOnSeedAndEpoch) {
  EXPECT_EQ(shuffled(1, 0, 50), shuffled(1, 0, 50));
  EXPECT_NE(shuffled(1, 0, 50), shuffled(1, 1, 50));
  EXPECT_NE(shuffled(1, 0, 50), shuffled(2, 0, 50));
}

// All orders of four items must be about equally frequent: chi square with 23 degrees of freedom
// is above 49.7 once in a thousand times.
TEST(ShuffledIndex, TakesEveryOrderEquallyOften) {
  std::map<std::vector<std::uint64_t>, int> seen;
  const int trials = 24000;
  for (int seed = 0; seed < trials; ++seed) ++seen[shuffled(seed, 0, 4)];
  EXPECT_EQ(seen.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, n] : seen) chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 49.7);
}

TEST(ShuffledIndex, PutsItemsEverywhereEquallyOften) {
  const int count = 10, trials = 20000;
  std::vector<int> seen(count * count);
  for (int epoch = 0; epoch < trials; ++epoch) {
    for (int i = 0; i < count; ++i) ++seen[i * count + shuffled_index(5, epoch, count, i)];
  }
  // 81 degrees of freedom: above 126 once in a thousand times.
  double chi_square = 0;
  for (int n : seen) chi_square += (n - 2000.0) * (n - 2000.0) / 2000.0;
  EXPECT_LT(chi_square, 126);
}

}  // namespace
}  // namespace pipetrain
