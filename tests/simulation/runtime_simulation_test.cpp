// The runtime under simulated threads: whatever the order in which they run, a step has the bits of
// the oracle, a failure is reported as it was thrown, and nobody waits for ever.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "pipeline/schedule/generate.h"
#include "simulation/pipelines.h"
#include "simulation/seeds.h"

namespace pipetrain::simulation {
namespace {

constexpr Faults kStops = {.switches_per_stop = 200};

std::vector<PipelineCase> synchronous_cases() {
  std::vector<PipelineCase> out;
  for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
    for (const ScheduleDescription& schedule : schedules()) {
      if (schedule.rule != UpdateRule::kSync) continue;
      for (const int stages : {2, 4}) {
        // Interleaved schedules take micro-batches in groups of their devices.
        const int few = schedule.placement == Placement::kLoop ? 4 : 3;
        for (int k = 0; k < 8; ++k) {
          const bool recomputes = k % 4 == 1 && !schedule.splits_backward;
          out.push_back({.schedule = schedule.name,
                         .stages = stages,
                         .backend = backend,
                         .difficult = k == 7,
                         .tied = k % 2 == 1,
                         .clip = k % 4 >= 2,
                         .recompute = recomputes,
                         .micro_batches = k % 3 == 2 ? 2 * few : few});
        }
        if (!schedule.takes_replicas) continue;
        out.push_back({.schedule = schedule.name, .stages = 1, .backend = backend, .replicas = {2}});
        out.push_back({.schedule = schedule.name,
                       .backend = backend,
                       .tied = true,
                       .replicas = {2, 2},
                       .micro_batches = 8});
        out.push_back({.schedule = schedule.name,
                       .backend = backend,
                       .difficult = true,
                       .replicas = {3, 1}});
      }
    }
  }
  return out;
}

std::vector<PipelineCase> asynchronous_cases() {
  std::vector<PipelineCase> out;
  for (const ScheduleDescription& schedule : schedules()) {
    if (!is_asynchronous(schedule.rule)) continue;
    for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
      for (const int stages : {2, 3, 4}) {
        out.push_back({.schedule = schedule.name, .stages = stages, .backend = backend, .micro_batches = 6});
      }
      if (!schedule.takes_replicas) continue;
      out.push_back({.schedule = schedule.name, .backend = backend, .replicas = {2, 1}, .micro_batches = 6});
    }
  }
  return out;
}

/// What a program's sends, receives and passes leave behind after some steps.
std::string train(Runtime& runtime, const SimulatedPipeline& pipeline, int steps) {
  test::FixedData data = pipeline.data();
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    pipeline.set_step(data, step);
    runtime.run(pipeline.program(), data);
    losses.push_back(SimulatedPipeline::loss(data));
  }
  return pipeline.bits(runtime, losses);
}

void expect_bits(const SimulatedPipeline& pipeline, int steps, const std::string& bits) {
  EXPECT_TRUE(bits == pipeline.expected(steps)) << "other bits than the oracle's: " << pipeline.describe();
}

Outcome train_simulated(const SimulatedPipeline& pipeline, std::uint64_t seed, int steps) {
  std::string bits;
  const Outcome outcome = simulate(seed, kStops, [&] {
    Runtime runtime(pipeline.variants(), {&pipeline.program()}, pipeline.options());
    bits = train(runtime, pipeline, steps);
  });
  expect_bits(pipeline, steps, bits);
  return outcome;
}

TEST(Simulation, StepsHaveTheBitsOfTheOracle) {
  Pipelines pipelines(synchronous_cases());
  under_seeds(2'000, [&](std::uint64_t seed) { return train_simulated(pipelines.of(seed), seed, 2); });
}

TEST(Simulation, AsynchronousRoundsHaveTheBitsOfTheOracle) {
  Pipelines pipelines(asynchronous_cases());
  under_seeds(1'000, [&](std::uint64_t seed) { return train_simulated(pipelines.of(seed), seed, 1); });
}

TEST(Simulation, ASeedGivesTheSameRun) {
  const SimulatedPipeline pipeline({.stages = 4, .backend = Backend::kCpu});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    train_simulated(pipeline, seed, 1);  // prepares what a process prepares once
    const Outcome first = train_simulated(pipeline, seed, 1);
    const Outcome second = train_simulated(pipeline, seed, 1);
    EXPECT_EQ(first.switches, second.switches);
    EXPECT_EQ(first.seconds, second.seconds);
    EXPECT_GT(first.switches, 20U);
  }
}

// The first failure ends the round with its own sentence, and the runtime can be used again.
TEST(Simulation, AFailureEndsTheRoundAndNothingElse) {
  Pipelines pipelines(synchronous_cases());
  under_seeds(2'000, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = pipelines.of(seed);
    std::string error;
    std::string bits;
    bool failed = false;
    const Outcome outcome = simulate(seed, kStops, [&] {
      Runtime runtime(pipeline.variants(), {&pipeline.program()}, pipeline.options());
      std::vector<StageContent> before;
      for (int s = 0; s < runtime.stages(); ++s) before.push_back(runtime.content(s));
      test::FixedData data = pipeline.data();
      pipeline.set_step(data, 0);
      FailingOnce failing(data, static_cast<int>(draw(12)), draw(2) == 0);
      try {
        runtime.run(pipeline.program(), failing);
      } catch (const Error& thrown) {
        error = thrown.message();
      }
      failed = failing.has_failed();
      for (int s = 0; s < runtime.stages(); ++s) runtime.restore(s, before[static_cast<std::size_t>(s)]);
      bits = train(runtime, pipeline, 1);
    });
    EXPECT_EQ(error, failed ? "a sample is damaged" : "") << pipeline.describe();
    expect_bits(pipeline, 1, bits);
    return outcome;
  });
}

}  // namespace
}  // namespace pipetrain::simulation
