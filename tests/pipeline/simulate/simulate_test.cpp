// What the simulator says of a program: closed forms, golden numbers, and each kind of cost alone.
#include "pipeline/simulate/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "pipeline/simulate/timeline.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

Costs costs_of(const Program& program, double f, double b, const LinkCost& link = {}) {
  return uniform_costs(program, {f, b, b / 2, b / 2, f, 0}, link);
}

TEST(Simulate, MakespanPeakAndBubbleFollowTheClosedForms) {
  for (const auto& [f, b] : {std::pair{1.0, 1.0}, {1.0, 2.0}, {3.0, 2.0}, {2.0, 7.0}}) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 27; ++m) {
        for (const char* name : {"gpipe", "1f1b"}) {
          const Program program = generate(options_for(name, p, m));
          const Simulation result = simulate(program, costs_of(program, f, b));
          EXPECT_DOUBLE_EQ(result.makespan, (m + p - 1) * (f + b)) << name << p << " " << m;
          EXPECT_DOUBLE_EQ(result.period, (m + p - 1) * (f + b)) << name << p << " " << m;
          EXPECT_NEAR(result.bubble, (p - 1.0) / (m + p - 1.0), 1e-12);
          for (int s = 0; s < p; ++s) {
            const auto stage = static_cast<std::size_t>(s);
            const int peak = std::string(name) == "gpipe" ? m : std::min(p - s, m);
            EXPECT_EQ(result.peak_live[stage], peak);
            EXPECT_DOUBLE_EQ(result.busy[stage], m * (f + b));
            EXPECT_DOUBLE_EQ(result.idle[stage], (p - 1) * (f + b));
          }
        }
        const Program stash = generate(options_for("pipedream", p, m));
        EXPECT_DOUBLE_EQ(simulate(stash, costs_of(stash, f, b)).makespan, (m + p - 1) * (f + b));
        const Program forward = generate(options_for("forward", p, m));
        EXPECT_DOUBLE_EQ(simulate(forward, costs_of(forward, f, b)).makespan, (m + p - 1) * f);
      }
    }
  }
}

TEST(Simulate, TransfersThatCostNothingChangeNothing) {
  for (const char* name : {"gpipe", "1f1b", "pipedream", "forward"}) {
    const Program bare = generate(options_for(name, 5, 9));
    const Program full = lowered(options_for(name, 5, 9));
    const double expected = simulate(bare, costs_of(bare, 1, 2)).makespan;
    EXPECT_DOUBLE_EQ(simulate(full, costs_of(full, 1, 2)).makespan, expected) << name;
  }
}

TEST(Simulate, GoldenNumbersOfLargerSchedules) {
  const Program four = generate(options_for("1f1b", 4, 8));
  EXPECT_DOUBLE_EQ(simulate(four, costs_of(four, 1, 2)).makespan, 33);
  const Program eight = generate(options_for("gpipe", 8, 32));
  EXPECT_DOUBLE_EQ(simulate(eight, costs_of(eight, 1, 2)).makespan, 117);
  // Interleaved: (p-1)(f+b)/v over the work, with f and b of a whole device.
  for (const auto& [p, m, v] : {std::tuple{4, 8, 2}, {4, 8, 4}, {4, 16, 2}, {2, 6, 3}}) {
    const Program program = interleaved(p, m, v);
    const double expected = 3.0 * m + 3.0 * (p - 1) / v;
    EXPECT_NEAR(simulate(program, costs_of(program, 1.0 / v, 2.0 / v)).makespan, expected, 1e-9);
  }
  // Zero-bubble H1: 3m + p - 1 under unit costs.
  const Program split = zero_bubble_h1();
  EXPECT_DOUBLE_EQ(simulate(split, costs_of(split, 1, 2)).makespan, 3 * 4 + 3 - 1);
}

/// One core, so the devices run one after the other, and each hand-over switches threads.
TEST(Simulate, DevicesOfOneCoreTakeTurns) {
  const Program program = lowered(options_for("gpipe", 2, 1));
  Costs costs = costs_of(program, 1, 2);
  costs.cores = {.core = {0, 0}, .wake_seconds = 0.5, .switch_seconds = 0.125};
  // wake · F0 · switch · F1 · B1 · switch · B0
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 0.5 + 1 + 0.125 + 1 + 2 + 0.125 + 2);
}

TEST(Simulate, ADeviceThatWaitedIsWokenOnItsCore) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  Costs costs = costs_of(program, 1, 2);
  costs.cores = {.core = {0, 1}, .wake_seconds = 0.25, .switch_seconds = 0.125};
  // Device 0: wake · F0 F1 · waits for B0, which ends at 1.25 + wake + 1 + 2 · wake · B0 · then B1
  // is there since 4.5 + 1 + 2 = 7.5: 4.5 + 0.25 + 2 = 6.75 is before, so once more a wake · B1.
  const Simulation result = simulate(program, costs);
  EXPECT_DOUBLE_EQ(result.events[1][1].start, 1.25 + 0.25);
  EXPECT_DOUBLE_EQ(result.makespan, 7.5 + 0.25 + 2);
}

/// A sender stands still while it wakes a receiver, but not for one that computes.
TEST(Simulate, WhoWakesAnotherDeviceStandsStill) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  Costs costs = costs_of(program, 1, 2);
  costs.cores = {.core = {0, 1}, .wake_seconds = 0.25, .notify_seconds = 0.125};
  const Simulation result = simulate(program, costs);
  // Device 0: wake · F0, until 1.25, wakes device 1 · F1, from 1.375 to 2.375, while device 1
  // computes from 1.25 + wake on: F0 until 2.5, B0 until 4.5, wakes device 0 until 4.625.
  const auto start_of = [&](int device, Kind kind, int micro_batch) {
    const auto& list = program.device[static_cast<std::size_t>(device)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == kind && list[i].micro_batch == micro_batch)
        return result.events[static_cast<std::size_t>(device)][i].start;
    }
    return -1.0;
  };
  EXPECT_DOUBLE_EQ(start_of(0, Kind::kForward, 1), 1.375);
  EXPECT_DOUBLE_EQ(start_of(1, Kind::kForward, 0), 1.5);
  EXPECT_DOUBLE_EQ(start_of(1, Kind::kForward, 1), 4.625);
  EXPECT_DOUBLE_EQ(start_of(0, Kind::kBackward, 0), 4.75);
  // Device 1 is done with B1 at 7.625, when device 0 has waited since 6.75.
  EXPECT_DOUBLE_EQ(start_of(0, Kind::kBackward, 1), 7.625 + 0.25);
}

/// Two of three stages begin on one core: the second one is woken while the first one computes.
TEST(Simulate, WokenDevicesTakeIdleCores) {
  const Program program = lowered(options_for("gpipe", 3, 4));
  Costs costs = costs_of(program, 1, 2);
  costs.cores.core = {0, 0, 1};
  const double bound = simulate(program, costs).makespan;
  EXPECT_GE(bound, 24);  // 2 x 4 x 3 seconds on core 0
  costs.cores.moves = true;
  const Simulation moving = simulate(program, costs);
  EXPECT_LT(moving.makespan, bound);
  EXPECT_GE(moving.makespan, 3 * 12.0 / 2);
  EXPECT_DOUBLE_EQ(moving.events[1][1].start, 1);  // stage 1, on core 1
}

TEST(Simulate, CoresAreNeverSharedByMoreThanThereAre) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int cores : {1, 2, 3, 5}) {
      const Program program = lowered(options_for(name, 4, 8));
      Costs costs = costs_of(program, 1, 2);
      const double alone = simulate(program, costs).makespan;
      share_cores(program, {.turn_seconds = 1.5}, cores, costs);
      costs.cores.moves = false;
      const Simulation shared = simulate(program, costs);
      // 4 devices x 8 micro-batches x 3 seconds of work
      EXPECT_GE(shared.makespan, std::max(alone, 96.0 / cores) - 1e-9) << name << cores;
      if (cores >= 4) EXPECT_DOUBLE_EQ(shared.makespan, alone) << name;
      if (cores == 1) EXPECT_DOUBLE_EQ(shared.makespan, 96) << name;
      for (const auto& list : shared.events) {
        for (const Event& event : list) {
          if (event.end <= event.start) continue;
          int running = 0;
          for (const auto& others : shared.events) {
            for (const Event& other : others)
              running += other.start <= event.start && event.start < other.end ? 1 : 0;
          }
          EXPECT_LE(running, cores) << name;
        }
      }
    }
  }
}

TEST(Simulate, TheLongestDevicesHaveCoresOfTheirOwn) {
  const Program program = lowered(options_for("1f1b", 4, 8));
  Costs costs = costs_of(program, 1, 2);
  for (std::size_t s = 0; s < 4; ++s) costs.stage[s].forward = 1 + static_cast<double>(s);
  // 8 x 3, 4, 5 and 6 seconds
  share_cores(program, {}, 2, costs);
  EXPECT_EQ(costs.cores.core, (std::vector<int>{0, 1, 1, 0}));
  share_cores(program, {}, 9, costs);
  EXPECT_EQ(costs.cores.core, (std::vector<int>{3, 2, 1, 0}));
}

TEST(Simulate, CoresAreOfDevicesOfTheProgram) {
  const Program program = lowered(options_for("1f1b", 2, 4));
  Costs costs = costs_of(program, 1, 2);
  const std::vector<CoreGroup> groups = {{2, {0, 1, 2}}};
  try {
    share_cores(program, {}, groups, costs);
    FAIL() << "device 2 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("device 2"), std::string::npos) << error.what();
  }
}

// Devices of two hosts: the first two share a core, which the idle core of the other host does not
// change.
TEST(Simulate, DevicesMoveAmongTheCoresOfTheirGroup) {
  const Program program = lowered(options_for("1f1b", 4, 4));
  Costs costs = costs_of(program, 1, 2);
  const std::vector<CoreGroup> groups = {{1, {0, 1}}, {2, {2, 3}}};
  share_cores(program, {}, groups, costs);
  EXPECT_EQ(costs.cores.core, (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(costs.cores.group, (std::vector<int>{0, 1, 1}));
  const Simulation result = simulate(program, costs);
  for (const Event& one : result.events[0]) {
    for (const Event& other : result.events[1]) {
      const bool apart = one.end <= other.start || other.end <= one.start;
      EXPECT_TRUE(apart || one.start == one.end || other.start == other.end)
          << one.start << " and " << other.start;
    }
  }
}

TEST(Simulate, LatencyFollowsTheClosedForms) {
  // 1F1B pays (f+b) + 2(p-1)c/p per micro-batch, the eager warm-up max(f+b, (p(f+b) +
  // 2(p-1)c)/(2p-1)).
  for (const int p : {2, 3, 4, 6}) {
    for (const double c : {0.25, 0.5, 3.0}) {
      for (const bool eager : {false, true}) {
        const int tokens = eager ? 2 * p - 1 : p;  // the rate repeats after so many micro-batches
        ScheduleOptions options = options_for("1f1b", p, 2 * (20 * tokens + 1));
        options.warm = standard_warm_up(p);
        for (int& warm : options.warm) warm *= eager ? 2 : 1;
        const Program program = lowered(options);
        const double period =
            simulate(program, costs_of(program, 1, 2, {c, INFINITY})).micro_batch_period;
        const double expected = eager ? std::max(3.0, (3.0 * p + 2 * (p - 1) * c) / (2.0 * p - 1))
                                      : 3.0 + 2 * (p - 1) * c / p;
        EXPECT_NEAR(period, expected, 1e-9) << "p=" << p << " c=" << c << " eager " << eager;
      }
    }
  }
  // GPipe hides latency but for the first and the last micro-batch.
  const Program gpipe = lowered(options_for("gpipe", 4, 6));
  EXPECT_DOUBLE_EQ(simulate(gpipe, costs_of(gpipe, 1, 2, {0.5, INFINITY})).makespan,
                   9 * 3 + 2 * 3 * 0.5);
}

TEST(Simulate, PipedreamRunsAtTheRateOfItsSlowestStage) {
  const Program program = generate(options_for("pipedream", 3, 40));
  Costs costs = costs_of(program, 1, 1);
  costs.stage[1].backward = 4;
  EXPECT_DOUBLE_EQ(simulate(program, costs).micro_batch_period, 5);
}

TEST(Simulate, UpdateAndSyncCloseTheRound) {
  ScheduleOptions options = options_for("1f1b", 3, 4);
  options.gradient_sync = true;
  const Program program = lowered(options);
  Costs costs = costs_of(program, 1, 2);
  costs.gradient_sync_seconds = 5;
  for (StageSeconds& stage : costs.stage) stage.update = 7;
  const Simulation result = simulate(program, costs);
  EXPECT_DOUBLE_EQ(result.makespan, 6 * 3 + 5 + 7);
  EXPECT_DOUBLE_EQ(result.period, result.makespan);  // the sync is a barrier
  EXPECT_DOUBLE_EQ(result.busy[0], 4 * 3 + 5 + 7);
  for (const auto& events : result.events) EXPECT_DOUBLE_EQ(events.back().start, 23);
}

TEST(Simulate, RecomputeCostsOneForwardMore) {
  ScheduleOptions options = options_for("1f1b", 1, 4);
  options.recompute = {true};
  const Program program = generate(options);
  EXPECT_DOUBLE_EQ(simulate(program, costs_of(program, 1, 2)).makespan, 4 * 4);
}

TEST(Simulate, AnUnevenLastMicroBatchIsShorter) {
  const Program program = generate(options_for("gpipe", 2, 3));
  Costs costs = costs_of(program, 2, 4);
  costs.micro_batch_scale = {1, 1, 0.5};
  // The last stage starts at 2, runs 2 2 1 forward and 4 backward; then the first stage runs 4 4 2.
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 2 + (2 + 2 + 1) + 4 + (4 + 4 + 2));
}

TEST(Simulate, RefusesCostsThatDoNotFit) {
  const Program program = lowered(options_for("1f1b", 3, 4));
  Costs costs = costs_of(program, 1, 2);
  costs.stage.pop_back();
  EXPECT_THROW(simulate(program, costs), Error);
  costs = costs_of(program, 1, 2);
  costs.micro_batch_scale = {1};
  EXPECT_THROW(simulate(program, costs), Error);
  costs = costs_of(program, 1, 2);
  costs.edge_link.resize(1);
  EXPECT_THROW(simulate(program, costs), Error);
}

TEST(Simulate, IdleTimeIsSplitByWhatTheDeviceWaitsFor) {
  for (const auto& [f, b] : {std::pair{1.0, 1.0}, {1.0, 2.0}, {2.0, 7.0}}) {
    for (int p = 1; p <= 5; ++p) {
      const Program one = generate(options_for("1f1b", p, 2 * p));
      const Program all = generate(options_for("gpipe", p, 2 * p));
      const Simulation in_turn = simulate(one, costs_of(one, f, b));
      const Simulation gpipe = simulate(all, costs_of(all, f, b));
      for (int s = 0; s < p; ++s) {
        // A device waits for the first micro-batch to come and to go on to the last stage and back;
        // then for nothing until the last forward; then for the others' backwards, a forward each,
        // and for those after it to end.
        const auto d = static_cast<std::size_t>(s);
        EXPECT_DOUBLE_EQ(in_turn.idle_split[d].warm_up, s * f + (p - 1 - s) * b);
        EXPECT_DOUBLE_EQ(in_turn.idle_split[d].steady, 0);
        EXPECT_DOUBLE_EQ(in_turn.idle_split[d].drain, (p - 1 - s) * f + s * b);
        EXPECT_DOUBLE_EQ(gpipe.idle_split[d].warm_up, (p - 1) * f + (p - 1 - s) * b);
        EXPECT_DOUBLE_EQ(gpipe.idle_split[d].drain, s * b);
      }
    }
  }
}

TEST(Simulate, ReplicasShareTheMicroBatchesAndSumTheirGradients) {
  for (const int r : {1, 2, 3}) {
    ScheduleOptions options = options_for("1f1b", 1, 6);
    options.replicas = {r};
    const Program program = generate(options);
    Costs costs = costs_of(program, 1, 2);
    costs.stage[0].reduce = r == 1 ? 0 : 4;
    costs.stage[0].update = 5;
    EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 6.0 / r * 3 + costs.stage[0].reduce + 5);
  }
  // 4 replicas: 3/4 of 80 bytes each way in 6 steps.
  EXPECT_DOUBLE_EQ(all_reduce_seconds(80, 4, {0.5, 10}), 2 * 0.75 * 80 / 10 + 6 * 0.5);
  EXPECT_EQ(all_reduce_seconds(80, 1, {0.5, 10}), 0);
}

// Two stages in two processes: the last backward is the first one's, which goes on at once; the
// second one has to wait until it knows that, but its first forward needs the first stage anyway.
TEST(Simulate, AProcessGoesOnWhenItKnowsTheResultsOfAll) {
  const Program program = lowered(options_for("1f1b", 2, 4));
  Costs costs = costs_of(program, 1, 2);
  const Simulation alone = simulate(program, costs);
  costs.process = {0, 1};
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan);
  costs.results_seconds = 0.5;
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan);
  costs.results_seconds = 1.5;  // the first forward takes 1
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan + 0.5);
  costs.host = {0, 1};
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan + 0.5);
  costs.host = {0, 0};
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan);
  costs.results_on_host_seconds = 1.25;
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan + 0.25);
  costs.process = {0, 0};
  EXPECT_DOUBLE_EQ(simulate(program, costs).period, alone.makespan);
}

/// Two replicas, one micro-batch each: forward until 1, backward until 3, update for 5.
TEST(Simulate, BucketsAreSummedDuringTheBackward) {
  ScheduleOptions options = options_for("1f1b", 1, 2);
  options.replicas = {2};
  const Program program = generate(options);
  Costs costs = costs_of(program, 1, 2);
  costs.stage[0].update = 5;
  costs.stage[0].reduce = 4;
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 3 + 4 + 5);
  // Half of the backward completes the first one: from 2 to 2.5; the second one has to wait for 3.
  costs.stage[0].buckets = {{0.5, 0.5}, {1, 0.25}};
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 3.25 + 5);
  // A latency delays a sum, but not the next bucket.
  for (ReduceBucket& bucket : costs.stage[0].buckets) bucket.latency = 0.125;
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 3.375 + 5);
  costs.stage[0].buckets = {{0.5, 0.5}, {1, 0.25}};
  const Simulation seen = simulate(program, costs);
  ASSERT_EQ(seen.buckets.size(), 2U);
  EXPECT_DOUBLE_EQ(seen.buckets[0].start, 2);
  EXPECT_DOUBLE_EQ(seen.buckets[0].end, 2.5);
  EXPECT_DOUBLE_EQ(seen.buckets[1].start, 3);
  EXPECT_DOUBLE_EQ(seen.buckets[1].end, 3.25);
  // Half a second of three quarters lies before the end of the backward.
  EXPECT_DOUBLE_EQ(*overlapped_share(program, seen.events, seen.buckets), 2.0 / 3);
  // The second one has to wait for the first one: 2, 5, 6.
  costs.stage[0].buckets = {{0.5, 3}, {1, 1}};
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 6 + 5);
  // All is over before the backward is.
  costs.stage[0].buckets = {{0.5, 0.5}};
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 3 + 5);
}

// Links are measured between two processes, which share a single core as well.
TEST(Simulate, ProcessesWithoutIdleCoresSumInTurn) {
  const std::vector<int> two = {0, 1}, four = {0, 1, 2, 3};
  const auto turns = [](const std::vector<CoreGroup>& groups, const std::vector<int>& devices,
                        const std::vector<int>& process) {
    return turns_of_sums(groups, devices, process);
  };
  EXPECT_EQ(turns({{1, {0, 1}}}, two, {0, 1}), 1);
  EXPECT_EQ(turns({{2, {0, 1}}}, two, {0, 1}), 1);
  EXPECT_EQ(turns({{3, {0, 1}}}, two, {0, 1}), 0);  // a core is idle
  EXPECT_EQ(turns({{3, {0, 1, 2}}}, two, {0, 1}), 1);
  EXPECT_EQ(turns({{1, {0}}, {1, {1}}}, two, {0, 1}), 0);  // two hosts
  EXPECT_EQ(turns({{1, {2}}, {1, {0, 1}}}, two, {0, 1}), 1);
  EXPECT_EQ(turns({{1, four}}, four, {0, 1, 2, 3}), 2);
  // A process sums for all of its replicas.
  EXPECT_EQ(turns({{2, four}}, four, {0, 1, 2, 3}), 2);
  EXPECT_EQ(turns({{2, four}}, four, {0, 0, 1, 1}), 1);
  EXPECT_EQ(turns({{2, {0, 1}}, {2, {2, 3}}}, four, {0, 1, 2, 3}), 0);
}

TEST(Simulate, AReduceWaitsForTheSlowestReplica) {
  ScheduleOptions options = options_for("pipedream", 1, 6);
  options.replicas = {2};
  const Program program = generate(options);
  Costs costs = costs_of(program, 1, 2);
  costs.device_scale = {1, 3};
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 3 * 9);
}

TEST(Simulate, JitterIsReproducibleAndHasMeanOne) {
  const Program program = generate(options_for("1f1b", 1, 400));
  const Costs costs = costs_of(program, 1, 1);
  const Jitter jitter = {0.1, 0, 7, 200};
  const JitterResult result = simulate_jitter(program, costs, jitter);
  EXPECT_EQ(result.makespan, simulate_jitter(program, costs, jitter).makespan);
  // 800 independent times of mean 1 and deviation about 0.1.
  EXPECT_NEAR(result.mean, 800, 1);
  EXPECT_NEAR(result.p50, 800, 1);
  EXPECT_NEAR(result.p95 - result.p50, 1.645 * 0.1 * std::sqrt(800), 1.2);
  Jitter other = jitter;
  other.seed = 8;
  EXPECT_NE(simulate_jitter(program, costs, other).makespan, result.makespan);
  other.compute = 0;
  EXPECT_DOUBLE_EQ(simulate_jitter(program, costs, other).p95, 800);
  other.samples = 0;
  EXPECT_THROW(simulate_jitter(program, costs, other), Error);
}

TEST(Simulate, JitterOfOneDeviceSlowsThePipeline) {
  // The slowest of several sets the pace, so the mean rises where the mean of each stays.
  const Program program = lowered(options_for("1f1b", 8, 32));
  const Costs costs = costs_of(program, 1, 2, {0.1, 10});
  const double exact = simulate(program, costs).makespan;
  const JitterResult result = simulate_jitter(program, costs, {0.1, 0.1, 1, 50});
  EXPECT_GT(result.p50, exact);
  EXPECT_GT(result.p95, result.p50);
  EXPECT_LT(result.p95, 1.3 * exact);
}

TEST(Simulate, WithoutEventsTheSameNumbers) {
  const Program program = lowered(options_for("zb-h1", 4, 8));
  const Costs costs = costs_of(program, 1, 2, {0.1, 10});
  const Simulation full = simulate(program, costs);
  const Simulation lean = simulate(program, costs, {.keep_events = false, .rounds = 1});
  EXPECT_TRUE(lean.events.empty());
  EXPECT_EQ(lean.makespan, full.makespan);
  EXPECT_EQ(lean.busy, full.busy);
  EXPECT_EQ(lean.micro_batch_period, full.micro_batch_period);
  EXPECT_EQ(lean.period, 0);
}

TEST(Simulate, RecordsEveryInstructionAndItsWaits) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  const Simulation result = simulate(program, costs_of(program, 1, 2, {0.5, 2}));
  // Edges of one byte: 0.5 s on the wire and 0.5 s latency.
  ASSERT_EQ(result.events.size(), 2U);
  for (std::size_t d = 0; d < 2; ++d) EXPECT_EQ(result.events[d].size(), program.device[d].size());
  const Event& receive = result.events[1][0];
  EXPECT_EQ(to_text(program, program.device[1][0]), "1RF0<0");
  EXPECT_DOUBLE_EQ(receive.start, 1);
  EXPECT_DOUBLE_EQ(receive.end, 2);
  EXPECT_DOUBLE_EQ(result.events[1][1].start, 2);  // the forward that waited for it
}

TEST(Simulate, IsLinear) {
  // 256 devices, 1024 micro-batches: half a million compute instructions and twice as many ends of
  // transfers.
  const Program program = lowered(options_for("1f1b", 256, 1024));
  const Simulation result =
      simulate(program, costs_of(program, 1, 2), {.keep_events = false, .rounds = 24});
  EXPECT_DOUBLE_EQ(result.makespan, (1024 + 255) * 3);
  EXPECT_DOUBLE_EQ(result.period, (1024 + 255) * 3);
}

}  // namespace
}  // namespace pipetrain
