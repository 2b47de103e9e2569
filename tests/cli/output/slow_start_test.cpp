#include "cli/output/slow_start.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

/// What is said in so many steps, each with its number; `seconds` are of all steps but the first.
std::string said(SlowStart start, double seconds, int steps) {
  std::string out = start.add(5);
  for (int step = 2; step <= steps; ++step) {
    const std::string text = start.add(seconds);
    if (!text.empty()) out += std::to_string(step) + ": " + text;
  }
  return out;
}

TEST(SlowStart, SpeaksOnceBehindTheFirstSteps) {
  EXPECT_EQ(said({0.05, 2}, 0.6, 50),
            "6: steps take 12 times as long as predicted: other programs may use the cores, and 2 "
            "threads wait for each other; try --threads 1");
  EXPECT_EQ(said({0.05, 1}, 0.6, 50),
            "6: steps take 12 times as long as predicted: other programs may use the cores");
}

TEST(SlowStart, IsQuietWhereAPredictionHoldsOrIsNotKnown) {
  EXPECT_EQ(said({0.31, 2}, 0.6, 50), "");
  EXPECT_EQ(said({0, 2}, 0.6, 50), "");
  EXPECT_EQ(said({0.05, 2}, 0.6, 5), "") << "too few steps";
}

}  // namespace
}  // namespace pipetrain
