#include "train/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace pipetrain {
namespace {

std::map<TokenId, int> counts(const std::vector<float>& logits, SamplingOptions options) {
  std::map<TokenId, int> out;
  for (std::uint64_t i = 0; i < 20000; ++i) ++out[choose_token(logits, options, i)];
  return out;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.5f), std::log(0.15f),
                                    std::log(0.25f)};

TEST(ChooseToken, TheLikeliestTheFirstOfEqualOnes) {
  EXPECT_EQ(choose_token(kLogits, {}, 0), 1u);
  EXPECT_EQ(choose_token(std::vector<float>{1, 3, 3}, {}, 0), 1u);
}

TEST(ChooseToken, AsOftenAsTheirProbabilities) {
  SamplingOptions options;
  options.temperature = 1;
  const auto all = counts(kLogits, options);
  // 20,000 draws: a deviation of 0.0035 at most.
  for (TokenId id = 0; id < 4; ++id)
    EXPECT_NEAR(all.at(id) / 20000.0, std::exp(static_cast<double>(kLogits[id])), 0.018);
  options.temperature = 0.5;  // squares
  EXPECT_NEAR(counts(kLogits, options).at(1) / 20000.0, 0.25 / 0.345, 0.018);
}

TEST(ChooseToken, AmongTheLikeliest) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 2;
  const auto two = counts(kLogits, options);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two.at(1) / 20000.0, 0.5 / 0.75, 0.018);
  options.top_k = 0;
  options.top_p = 0.8;  // 0.5 + 0.25 are not enough
  EXPECT_EQ(counts(kLogits, options).size(), 3u);
  options.top_p = 0.7;
  EXPECT_EQ(counts(kLogits, options).size(), 2u);
  options.top_p = 1e-9;
  EXPECT_EQ(counts(kLogits, options).size(), 1u);
}

TEST(ChooseToken, ASeedRepeats) {
  SamplingOptions options;
  options.temperature = 1;
  std::vector<TokenId> first, second, other;
  for (std::uint64_t i = 0; i < 100; ++i) {
    first.push_back(choose_token(kLogits, options, i));
    second.push_back(choose_token(kLogits, options, i));
    SamplingOptions changed = options;
    changed.seed = 2;
    other.push_back(choose_token(kLogits, changed, i));
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
}

}  // namespace
}  // namespace pipetrain
