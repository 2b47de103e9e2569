#include "pipeline/simulate/critical_path.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"

namespace pipetrain {
namespace {

CriticalPath path_of(const Program& program, const Costs& costs) {
  return critical_path(program, costs, simulate(program, costs).events);
}

double blamed(const CriticalPath& path, Cause cause, Phase phase, int stage) {
  double seconds = 0;
  for (const Blame& blame : path.blame) {
    if (blame.cause == cause && blame.phase == phase && blame.stage == stage) {
      seconds += blame.seconds;
    }
  }
  return seconds;
}

TEST(CriticalPath, ASlowLastStageIsToBlame) {
  const int m = 7;
  const Program program = lowered(options_for("1f1b", 2, m));
  Costs costs = uniform_costs(program, {1, 1});
  costs.stage[1].backward = 4;
  const CriticalPath path = path_of(program, costs);
  EXPECT_DOUBLE_EQ(path.makespan, 5 * m + 2);
  EXPECT_EQ(path.bottleneck, 1);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kCompute, Phase::kSteady, 1), 5 * m);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kCompute, Phase::kWarmUp, 0), 1);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kCompute, Phase::kDrain, 0), 1);
  EXPECT_EQ(to_text(program, path, 2),
            " 94.6 %     35.0 s  compute of stage 1\n"
            "  2.7 %     1.00 s  compute of stage 0 while the pipeline fills\n"
            "  2.7 %     1.00 s  compute of other stages while the pipeline drains (1)\n");
}

TEST(CriticalPath, OneMicroBatchMeetsEveryLink) {
  const Program program = lowered(options_for("gpipe", 3, 1));
  // One byte takes half a second on the wire and a quarter to arrive.
  const Costs costs = uniform_costs(program, {1, 2}, {0.25, 2});
  const CriticalPath path = path_of(program, costs);
  EXPECT_DOUBLE_EQ(path.makespan, 3 * 3 + 4 * 0.75);
  double links = 0;
  for (const Blame& blame : path.blame) links += blame.cause == Cause::kLink ? blame.seconds : 0;
  EXPECT_DOUBLE_EQ(links, 4 * 0.75);
}

TEST(CriticalPath, TheEndOfARoundIsBlamedByName) {
  ScheduleOptions options = options_for("1f1b", 1, 4);
  options.replicas = {2};
  options.gradient_sync = true;
  const Program program = generate(options);
  StageSeconds seconds;
  seconds.reduce = 5;
  seconds.update = 3;
  Costs costs = uniform_costs(program, seconds);
  costs.gradient_sync_seconds = 2;
  const CriticalPath path = path_of(program, costs);
  EXPECT_DOUBLE_EQ(path.makespan, 2 * 3 + 5 + 2 + 3);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kReduce, Phase::kSteady, 0), 5);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kSync, Phase::kSteady, -1), 2);
  EXPECT_DOUBLE_EQ(blamed(path, Cause::kUpdate, Phase::kSteady, 0), 3);
  EXPECT_EQ(to_text(program, path.blame[1]), "sum over the replicas of stage 0");
}

TEST(CriticalPath, IsAChainFromZeroToTheEndInEverySchedule) {
  std::mt19937 random(5);
  const auto pick = [&](unsigned most) { return 1 + static_cast<double>(random() % most) / 8; };
  std::vector<Program> programs = {chimera(4, 8), dual_pipe_v(2, 6).program};
  for (const ScheduleDescription& schedule : schedules()) {
    programs.push_back(
        generate(options_for(schedule.name, schedule.placement == Placement::kChain ? 3 : 4, 6)));
    if (!schedule.takes_replicas) continue;
    ScheduleOptions options = options_for(schedule.name, 3, 6);
    options.replicas = {2, 1, 3};
    programs.push_back(generate(options));
  }
  for (const Program& bare : programs) {
    const std::vector<Edge> edges = chain_edges(bare.stages, 1);
    for (const Program& program : {bare, lower(bare, edges)}) {
      for (int n = 0; n < 6; ++n) {
        Costs costs;
        for (int s = 0; s < program.stages; ++s) {
          costs.stage.push_back(
              {pick(16), pick(32), pick(16), pick(16), pick(16), pick(8), pick(8)});
        }
        costs.link = {n % 2 == 0 ? 0 : pick(8), n % 3 == 0 ? 1e9 : 1};
        for (const TransferMode mode : {TransferMode::kBuffered, TransferMode::kRendezvous}) {
          costs.transfers = mode;
          const Simulation result = simulate(program, costs);
          const CriticalPath path = critical_path(program, costs, result.events);
          ASSERT_FALSE(path.steps.empty());
          EXPECT_NEAR(path.makespan, result.makespan, 1e-9) << program.schedule;
          EXPECT_NEAR(path.steps.front().start, 0, 1e-9) << program.schedule;
          for (std::size_t i = 0; i + 1 < path.steps.size(); ++i) {
            EXPECT_NEAR(path.steps[i].end, path.steps[i + 1].start, 1e-9) << program.schedule;
          }
          double sum = 0;
          for (const Blame& blame : path.blame) {
            EXPECT_NE(blame.cause, Cause::kWait) << program.schedule;
            sum += blame.seconds;
          }
          EXPECT_NEAR(sum, result.makespan, 1e-9) << program.schedule;
        }
      }
    }
  }
}

TEST(CriticalPath, WhatItBlamesMakesTheRoundLonger) {
  const Program program = lowered(options_for("1f1b", 4, 8));
  Costs costs = uniform_costs(program, {1, 2}, {0.125, 8});
  costs.stage[2].backward = 2.5;
  const CriticalPath before = path_of(program, costs);
  for (int s = 0; s < 4; ++s) {
    double compute = 0;
    for (const Phase phase : {Phase::kWarmUp, Phase::kSteady, Phase::kDrain}) {
      compute += blamed(before, Cause::kCompute, phase, s);
    }
    Costs slower = costs;
    StageSeconds& stage = slower.stage[static_cast<std::size_t>(s)];
    stage.forward *= 1.5;
    stage.backward *= 1.5;
    EXPECT_GE(path_of(program, slower).makespan, before.makespan + compute / 2 - 1e-9);
  }
}

TEST(CriticalPath, RefusesOtherEvents) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  const Costs costs = uniform_costs(program, {});
  EXPECT_THROW(critical_path(program, costs, {}), Error);
}

}  // namespace
}  // namespace pipetrain
