#include "cli/output/time_shares.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

TEST(QuickestRound, IsNotTheOneThatWarmsUp) {
  QuickestRound quickest;
  EXPECT_EQ(quickest.times().micro_batches, 0);
  quickest.add({{4.0, 5.0}, 2}, 1.0);
  quickest.add({{1.0, 2.0}, 2}, 0.5);
  quickest.add({{1.5, 2.0}, 2}, 0.25);
  EXPECT_EQ(quickest.times().seconds, (std::vector<double>{1.0, 2.0}));
  EXPECT_EQ(quickest.update_seconds(), 0.5);
}

TEST(QuickestRound, IsAsLongAsTheFirst) {
  QuickestRound quickest;
  quickest.add({{4.0}, 2}, 0);
  quickest.add({{1.0}, 1}, 0);  // the short one at the end of an epoch
  quickest.add({{3.0}, 2}, 0);
  EXPECT_EQ(quickest.times().seconds, std::vector<double>{3.0});
}

}  // namespace
}  // namespace pipetrain
