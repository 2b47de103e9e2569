// How often checkpoints are written, and for how long a run may train, as they are given.
#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "train/saving.h"

namespace pipetrain {
namespace {

TEST(SaveEvery, KnowsItsUnits) {
  EXPECT_EQ(SaveEvery::parse("never").unit, SaveEvery::Unit::kNever);
  EXPECT_EQ(SaveEvery::parse("100steps").value, 100);
  EXPECT_EQ(SaveEvery::parse("2k").value, 2000);
  EXPECT_EQ(SaveEvery::parse("1.5Msteps").value, 1'500'000);
  EXPECT_EQ(SaveEvery::parse("0.5ep").unit, SaveEvery::Unit::kEpochs);
  EXPECT_EQ(SaveEvery::parse("10min").value, 600);
  EXPECT_EQ(parse_duration("--max-time", "1.5h"), 5400);
  for (const char* bad : {"", "x", "-1", "1.5", "3weeks", "nan", "1e999", "2kh", "1e12k"})
    EXPECT_THROW(SaveEvery::parse(bad), Error) << bad;
}

TEST(SaveEvery, CountsInThousandsAndMillionsButTakesNoSuchTimes) {
  EXPECT_EQ(SaveEvery::parse("2kep").value, 2000);
  EXPECT_EQ(SaveEvery::parse("10M").value, 10'000'000);
  for (const auto& [text, unit] : {std::pair("30M", "\"M\""), {"10Min", "\"Min\""}}) {
    try {
      parse_duration("--max-time", text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_NE(error.message().find(unit), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace pipetrain
