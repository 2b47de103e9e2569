#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace pipetrain {
namespace {

TEST(Units, BytesHaveThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(19661), "19.2 KiB");
  EXPECT_EQ(bytes_text(512 * 1024), "512 KiB");
  EXPECT_EQ(bytes_text(1024 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(bytes_text(std::size_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::size_t>::max()), "16.0 EiB");
}

TEST(Units, SecondsHaveThreeDigits) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(2.5e-9), "2.50 ns");
  EXPECT_EQ(seconds_text(3.2e-6), "3.20 us");
  EXPECT_EQ(seconds_text(0.0141), "14.1 ms");
  EXPECT_EQ(seconds_text(0.9999), "1.00 s");
  EXPECT_EQ(seconds_text(250), "250 s");
  EXPECT_EQ(seconds_text(std::numeric_limits<double>::infinity()), "unknown");
}

}  // namespace
}  // namespace pipetrain
