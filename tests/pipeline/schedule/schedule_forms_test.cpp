// What the literature promises of each schedule, by simulation: makespan of one round, seconds from
// round to round, activations held. p devices, m micro-batches; f, b = i + w per micro-batch on a
// whole device.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "pipeline/program/annotate.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"

namespace pipetrain {
namespace {

/// Seconds of a micro-batch on a whole device; a stage is one of `chunks` of them.
struct Times {
  double f = 1, i = 1, w = 1;
  double b() const { return i + w; }
};

Costs costs_of(const Program& program, const Times& times, double latency = 0) {
  const double chunks = static_cast<double>(program.stages) / program.devices;
  StageSeconds seconds;
  seconds.forward = times.f / chunks;
  seconds.backward = times.b() / chunks;
  seconds.backward_input = times.i / chunks;
  seconds.backward_weight = times.w / chunks;
  return uniform_costs(program, seconds, {latency});
}

double makespan(const Program& program, const Times& times, double latency = 0) {
  double end = 0;
  for (const auto& list : time_round(program, costs_of(program, times, latency))) {
    for (const Event& event : list) end = std::max(end, event.end);
  }
  return end;
}

double period(const Program& program, const Times& times) {
  return simulate(program, costs_of(program, times)).period;
}

/// A program of p devices; `chunks` as the schedule takes it.
Program on_devices(const std::string& name, int p, int m, int chunks = 2) {
  ScheduleOptions options = options_for(name, p * stages_per_device(name, chunks), m);
  options.chunks = chunks;
  return generate(options);
}

Program zero_bubble(int p, int m, int memory_units) {
  ScheduleOptions options = options_for("zb", p, m);
  options.memory_units = memory_units;
  return generate(options);
}

constexpr double kExact = 1e-9;

TEST(ScheduleForms, OneStageADevice) {
  const Times kTimes[] = {{1, 1, 1}, {1, 0.5, 0.5}, {3, 1, 1}, {2, 2.5, 2.5}};
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 27; ++m) {
      const Program gpipe = on_devices("gpipe", p, m);
      const Program flush = on_devices("1f1b", p, m);
      const Program eager = on_devices("1f1b-eager", p, m);
      for (const Times& times : kTimes) {
        const double expected = (m + p - 1) * (times.f + times.b());
        EXPECT_NEAR(makespan(gpipe, times), expected, kExact) << p << " " << m;
        EXPECT_NEAR(makespan(flush, times), expected, kExact) << p << " " << m;
        EXPECT_NEAR(makespan(eager, times), expected, kExact) << p << " " << m;
      }
      for (int s = 0; s < p; ++s) {
        const auto stage = static_cast<std::size_t>(s);
        EXPECT_EQ(gpipe.slots_per_stage[stage], m);
        EXPECT_EQ(flush.slots_per_stage[stage], std::min(p - s, m));
        EXPECT_EQ(eager.slots_per_stage[stage], std::min(2 * (p - s) - 1, m));
        EXPECT_EQ(flush.versions_per_stage[stage], 1);
      }
    }
  }
}

TEST(ScheduleForms, Interleaved) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int rounds = 1; rounds <= 3; ++rounds) {
        const int m = rounds * p;
        const Program program = on_devices("interleaved-1f1b", p, m, v);
        for (const Times& times : {Times{1, 1, 1}, Times{1, 0.5, 0.5}, Times{3, 1, 1}}) {
          const double work = times.f + times.b();
          EXPECT_NEAR(makespan(program, times), m * work + (p - 1) * work / v, kExact)
              << p << " " << v << " " << m;
        }
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(device_peak(program, static_cast<std::size_t>(r)),
                    std::min(2 * (p - 1 - r) + (v - 1) * p + 1, m * v));
        }
      }
    }
  }
}

TEST(ScheduleForms, InterleavedTakesAnyNumberOfMicroBatches) {
  // What does not divide by p goes into larger rounds: never slower than one stage a device where
  // the pipeline can be filled.
  for (int p = 2; p <= 6; ++p) {
    for (int m = 1; m <= 3 * p; ++m) {
      for (const char* name : {"interleaved-1f1b", "interleaved-zb"}) {
        const Program program = on_devices(name, p, m, 2);
        const double expected = 3 * (m + p - 1);
        if (m < p) continue;
        EXPECT_LE(makespan(program, {}), expected + kExact) << name << p << " " << m;
      }
    }
  }
}

TEST(ScheduleForms, ZeroBubbleH1) {
  const Times kTimes[] = {{1, 1, 1}, {1, 1, 0.5}, {2, 1, 1},
                          {1, 2, 1}, {10, 11, 9}, {1.5, 1.25, 0.25}};
  for (int p = 1; p <= 9; ++p) {
    for (int m = p; m <= 29; ++m) {
      const Program program = on_devices("zb-h1", p, m);
      EXPECT_EQ(zero_bubble(p, m, p).device, program.device);
      for (const Times& times : kTimes) {
        const double expected = m * (times.f + times.b()) + (p - 1) * (times.f + times.i - times.w);
        EXPECT_NEAR(makespan(program, times), expected, kExact) << p << " " << m;
      }
    }
    for (int m = 1; m <= 29; ++m) {
      EXPECT_EQ(on_devices("zb-h1", p, m).slots_per_stage,
                std::vector<int>(static_cast<std::size_t>(p), std::min(p, m)));
    }
  }
}

TEST(ScheduleForms, ZeroBubbleH2) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 2 * p - 1; m <= 29; ++m) {
      const Program program = on_devices("zb-h2", p, m);
      EXPECT_EQ(zero_bubble(p, m, 2 * p - 1).device, program.device);
      EXPECT_NEAR(makespan(program, {}), 3 * m + p - 1, kExact) << p << " " << m;
      EXPECT_NEAR(period(program, {}), 3 * m, kExact) << p << " " << m;
      EXPECT_EQ(program.slots_per_stage, std::vector<int>(static_cast<std::size_t>(p), 2 * p - 1));
    }
  }
}

TEST(ScheduleForms, ZeroBubbleFamilyBuysBubbleWithMemory) {
  const Times kTimes[] = {{1, 1, 1}, {2, 2, 1}, {10, 11, 9}, {1, 1.5, 0.75}};
  for (int p = 2; p <= 8; p += 2) {
    for (int memory = p; memory <= 2 * p - 1; ++memory) {
      for (const int m : {memory, 2 * p + 1, 4 * p}) {
        const Program program = zero_bubble(p, m, memory);
        for (const Times& times : kTimes) {
          const double idle = (p - 1) * (times.f + times.i - times.w) - (memory - p) * times.w;
          EXPECT_NEAR(period(program, times), m * (times.f + times.b()) + idle, 1e-6)
              << p << " K=" << memory << " " << m;
          EXPECT_GE(makespan(program, times) + kExact,
                    m * (times.f + times.b()) + std::max(idle, (p - 1) * times.f));
        }
        EXPECT_EQ(program.slots_per_stage, std::vector<int>(static_cast<std::size_t>(p), memory));
      }
    }
  }
}

TEST(ScheduleForms, ZeroBubbleHoldsNoMoreThanItMay) {
  for (int p = 1; p <= 6; ++p) {
    for (int memory = 1; memory <= 3 * p; ++memory) {
      for (const int micro_batches : zero_bubble(p, 4 * p, memory).slots_per_stage) {
        EXPECT_LE(micro_batches, memory);
      }
    }
  }
}

TEST(ScheduleForms, InterleavedZeroBubble) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int rounds = 1; rounds <= 3; ++rounds) {
        const int m = rounds * p;
        const Program program = on_devices("interleaved-zb", p, m, v);
        for (const Times& times : {Times{1, 1, 1}, Times{2, 2, 1}, Times{1, 1, 0.5}}) {
          const double bubble = (p - 1) * (times.f + times.i - times.w) / v;
          EXPECT_NEAR(makespan(program, times), m * (times.f + times.b()) + bubble, kExact)
              << p << " " << v << " " << m;
        }
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(device_peak(program, static_cast<std::size_t>(r)), p * v);
        }
      }
    }
  }
  EXPECT_EQ(on_devices("interleaved-zb", 5, 10, 1).device, on_devices("zb-h1", 5, 10).device);
}

TEST(ScheduleForms, ZeroBubbleV) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 29; ++m) {
      const Program program = on_devices("zb-v", p, m);
      for (int r = 0; r < p; ++r) {
        EXPECT_LE(device_peak(program, static_cast<std::size_t>(r)), 2 * p);
      }
      const double missing = std::max(0, 2 * p - 1 - m);  // micro-batches that the pipeline lacks
      EXPECT_NEAR(period(program, {}), 3 * m + missing, kExact) << p << " " << m;
      if (m < 2 * p - 1) continue;
      // Where the forward takes no longer than the input gradient.
      for (const Times& times : {Times{1, 1.25, 1}, Times{1, 1.5, 1}, Times{10, 11, 9}}) {
        EXPECT_NEAR(period(program, times),
                    m * (times.f + times.b()) + (p - 1) * (times.i - times.w), 1e-6)
            << p << " " << m;
      }
      EXPECT_NEAR(makespan(program, {}), 3 * m + 0.5 * (p - 1), kExact) << p << " " << m;
      EXPECT_EQ(device_peak(program, 0), 2 * p);
    }
  }
}

TEST(ScheduleForms, ControllableMemory) {
  // Micro-batches of a chunk: forward, input and weight gradient take 1 each.
  const Times times = {2, 2, 2};
  for (int p = 2; p <= 16; ++p) {
    for (const int m : {2 * p, 3 * p + 1}) {
      const Program half = on_devices("v-half", p, m);
      const Program least = on_devices("v-min", p, m);
      EXPECT_NEAR(makespan(half, times) - 6 * m, p % 2 == 1 ? 3.5 * (p - 1) : 3.5 * p - 2, kExact)
          << p << " " << m;
      EXPECT_NEAR(makespan(least, times) - 6 * m, p % 3 != 0 ? 4 * p - 5 : 4 * p - 3, kExact)
          << p << " " << m;
      int most_half = 0;
      int most_least = 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(p); ++r) {
        most_half = std::max(most_half, device_peak(half, r));
        most_least = std::max(most_least, device_peak(least, r));
      }
      EXPECT_EQ(most_half / 2, (p + 2) / 2) << p << " " << m;
      EXPECT_EQ(most_least / 2, (p + 4) / 3) << p << " " << m;
    }
  }
}

TEST(ScheduleForms, Chimera) {
  for (int p = 2; p <= 10; p += 2) {
    const Times forward_is_backward = {1, 0.5, 0.5};
    for (const Times& times : {Times{1, 1, 1}, Times{2, 1, 2}, forward_is_backward}) {
      EXPECT_NEAR(makespan(chimera(p, p), times), p * times.f + (2 * p - 2) * times.b(), kExact);
    }
    for (const int rounds : {1, 2, 4}) {
      const int m = rounds * p;
      const Program program = chimera(p, m);
      EXPECT_NEAR(makespan(program, forward_is_backward), 2 * m + p - 2, kExact);
      for (int r = 0; r < p; ++r) {
        const int peak = device_peak(program, static_cast<std::size_t>(r));
        EXPECT_GE(peak, p / 2 + 1);
        EXPECT_LE(peak, p);
      }
      // Rounds of p micro-batches follow each other directly.
      EXPECT_NEAR(makespan(program, {}), p + 2 * (2 * p - 2) + (rounds - 1) * (3 * p + p - 2),
                  kExact)
          << p << " " << m;
    }
  }
}

/// Makespan where a forward and the backward paired with it are one step of f + b, as the authors
/// run them.
double paired_makespan(const DualPipeV& dual, const Times& times) {
  const Program& program = dual.program;
  const double chunks = static_cast<double>(program.stages) / program.devices;
  const int last = program.stages - 1;
  std::map<std::tuple<bool, int, int>, double> made;  // gradient, stage, micro-batch
  std::vector<double> free(program.device.size(), 0);
  std::vector<std::size_t> next(program.device.size(), 0);
  const auto gradient = [](const Instruction& i) { return i.kind != Kind::kForward; };
  // When the input of an instruction is there; below 0 where it is not made yet.
  const auto input = [&](const Instruction& i) {
    const bool none = i.kind == Kind::kBackwardWeight || (i.kind == Kind::kForward && i.stage == 0);
    if (none || !is_compute(i.kind)) return 0.0;
    const bool turns = gradient(i) && i.stage == last;
    const int from = gradient(i) ? i.stage + (turns ? 0 : 1) : i.stage - 1;
    const auto found = made.find({gradient(i) && !turns, from, i.micro_batch});
    return found == made.end() ? -1.0 : found->second;
  };
  const auto seconds = [&](const Instruction& i) {
    if (i.kind == Kind::kForward) return times.f / chunks;
    if (i.kind == Kind::kBackward) return times.b() / chunks;
    if (i.kind == Kind::kBackwardInput) return times.i / chunks;
    return i.kind == Kind::kBackwardWeight ? times.w / chunks : 0.0;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t d = 0; d < next.size(); ++d) {
      while (next[d] < program.device[d].size()) {
        const std::size_t steps = 1 + dual.pairs[d].count(static_cast<int>(next[d]));
        double start = free[d];
        double took = 0;
        bool ready = true;
        for (std::size_t n = next[d]; n < next[d] + steps; ++n) {
          const Instruction& instruction = program.device[d][n];
          ready = ready && input(instruction) >= 0;
          start = std::max(start, input(instruction));
          took += seconds(instruction);
        }
        if (!ready) break;
        free[d] = start + took;
        for (const std::size_t end = next[d] + steps; next[d] < end; ++next[d]) {
          const Instruction& instruction = program.device[d][next[d]];
          if (instruction.kind == Kind::kBackwardWeight) continue;
          made[{gradient(instruction), instruction.stage, instruction.micro_batch}] = free[d];
        }
        moved = true;
      }
    }
  }
  for (std::size_t d = 0; d < next.size(); ++d) EXPECT_EQ(next[d], program.device[d].size());
  return *std::max_element(free.begin(), free.end());
}

TEST(ScheduleForms, DualPipeV) {
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {2 * p, 2 * p + 3, 4 * p}) {
      const DualPipeV dual = dual_pipe_v(p, m);
      // In micro-batches of a chunk: 6 m of work and 2 (p - 1) idle. One after the other the
      // forward hands over before the backward runs, which halves the idle time.
      EXPECT_NEAR(paired_makespan(dual, {2, 2, 2}), 6 * m + 2 * (p - 1), kExact) << p << " " << m;
      EXPECT_NEAR(makespan(dual.program, {2, 2, 2}), 6 * m + (p - 1), kExact) << p << " " << m;
      int most = 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(p); ++r) {
        most = std::max(most, device_peak(dual.program, r));
      }
      EXPECT_EQ(most, 2 * p + 1) << p << " " << m;
    }
  }
}

TEST(ScheduleForms, GoldenNumbers) {
  // f = 1, b = 2, i = w = 1.
  struct Row {
    int p, m;
    double flush, interleaved2, interleaved4, h1, v, half, least, dual, chimera;
  };
  const Row kRows[] = {
      {4, 8, 33, 28.5, 26.25, 27, 25.5, 30, 29.5, 27, 30},
      {4, 16, 57, 52.5, 50.25, 51, 49.5, 54, 53.5, 51, 58},
      {8, 32, 117, 106.5, 101.25, 103, 99.5, 109, 109.5, 103, 126},
  };
  for (const auto& [p, m, flush, two, four, h1, v, half, least, dual, both] : kRows) {
    for (const char* name : {"gpipe", "1f1b", "1f1b-eager", "1f1b-auto"}) {
      EXPECT_NEAR(makespan(on_devices(name, p, m), {}), flush, kExact) << name;
    }
    EXPECT_NEAR(makespan(on_devices("interleaved-1f1b", p, m, 2), {}), two, kExact);
    EXPECT_NEAR(makespan(on_devices("interleaved-1f1b", p, m, 4), {}), four, kExact);
    EXPECT_NEAR(makespan(on_devices("zb-h1", p, m), {}), h1, kExact);
    EXPECT_NEAR(makespan(on_devices("zb-h2", p, m), {}), h1, kExact);
    EXPECT_NEAR(makespan(zero_bubble(p, m, p + 2), {}), h1, kExact);
    EXPECT_NEAR(period(on_devices("zb-h1", p, m), {}) - 3 * m, p - 1, kExact);
    EXPECT_NEAR(period(zero_bubble(p, m, p + 2), {}) - 3 * m, p - 3, kExact);
    EXPECT_NEAR(period(on_devices("zb-h2", p, m), {}) - 3 * m, 0, kExact);
    EXPECT_NEAR(makespan(on_devices("zb-v", p, m), {}), v, kExact);
    EXPECT_NEAR(period(on_devices("zb-v", p, m), {}) - 3 * m, 0, kExact);
    EXPECT_NEAR(makespan(on_devices("v-half", p, m), {}), half, kExact);
    EXPECT_NEAR(makespan(on_devices("v-min", p, m), {}), least, kExact);
    EXPECT_NEAR(paired_makespan(dual_pipe_v(p, m), {}), dual, kExact);
    EXPECT_NEAR(makespan(chimera(p, m), {}), both, kExact);
  }
}

TEST(ScheduleForms, LatencyOfOneForwardOneBackward) {
  for (int p = 2; p <= 8; ++p) {
    for (const double latency : {0.0, 0.25, 1.0, 4.0}) {
      const Times times = {1, 1, 1};
      const double work = times.f + times.b();
      // The pattern repeats every warm-up + 1 micro-batches.
      const auto micro_batch_seconds = [&](const char* name, int repeats) {
        const int m = 10 * repeats;
        return (makespan(on_devices(name, p, 2 * m), times, latency) -
                makespan(on_devices(name, p, m), times, latency)) /
               m;
      };
      EXPECT_NEAR(micro_batch_seconds("1f1b", p), work + 2 * (p - 1) * latency / p, 1e-6) << p;
      EXPECT_NEAR(micro_batch_seconds("1f1b-eager", 2 * p - 1),
                  std::max(work, (p * work + 2 * (p - 1) * latency) / (2 * p - 1)), 1e-6)
          << p << " " << latency;
    }
  }
}

TEST(ScheduleForms, LatencyOfTheOthers) {
  // p = 8, m = 64, latency 0.25 each way.
  const auto expect = [](const Program& program, double expected) {
    EXPECT_NEAR(makespan(program, {}, 0.25), expected, kExact) << program.schedule;
  };
  expect(on_devices("gpipe", 8, 64), 216.5);
  expect(on_devices("1f1b-eager", 8, 64), 216.5);
  expect(on_devices("1f1b", 8, 64), 244);
  expect(on_devices("zb-h1", 8, 64), 206);
  expect(on_devices("zb-h2", 8, 64), 200.75);
  expect(on_devices("interleaved-1f1b", 8, 64, 2), 210);
  expect(on_devices("zb-v", 8, 64), 203.75);
  expect(on_devices("v-half", 8, 64), 214);
  expect(on_devices("v-min", 8, 64), 294);
}

TEST(ScheduleForms, AsynchronousRunsDoNotDrain) {
  for (const char* name : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    for (int p = 1; p <= 6; ++p) {
      const double longer = makespan(on_devices(name, p, 60), {});
      EXPECT_NEAR(longer - makespan(on_devices(name, p, 40), {}), 20 * 3, kExact) << name << p;
      EXPECT_NEAR(longer, 3 * (60 + p - 1), kExact) << name << p;
    }
  }
}

TEST(ScheduleForms, VersionsAndStalenessOfWeightStashing) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Program program = on_devices("pipedream", p, m);
      const std::vector<int> lag = staleness(program);
      for (int s = 0; s < p; ++s) {
        const auto stage = static_cast<std::size_t>(s);
        EXPECT_EQ(program.versions_per_stage[stage], std::min(p - s, m));
        EXPECT_EQ(lag[stage], std::min(p - 1 - s, m - 1));
      }
    }
  }
  EXPECT_EQ(staleness(on_devices("1f1b", 4, 8)), (std::vector<int>{0, 0, 0, 0}));
}

TEST(ScheduleForms, VersionsAndStalenessOfVerticalSync) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Program program = on_devices("pipedream-vertical", p, m);
      const auto stages = static_cast<std::size_t>(p);
      EXPECT_EQ(staleness(program), std::vector<int>(stages, std::min(p - 1, m - 1)));
      // One version along the way of a micro-batch.
      std::vector<int> version(static_cast<std::size_t>(m), -1);
      for (const auto& list : program.device) {
        for (const Instruction& instruction : list) {
          if (!is_compute(instruction.kind)) continue;
          int& seen = version[static_cast<std::size_t>(instruction.micro_batch)];
          if (seen < 0) seen = instruction.version;
          EXPECT_EQ(instruction.version, seen);
          EXPECT_EQ(seen, std::max(0, instruction.micro_batch - (p - 1)));
        }
      }
    }
  }
}

TEST(ScheduleForms, VersionsAndStalenessOfDoubleBuffering) {
  for (int p = 1; p <= 8; ++p) {
    for (int group = std::max(1, p - 1); group <= 2 * p + 1; ++group) {
      ScheduleOptions options = options_for("pipedream-2bw", p, 4 * group + 1);
      options.micro_batches_per_update = group;
      const Program program = generate(options);
      for (const int versions : program.versions_per_stage) EXPECT_EQ(versions, 2);
      EXPECT_EQ(staleness(program), std::vector<int>(static_cast<std::size_t>(p), 1));
      for (int s = 0; s < p; ++s) EXPECT_EQ(program.updates(s), 5);
    }
  }
}

}  // namespace
}  // namespace pipetrain
