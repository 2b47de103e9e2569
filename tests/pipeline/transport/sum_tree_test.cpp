#include "pipeline/transport/sum_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace pipetrain {
namespace {

/// Numbers of very different sizes, so that every order of additions has other bits.
std::vector<std::vector<float>> parts_of(std::size_t parts, std::size_t count) {
  std::vector<std::vector<float>> out(parts, std::vector<float>(count));
  unsigned state = 12345;
  for (auto& part : out) {
    for (float& x : part) {
      state = state * 1664525U + 1013904223U;
      x = static_cast<float>(static_cast<int>(state >> 8) - (1 << 23)) *
          static_cast<float>(1 << (state % 20));
    }
  }
  return out;
}

std::vector<const float*> pointers(const std::vector<std::vector<float>>& parts) {
  std::vector<const float*> out;
  for (const auto& part : parts) out.push_back(part.data());
  return out;
}

TEST(SumTree, JoinsHalves) {
  constexpr std::size_t kCount = 2500;  // more than two blocks
  const auto p = parts_of(8, kCount);
  std::vector<float> sum(kCount);
  sum_as_tree(pointers(p), kCount, sum.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    const float left = (p[0][i] + p[4][i]) + (p[2][i] + p[6][i]);
    const float right = (p[1][i] + p[5][i]) + (p[3][i] + p[7][i]);
    ASSERT_EQ(sum[i], left + right) << i;
  }
}

TEST(SumTree, IsTheSameFromSumsOfReplicas) {
  constexpr std::size_t kCount = 100;
  const auto p = parts_of(8, kCount);
  std::vector<float> whole(kCount);
  sum_as_tree(pointers(p), kCount, whole.data());
  for (const std::size_t replicas : {1, 2, 4, 8}) {
    std::vector<std::vector<float>> sums(replicas, std::vector<float>(kCount));
    for (std::size_t r = 0; r < replicas; ++r) {
      std::vector<const float*> mine;
      for (std::size_t leaf = r; leaf < p.size(); leaf += replicas) mine.push_back(p[leaf].data());
      sum_as_tree(mine, kCount, sums[r].data());
    }
    std::vector<float> all(kCount);
    sum_as_tree(pointers(sums), kCount, all.data());
    EXPECT_EQ(all, whole) << replicas;
  }
}

TEST(SumTree, LeavesOutWhatIsNotThere) {
  const auto p = parts_of(4, 10);
  std::vector<float> sum(10), in_place = p[0];
  // A part that is left out is no zero: -0 stays -0.
  const std::vector<float> minus_zero(10, -0.0F);
  sum_as_tree(std::vector<const float*>{minus_zero.data(), nullptr}, 10, sum.data());
  for (const float x : sum) EXPECT_TRUE(std::signbit(x));
  sum_as_tree(std::vector<const float*>{in_place.data(), p[1].data(), p[2].data(), nullptr}, 10,
              in_place.data());
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(in_place[i], (p[0][i] + p[2][i]) + p[1][i]);
}

}  // namespace
}  // namespace pipetrain
