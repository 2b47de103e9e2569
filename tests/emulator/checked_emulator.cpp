// For the program that runs GPU kernels under AddressSanitizer: checks that the sanitizer is
// active.
#include <gtest/gtest.h>

#include "support/emulated_kernels.h"

namespace pipetrain {
namespace {

TEST(CheckedEmulator, SeesAKernelThatReadsBehindItsMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(test::emulated_read_behind_memory(), "heap-buffer-overflow");
}

}  // namespace
}  // namespace pipetrain
