#include "cli/output/scalars.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pipetrain {
namespace {

// A device may have several stages, and a stage several devices.
TEST(Scalars, BusyTimesAreOfDevices) {
  StepReport report;
  report.stage_busy = {0.5, 0.25};
  const Scalars scalars = scalars_of(report);
  const auto value_of = [&](const char* tag) {
    const auto found = std::ranges::find(scalars, tag, &Scalars::value_type::first);
    return found != scalars.end() ? found->second : -1;
  };
  EXPECT_EQ(value_of("pipeline/device0/busy"), 0.5);
  EXPECT_EQ(value_of("pipeline/device1/busy"), 0.25);
  EXPECT_EQ(value_of("pipeline/stage0/busy"), -1);
}

}  // namespace
}  // namespace pipetrain
