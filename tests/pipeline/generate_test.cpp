#include "pipeline/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "example_programs.h"

namespace pipetrain {
namespace {

TEST(Generate, GoldenOneForwardOneBackward) {
  const Program program = generate(options_for("1f1b", 3, 4));
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(compute_text(program, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(compute_text(program, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  for (const auto& list : program.device) EXPECT_EQ(list.back().kind, Kind::kUpdate);
}

TEST(Generate, GoldenGpipeRunsBackwardsInUnitOrder) {
  const Program program = generate(options_for("gpipe", 2, 3));
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(compute_text(program, 1), "F0 F1 F2 B0 B1 B2");
}

TEST(Generate, GoldenRecomputeStandsBeforeEachBackward) {
  ScheduleOptions options = options_for("gpipe", 2, 2);
  options.recompute = {true, false};
  const Program program = generate(options);
  EXPECT_EQ(compute_text(program, 0), "F0 F1 R0 B0 R1 B1");
  EXPECT_EQ(compute_text(program, 1), "F0 F1 B0 B1");
  // What is kept is the inputs: one activation slot serves every unit.
  EXPECT_EQ(program.slots_per_stage, (std::vector<int>{1, 2}));
}

TEST(Generate, ForwardKeepsNothingAndUpdatesNothing) {
  ScheduleOptions options = options_for("forward", 3, 5);
  options.recompute = {true, true, true};
  const Program program = generate(options);
  EXPECT_EQ(compute_text(program, 1), "F0 F1 F2 F3 F4");
  EXPECT_EQ(program.device[1].size(), 5U);
  EXPECT_EQ(program.slots_per_stage, (std::vector<int>{1, 1, 1}));
}

TEST(Generate, GoldenPipedreamVersions) {
  const Program program = generate(options_for("pipedream", 2, 4));
  std::string text;
  for (const Instruction& instruction : program.device[0]) {
    text += to_text(program, instruction) + "@" + std::to_string(instruction.version) + " ";
  }
  EXPECT_EQ(text, "0F0@0 0F1@0 0B0@0 0U0@1 0F2@1 0B1@0 0U1@2 0F3@2 0B2@1 0U2@3 0B3@2 0U3@4 ");
}

TEST(Generate, PeaksFollowTheClosedForms) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 27; ++m) {
      const Program gpipe = generate(options_for("gpipe", p, m));
      const Program flush = generate(options_for("1f1b", p, m));
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(gpipe.slots_per_stage[static_cast<std::size_t>(s)], m);
        EXPECT_EQ(flush.slots_per_stage[static_cast<std::size_t>(s)], std::min(p - s, m));
        EXPECT_EQ(flush.versions_per_stage[static_cast<std::size_t>(s)], 1);
      }
    }
  }
}

TEST(Generate, PipedreamStashesAndLagsAsPublished) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Program program = generate(options_for("pipedream", p, m));
      const std::vector<int> lag = staleness(program);
      for (int s = 0; s < p; ++s) {
        const auto stage = static_cast<std::size_t>(s);
        EXPECT_EQ(program.versions_per_stage[stage], std::min(p - s, m));
        EXPECT_EQ(lag[stage], std::min(p - 1 - s, m - 1));
      }
    }
  }
  EXPECT_EQ(staleness(generate(options_for("1f1b", 4, 8))), (std::vector<int>{0, 0, 0, 0}));
}

TEST(Generate, WarmUpSetsPeakAndOrder) {
  ScheduleOptions options = options_for("1f1b", 3, 6);
  options.warm = {4, 2, 0};  // the eager form, 2(p-1-s)
  const Program program = generate(options);
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  EXPECT_EQ(program.slots_per_stage, (std::vector<int>{5, 3, 1}));
}

TEST(Generate, GradientSyncStandsBeforeTheUpdate) {
  ScheduleOptions options = options_for("1f1b", 2, 2);
  options.gradient_sync = true;
  const Program program = generate(options);
  for (const auto& list : program.device) {
    EXPECT_EQ(list[list.size() - 2].kind, Kind::kGradientSync);
    EXPECT_EQ(list[list.size() - 1].kind, Kind::kUpdate);
  }
}

std::string usage_error(const ScheduleOptions& options) {
  try {
    generate(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Generate, ErrorsSayWhatToDo) {
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(usage_error(options_for("1f1", 2, 2)), "did you mean '1f1b'");
  contains(usage_error(options_for("pipdream", 2, 2)), "did you mean 'pipedream'");
  const std::string unknown = usage_error(options_for("round-robin", 2, 2));
  EXPECT_EQ(unknown.find("did you mean"), std::string::npos);
  contains(unknown, "gpipe, 1f1b, pipedream, forward");
  contains(usage_error(options_for("gpipe", 0, 2)), "stages");
  contains(usage_error(options_for("gpipe", 2, 0)), "micro-batches");
  ScheduleOptions options = options_for("1f1b", 3, 4);
  options.warm = {0, 1, 0};
  contains(usage_error(options), "must not rise");
  options.warm = {1, 0};
  contains(usage_error(options), "warm-up is given for 2 stages");
  options.warm = {1, 0, -1};
  contains(usage_error(options), "negative");
  options = options_for("gpipe", 2, 2);
  options.warm = {1, 0};
  contains(usage_error(options), "no warm-up");
  options = options_for("gpipe", 2, 2);
  options.recompute = {true};
  contains(usage_error(options), "recompute is given for 1 stages");
  options = options_for("pipedream", 2, 2);
  options.gradient_sync = true;
  contains(usage_error(options), "synchronous schedule");
}

TEST(Generate, EveryScheduleOfTheTableCanBeMade) {
  for (const ScheduleDescription& schedule : schedules()) {
    EXPECT_EQ(generate(options_for(schedule.name, 2, 3)).rule, schedule.rule) << schedule.name;
    EXPECT_FALSE(schedule.summary.empty());
  }
}

}  // namespace
}  // namespace pipetrain
