#include "device/gpu_capability.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

TEST(GpuCapability, MachineCodeRunsOnLaterMinorVersions) {
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {9, 0}})
    EXPECT_TRUE(has_kernels_for("80-real,90-real", major, minor)) << major << minor;
  for (const auto& [major, minor] : {std::pair(7, 5), {10, 0}, {12, 0}})
    EXPECT_FALSE(has_kernels_for("80-real,90-real", major, minor)) << major << minor;
  EXPECT_FALSE(has_kernels_for("86-real", 8, 0));
  EXPECT_TRUE(has_kernels_for("90a-real", 9, 0));
  EXPECT_FALSE(has_kernels_for("100a-real", 10, 3));
  EXPECT_EQ(capabilities_text("80-real,90-real"), "8.0, 9.0");
}

TEST(GpuCapability, ReleasesRunOnEveryGpuSinceTuring) {
  const char* const release = "75-real,80-real,90-real,120-real,120-virtual";
  EXPECT_FALSE(has_kernels_for(release, 7, 0));
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 7}, {9, 0}, {12, 1}, {13, 0}})
    EXPECT_TRUE(has_kernels_for(release, major, minor)) << major << minor;
  EXPECT_FALSE(has_kernels_for(release, 10, 0));
  EXPECT_EQ(capabilities_text(release), "7.5, 8.0, 9.0, 12.0 and newer");
}

TEST(GpuCapability, WithoutASuffixItIsBoth) {
  EXPECT_TRUE(has_kernels_for("75", 9, 0));
  EXPECT_FALSE(has_kernels_for("75", 7, 0));
  EXPECT_EQ(capabilities_text("75"), "7.5 and newer");
  EXPECT_TRUE(has_kernels_for("native", 7, 0));
}

}  // namespace
}  // namespace pipetrain
