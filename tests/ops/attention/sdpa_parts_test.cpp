#include "ops/attention/sdpa_parts.h"

#include <gtest/gtest.h>

namespace pipetrain::test {
namespace {

TEST(AttentionParts, AreAsSmallAsTheWorkspaceNeeds) {
  EXPECT_EQ(group_size(12, 2, 4), 6);
  EXPECT_EQ(group_size(12, 5, 4), 2);
  EXPECT_EQ(group_size(7, 2, 4), 1);  // a prime number has no other divisor
  EXPECT_EQ(group_size(12, 100, 4), 1);
}

TEST(AttentionParts, BeginAtMultiplesOf16Bytes) {
  EXPECT_EQ(group_size(12, 2, 129), 4);   // 6 * 129 * 4 bytes = 3096 = 193.5 * 16
  EXPECT_EQ(group_size(12, 2, 130), 6);   // 6 * 130 * 4 = 3120 = 195 * 16
  EXPECT_EQ(group_size(12, 12, 129), 4);  // larger than wanted: no smaller group is aligned
  EXPECT_EQ(group_size(6, 3, 129), 6);    // a group of 1, 2 or 3 is not
  EXPECT_EQ(group_size(6, 3, 0), 2);      // no such numbers
}

}  // namespace
}  // namespace pipetrain::test
