// How a host waits for the launch on another one.
#include "processes/starter_watch.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

using State = StarterWatch::State;

TEST(StarterWatch, AnEndThatIsSeen) {
  StarterWatch watch;
  EXPECT_EQ(watch.look({}, false, 0), State::kRuns);
  EXPECT_EQ(watch.look({}, false, 500), State::kRuns);
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(watch.look(i, false, 501 + 5 * i), State::kRuns);
  EXPECT_EQ(watch.look(1'000, true, 5'501), State::kEnded);
}

TEST(StarterWatch, TheRecordOfAnEarlierLaunchIsNotThatOfThisOne) {
  StarterWatch watch;
  EXPECT_EQ(watch.look(7, true, 0), State::kRuns);
  EXPECT_EQ(watch.look(7, true, 30), State::kRuns);
  EXPECT_EQ(watch.look(8, false, 31), State::kRuns);
  EXPECT_EQ(watch.look(9, true, 40), State::kEnded);
}

// An end that is there already may be that of an earlier launch, while this one could not begin.
TEST(StarterWatch, ALaunchThatEndedBeforeAnybodyWaitedForIt) {
  StarterWatch watch;
  EXPECT_EQ(watch.look(7, true, 0), State::kRuns);
  EXPECT_EQ(watch.look(7, true, StarterWatch::kPatience), State::kRuns);
  EXPECT_EQ(watch.look(7, true, StarterWatch::kPatience + 1), State::kAbsent);
}

TEST(StarterWatch, ALaunchThatDies) {
  StarterWatch watch;
  EXPECT_EQ(watch.look(7, false, 0), State::kRuns);
  EXPECT_EQ(watch.look(8, false, 5), State::kRuns);
  EXPECT_EQ(watch.look(8, false, 5 + StarterWatch::kMostSilence), State::kRuns);
  EXPECT_EQ(watch.look(8, false, 6 + StarterWatch::kMostSilence), State::kSilent);
  // Its folder is deleted.
  StarterWatch gone;
  EXPECT_EQ(gone.look(7, false, 0), State::kRuns);
  EXPECT_EQ(gone.look({}, false, 5), State::kRuns);
  EXPECT_EQ(gone.look({}, false, 6 + StarterWatch::kMostSilence), State::kSilent);
}

TEST(StarterWatch, ALaunchThatNeverBegins) {
  for (const std::optional<std::int64_t> left :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(7)}) {
    StarterWatch watch;
    EXPECT_EQ(watch.look(left, false, 0), State::kRuns);
    EXPECT_EQ(watch.look(left, false, StarterWatch::kPatience), State::kRuns);
    EXPECT_EQ(watch.look(left, false, StarterWatch::kPatience + 1), State::kAbsent);
  }
}

}  // namespace
}  // namespace pipetrain
