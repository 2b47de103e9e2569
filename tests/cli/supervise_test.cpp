#include "cli/commands/supervise.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

TEST(Supervise, AThreadThatWaitsForAFile) {
  EXPECT_TRUE(is_disk_wait("12 (device 0) D 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait("12 (device 0) S 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait("12 (a) D (b) R 1 12 12 0 -1"));
  EXPECT_TRUE(is_disk_wait("12 (a) R (b) D 1 12 12 0 -1"));
  EXPECT_FALSE(is_disk_wait(""));
}

}  // namespace
}  // namespace pipetrain
