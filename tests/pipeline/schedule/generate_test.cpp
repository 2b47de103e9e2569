#include "pipeline/schedule/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

TEST(Generate, GoldenOneForwardOneBackward) {
  const Program program = generate(options_for("1f1b", 3, 4));
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(compute_text(program, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(compute_text(program, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  for (const auto& list : program.device) EXPECT_EQ(list.back().kind, Kind::kUpdate);
}

TEST(Generate, GoldenGpipeRunsBackwardsInMicroBatchOrder) {
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
  // What is kept is the inputs: one activation slot serves every micro-batch.
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

TEST(Generate, WarmUpSetsPeakAndOrder) {
  ScheduleOptions options = options_for("1f1b", 3, 6);
  options.warm = {4, 2, 0};  // the eager form, 2(p-1-s)
  const Program program = generate(options);
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  EXPECT_EQ(program.slots_per_stage, (std::vector<int>{5, 3, 1}));
}

TEST(Generate, GoldenEager) {
  const Program program = generate(options_for("1f1b-eager", 3, 6));
  EXPECT_EQ(compute_text(program, 0), "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
  EXPECT_EQ(compute_text(program, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
}

TEST(Generate, GoldenInterleaved) {
  ScheduleOptions options = options_for("interleaved-1f1b", 4, 4);
  options.chunks = 2;
  const Program program = generate(options);
  EXPECT_EQ(program.devices, 2);
  EXPECT_EQ(program.placement, (std::vector<std::vector<int>>{{0}, {1}, {0}, {1}}));
  EXPECT_EQ(full_text(program, 0),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3 0U 2U");
  EXPECT_EQ(full_text(program, 1),
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 1U 3U");
  for (int p = 2; p <= 4; ++p) {
    for (int v = 1; v <= 3; ++v) {
      options = options_for("interleaved-1f1b", p * v, 2 * p);
      options.chunks = v;
      EXPECT_EQ(generate(options).device, interleaved(p, 2 * p, v).device);
    }
  }
}

TEST(Generate, GoldenZeroBubbleH1) {
  const Program program = generate(options_for("zb-h1", 3, 4));
  EXPECT_EQ(program.device, zero_bubble_h1().device);
  EXPECT_EQ(compute_text(program, 1), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
}

TEST(Generate, GoldenInterleavedZeroBubble) {
  const Program program = generate(options_for("interleaved-zb", 4, 8));
  EXPECT_EQ(full_text(program, 1),
            "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1F4 1I2 "
            "3W3 1F5 1I3 1W2 3F4 3I4 1W3 3F5 3I5 3W4 1F6 1I4 3W5 1F7 1I5 1W4 3F6 3I6 1W5 3F7 3I7 "
            "3W6 1I6 3W7 1I7 1W6 1W7 1U 3U");
}

TEST(Generate, GoldenZeroBubbleV) {
  const Program program = generate(options_for("zb-v", 4, 4));
  EXPECT_EQ(program.devices, 2);
  EXPECT_EQ(program.placement, (std::vector<std::vector<int>>{{0}, {1}, {1}, {0}}));
  EXPECT_EQ(full_text(program, 0),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 "
            "0W2 0I3 0W3 0U 3U");
}

TEST(Generate, RecomputeStandsBeforeTheInputGradient) {
  ScheduleOptions options = options_for("zb-h1", 2, 2);
  options.recompute = {true, true};
  EXPECT_EQ(compute_text(generate(options), 1), "F0 R0 I0 F1 R1 I1 W0 W1");
}

TEST(Generate, GoldenReplicasTakeTurns) {
  // PipeDream's plan 3-1: one micro-batch ahead on each of the three replicas, none on the last
  // stage.
  ScheduleOptions options = options_for("pipedream", 2, 7);
  options.replicas = {3, 1};
  const Program program = generate(options);
  EXPECT_EQ(program.devices, 4);
  EXPECT_EQ(program.placement, (std::vector<std::vector<int>>{{0, 1, 2}, {3}}));
  EXPECT_EQ(full_text(program, 0), "0F0 0F3 0B0 0A2 0U2 0F6 0B3 0A5 0U5 0B6 0A6 0U6");
  // No micro-batch of the last group: its update is made all the same.
  EXPECT_EQ(full_text(program, 1), "0F1 0F4 0B1 0A2 0U2 0B4 0A5 0U5 0A6 0U6");
  EXPECT_EQ(full_text(program, 3),
            "1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2 1F3 1B3 1U3 1F4 1B4 1U4 1F5 1B5 1U5 1F6 1B6 1U6");
  EXPECT_EQ(program.versions_per_stage, (std::vector<int>{2, 1}));
  EXPECT_EQ(program.slots_per_stage, (std::vector<int>{2, 1}));
}

// Replicas 0 and 2 are joined first, and so are 1 and 3.
TEST(Generate, ATreeOfSumsJoinsAdjacentDevicesFirst) {
  ScheduleOptions options = options_for("1f1b", 2, 8);
  options.replicas = {1, 4};
  options.sums_as_tree = true;
  const Program program = generate(options);
  EXPECT_EQ(program.placement, (std::vector<std::vector<int>>{{0}, {1, 3, 2, 4}}));
  EXPECT_EQ(full_text(program, 1), "1F0 1B0 1F4 1B4 1A 1U");
  EXPECT_EQ(full_text(program, 2), "1F2 1B2 1F6 1B6 1A 1U");
  EXPECT_EQ(full_text(program, 3), "1F1 1B1 1F5 1B5 1A 1U");
  check(lower(program, program.edges));
  std::vector<int> eight;
  for (int place = 0; place < 8; ++place) eight.push_back(replica_at(place, 8, /*in_tree=*/true));
  EXPECT_EQ(eight, (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
}

TEST(Generate, ReplicasReduceBeforeTheGradientSync) {
  ScheduleOptions options = options_for("1f1b", 2, 3);
  options.replicas = {1, 2};
  options.gradient_sync = true;
  const Program program = generate(options);
  EXPECT_EQ(full_text(program, 0), "0F0 0F1 0F2 0B0 0B1 0B2 G 0U");
  EXPECT_EQ(full_text(program, 1), "1F0 1B0 1F2 1B2 1A G 1U");
  EXPECT_EQ(full_text(program, 2), "1F1 1B1 1A G 1U");
}

TEST(Generate, MoreReplicasThanMicroBatches) {
  for (const char* name : {"gpipe", "1f1b", "pipedream"}) {
    ScheduleOptions options = options_for(name, 2, 2);
    options.replicas = {3, 1};
    const Program program = generate(options);
    EXPECT_EQ(full_text(program, 2), program.rule == UpdateRule::kSync ? "0A 0U" : "0A1 0U1");
  }
}

TEST(Generate, VersionsPerStageOfPublishedPlans) {
  const auto versions = [](std::vector<int> replicas) {
    ScheduleOptions options = options_for("pipedream", static_cast<int>(replicas.size()), 64);
    options.replicas = std::move(replicas);
    return generate(options).versions_per_stage;
  };
  EXPECT_EQ(versions({1, 1, 1, 1}), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(versions({3, 1}), (std::vector<int>{2, 1}));
  EXPECT_EQ(versions({15, 1}), (std::vector<int>{2, 1}));
}

TEST(Generate, GoldenDoubleBuffering) {
  ScheduleOptions options = options_for("pipedream-2bw", 2, 5);
  options.micro_batches_per_update = 2;
  const Program program = generate(options);
  EXPECT_EQ(full_text(program, 0), "0F0 0F1 0B0 0F2 0B1 0U1 0F3 0B2 0F4 0B3 0U3 0B4 0U4");
  std::string versions;
  for (const Instruction& instruction : program.device[0]) {
    versions += std::to_string(instruction.version);
  }
  EXPECT_EQ(versions, "0000010010213");  // 0F3 reads 0, 0F4 reads 1
}

TEST(Generate, MicroBatchesPerUpdateFitTheWarmUp) {
  EXPECT_EQ(generate(options_for("pipedream-2bw", 4, 8)).micro_batches_per_update, 4);
  ScheduleOptions options = options_for("pipedream-2bw", 4, 8);
  options.warm = {6, 4, 2, 0};
  EXPECT_EQ(generate(options).micro_batches_per_update, 6);
  options.warm.clear();
  options.replicas = {1, 1, 1, 7};
  EXPECT_EQ(generate(options).micro_batches_per_update, 9);
}

TEST(Generate, MemoryLimitsTheWarmUp) {
  ScheduleOptions options = options_for("1f1b-eager", 4, 16);
  options.memory_units = 3;
  EXPECT_EQ(generate(options).slots_per_stage, (std::vector<int>{3, 3, 3, 1}));
}

TEST(Generate, EvaluationRunsWhereTrainingDoes) {
  ScheduleOptions options = options_for("interleaved-1f1b", 4, 4);
  const Program loop = forward_program(generate(options), 3);
  EXPECT_EQ(full_text(loop, 0), "0F0 0F1 2F0 2F1 0F2 2F2");
  const Program v = forward_program(generate(options_for("v-half", 4, 4)), 3);
  EXPECT_EQ(full_text(v, 1), "1F0 1F1 2F0 2F1 1F2 2F2");
  options = options_for("1f1b", 2, 4);
  options.replicas = {2, 1};
  const Program replicated = forward_program(generate(options), 5);
  EXPECT_EQ(full_text(replicated, 0), "0F0 0F2 0F4");
  EXPECT_EQ(full_text(replicated, 1), "0F1 0F3");
  EXPECT_EQ(replicated.rule, UpdateRule::kNone);
  EXPECT_EQ(replicated.slots_per_stage, (std::vector<int>{1, 1}));
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

/// Text of a call that must fail.
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
  contains(unknown, "(known: gpipe, 1f1b, 1f1b-eager, 1f1b-auto, ");
  contains(usage_error(options_for("zb-h3", 2, 2)), "did you mean 'zb-h1'");
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
  options = options_for("interleaved-1f1b", 5, 4);
  contains(usage_error(options), "runs 2 stages on each device");
  options.chunks = 0;
  contains(usage_error(options), "1 to 5 chunks");
  contains(usage_error(options_for("zb-v", 3, 4)), "multiple of that, got 3");
  options = options_for("zb-h1", 2, 4);
  options.replicas = {2, 1};
  contains(usage_error(options), "cannot replicate");
  options = options_for("1f1b", 2, 4);
  options.replicas = {2};
  contains(usage_error(options), "replicas are given for 1 stages");
  options.replicas = {2, 0};
  contains(usage_error(options), "stage 1 needs 1 to");
  options = options_for("1f1b", 2, 4);
  options.replicas = {1, 2};
  options.warm = {1, 1};
  contains(usage_error(options), "stage 0 has 1 and stage 1 has 2");
  options = options_for("gpipe", 2, 4);
  options.memory_units = 3;
  contains(usage_error(options), "does not support a limit on the micro-batches held");
  options = options_for("1f1b", 2, 4);
  options.micro_batches_per_update = 3;
  contains(usage_error(options), "only pipedream-2bw");
  options = options_for("pipedream-2bw", 4, 8);
  options.micro_batches_per_update = 2;
  contains(usage_error(options), "at least 3 micro-batches per update");
  options = options_for("pipedream", 2, 2);
  options.gradient_sync = true;
  contains(usage_error(options), "synchronous schedule");
}

TEST(Generate, EveryScheduleOfTheTableCanBeMade) {
  for (const ScheduleDescription& schedule : schedules()) {
    const int per_device = stages_per_device(schedule.name, 2);
    const Program program = generate(options_for(schedule.name, 2 * per_device, 3));
    EXPECT_EQ(program.rule, schedule.rule) << schedule.name;
    EXPECT_EQ(program.devices, 2) << schedule.name;
    EXPECT_FALSE(schedule.summary.empty());
    bool split = false;
    for (const Instruction& i : program.device[0]) split |= i.kind == Kind::kBackwardWeight;
    EXPECT_EQ(split, schedule.splits_backward) << schedule.name;
    EXPECT_EQ(describe_schedule(schedule.name).summary, schedule.summary);
  }
  EXPECT_EQ(stages_per_device("interleaved-zb", 3), 3);
  EXPECT_EQ(stages_per_device("zb-v", 3), 2);
  EXPECT_EQ(stages_per_device("1f1b", 3), 1);
}

TEST(Generate, MemoryRulesOfRowsAreWhatProgramsHold) {
  int rules = 0;
  for (const ScheduleDescription& schedule : schedules()) {
    if (!schedule.memory) continue;
    ++rules;
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 13; ++m) {
        // An asynchronous pipeline has to be full first.
        const bool streams = is_asynchronous(schedule.rule);
        ScheduleOptions options = options_for(schedule.name, p, streams ? 3 * p + m : m);
        const Program program = generate(options);
        for (int s = 0; s < p; ++s) {
          const ScheduleLoad load = schedule_load(*schedule.memory, s, p, m);
          const auto stage = static_cast<std::size_t>(s);
          EXPECT_EQ(load.weight_versions, program.versions_per_stage[stage])
              << schedule.name << " p=" << p << " m=" << m << " stage " << s;
          if (schedule.balances_warm_up) {
            EXPECT_GE(load.in_flight, program.slots_per_stage[stage]);
            continue;
          }
          EXPECT_EQ(load.in_flight, program.slots_per_stage[stage])
              << schedule.name << " p=" << p << " m=" << m << " stage " << s;
        }
      }
    }
  }
  EXPECT_GE(rules, 8);
}

}  // namespace
}  // namespace pipetrain
