#include "pipeline/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "example_programs.h"

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

TEST(Simulate, LatencyFollowsTheClosedForms) {
  // 1F1B pays (f+b) + 2(p-1)c/p per unit, the eager warm-up max(f+b, (p(f+b) + 2(p-1)c)/(2p-1)).
  for (const int p : {2, 3, 4, 6}) {
    for (const double c : {0.25, 0.5, 3.0}) {
      for (const bool eager : {false, true}) {
        const int tokens = eager ? 2 * p - 1 : p;  // the rate repeats after so many units
        ScheduleOptions options = options_for("1f1b", p, 2 * (20 * tokens + 1));
        options.warm = standard_warm_up(p);
        for (int& warm : options.warm) warm *= eager ? 2 : 1;
        const Program program = lowered(options);
        const double period = simulate(program, costs_of(program, 1, 2, {c, INFINITY})).unit_period;
        const double expected = eager ? std::max(3.0, (3.0 * p + 2 * (p - 1) * c) / (2.0 * p - 1))
                                      : 3.0 + 2 * (p - 1) * c / p;
        EXPECT_NEAR(period, expected, 1e-9) << "p=" << p << " c=" << c << " eager " << eager;
      }
    }
  }
  // GPipe hides latency but for the first and the last unit.
  const Program gpipe = lowered(options_for("gpipe", 4, 6));
  EXPECT_DOUBLE_EQ(simulate(gpipe, costs_of(gpipe, 1, 2, {0.5, INFINITY})).makespan,
                   9 * 3 + 2 * 3 * 0.5);
}

TEST(Simulate, PipedreamRunsAtTheRateOfItsSlowestStage) {
  const Program program = generate(options_for("pipedream", 3, 40));
  Costs costs = costs_of(program, 1, 1);
  costs.stage[1].backward = 4;
  EXPECT_DOUBLE_EQ(simulate(program, costs).unit_period, 5);
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

TEST(Simulate, AnUnevenLastUnitIsShorter) {
  const Program program = generate(options_for("gpipe", 2, 3));
  Costs costs = costs_of(program, 2, 4);
  costs.unit_scale = {1, 1, 0.5};
  // The last stage starts at 2, runs 2 2 1 forward and 4 backward; then the first stage runs 4 4 2.
  EXPECT_DOUBLE_EQ(simulate(program, costs).makespan, 2 + (2 + 2 + 1) + 4 + (4 + 4 + 2));
}

TEST(Simulate, RefusesCostsThatDoNotFit) {
  const Program program = lowered(options_for("1f1b", 3, 4));
  Costs costs = costs_of(program, 1, 2);
  costs.stage.pop_back();
  EXPECT_THROW(simulate(program, costs), Error);
  costs = costs_of(program, 1, 2);
  costs.unit_scale = {1};
  EXPECT_THROW(simulate(program, costs), Error);
  costs = costs_of(program, 1, 2);
  costs.edge_link.resize(1);
  EXPECT_THROW(simulate(program, costs), Error);
}

/// Runs a program tick by tick, for whole costs: each lane does one thing at a time, in order.
class Clock {
 public:
  Clock(const Program& program, const Costs& costs) : program_(program), costs_(costs) {
    for (std::size_t d = 0; d < program.device.size(); ++d) {
      end_.emplace_back(program.device[d].size(), -1);
      std::map<std::vector<int>, std::vector<std::size_t>> lanes;
      for (std::size_t i = 0; i < program.device[d].size(); ++i) {
        const Instruction& instruction = program.device[d][i];
        std::vector<int> key = {0};
        if (is_transfer(instruction.kind) && costs.transfers == TransferMode::kBuffered) {
          const Transfer& t = program.transfers[static_cast<std::size_t>(instruction.transfer)];
          key = {instruction.kind == Kind::kSend ? 1 : 2, t.from_device, t.to_device, t.gradient};
        }
        lanes[key].push_back(i);
      }
      for (const auto& [key, list] : lanes) lanes_.push_back({d, list, 0});
    }
  }

  long makespan() {
    for (now_ = 0;; ++now_) {
      for (bool moved = true; moved;) {
        moved = false;
        for (Lane& lane : lanes_) moved |= step(lane);
      }
      long last = 0;
      bool all = true;
      for (const auto& ends : end_) {
        for (const long end : ends) {
          all = all && end >= 0;
          last = std::max(last, end);
        }
      }
      if (all) return last;
      if (now_ > 100000) return -1;
    }
  }

 private:
  struct Lane {
    std::size_t device;
    std::vector<std::size_t> list;
    std::size_t next;
  };

  bool finished(std::size_t d, std::size_t i) const {
    return end_[d][i] >= 0 && end_[d][i] <= now_;
  }

  long whole(double seconds) const { return std::lround(seconds); }

  /// Looks an instruction up by what it does.
  std::pair<std::size_t, std::size_t> find(Kind kind, int stage, int unit, int transfer) const {
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
        const Instruction& x = program_.device[d][i];
        if (x.kind == kind && x.stage == stage && x.unit == unit && x.transfer == transfer) {
          return {d, i};
        }
      }
    }
    return {0, static_cast<std::size_t>(-1)};
  }

  bool step(Lane& lane) {
    if (lane.next == lane.list.size()) return false;
    if (lane.next > 0 && !finished(lane.device, lane.list[lane.next - 1])) return false;
    const std::size_t index = lane.list[lane.next];
    const Instruction& x = program_.device[lane.device][index];
    const double scale = x.unit < 0 || costs_.unit_scale.empty()
                             ? 1
                             : costs_.unit_scale[static_cast<std::size_t>(x.unit)];
    double seconds = 0;
    if (is_transfer(x.kind)) {
      const Transfer& t = program_.transfers[static_cast<std::size_t>(x.transfer)];
      const auto edge = static_cast<std::size_t>(t.edge);
      const LinkCost& link = costs_.edge_link[edge];
      const double wire =
          scale * static_cast<double>(program_.edges[edge].bytes_per_unit) / link.bytes_per_second;
      const auto [sd, si] = find(Kind::kSend, t.from_stage, t.unit, x.transfer);
      const auto [rd, ri] = find(Kind::kReceive, t.to_stage, t.unit, x.transfer);
      if (costs_.transfers == TransferMode::kRendezvous) {
        if (x.kind == Kind::kReceive) return false;  // moved by the send
        for (Lane& other : lanes_) {
          if (other.device != rd) continue;
          if (other.next == other.list.size() || other.list[other.next] != ri) return false;
          if (other.next > 0 && !finished(rd, other.list[other.next - 1])) return false;
          end_[sd][si] = end_[rd][ri] = now_ + whole(wire + link.latency_seconds);
          ++other.next;
          ++lane.next;
          return true;
        }
      }
      if (x.kind == Kind::kReceive) {
        if (end_[sd][si] < 0 || end_[sd][si] + whole(link.latency_seconds) > now_) return false;
        end_[rd][ri] = now_;
        ++lane.next;
        return true;
      }
      const auto [pd, pi] =
          find(t.gradient ? Kind::kBackward : Kind::kForward, t.from_stage, t.unit, -1);
      if (!finished(pd, pi)) return false;
      seconds = wire;
    } else {
      for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
        const Transfer& in = program_.transfers[t];
        if (in.to_stage != x.stage || in.unit != x.unit) continue;
        if (in.gradient ? x.kind != Kind::kBackward : x.kind != Kind::kForward) continue;
        const auto [rd, ri] = find(Kind::kReceive, x.stage, x.unit, static_cast<int>(t));
        if (!finished(rd, ri)) return false;
      }
      const StageSeconds& stage = costs_.stage[static_cast<std::size_t>(x.stage)];
      seconds = x.kind == Kind::kForward     ? stage.forward * scale
                : x.kind == Kind::kBackward  ? stage.backward * scale
                : x.kind == Kind::kRecompute ? stage.recompute * scale
                                             : stage.update;
    }
    end_[lane.device][index] = now_ + whole(seconds);
    ++lane.next;
    return true;
  }

  const Program& program_;
  const Costs& costs_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<long>> end_;
  long now_ = 0;
};

TEST(Simulate, AgreesWithAClockOnRandomCosts) {
  std::mt19937 random(3);
  const auto pick = [&](unsigned most) { return static_cast<double>(random() % (most + 1)); };
  for (int n = 0; n < 150; ++n) {
    const int p = 1 + static_cast<int>(random() % 4);
    const int m = 1 + static_cast<int>(random() % 5);
    const char* names[] = {"gpipe", "1f1b", "pipedream", "forward"};
    ScheduleOptions options = options_for(names[n % 4], p, m);
    if (n % 4 == 1 || n % 4 == 2) options.warm = random_warm_up(p, random);
    if (n % 4 != 3) {
      for (int s = 0; s < p; ++s) options.recompute.push_back(random() % 2 == 0);
    }
    const Program program = lower(generate(options), random_edges(p, random));
    Costs costs;
    for (int s = 0; s < p; ++s) {
      costs.stage.push_back({1 + pick(5), 1 + pick(9), 0, 0, 1 + pick(4), pick(3)});
    }
    for (int k = 0; k < m; ++k) costs.unit_scale.push_back(1 + pick(2));
    for (std::size_t e = 0; e < program.edges.size(); ++e) costs.edge_link.push_back({pick(3), 1});
    for (const TransferMode mode : {TransferMode::kBuffered, TransferMode::kRendezvous}) {
      costs.transfers = mode;
      EXPECT_DOUBLE_EQ(simulate(program, costs).makespan,
                       static_cast<double>(Clock(program, costs).makespan()))
          << options.name << " p=" << p << " m=" << m << " mode " << static_cast<int>(mode);
    }
  }
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
  // 64 devices, 512 units, about 130,000 compute instructions and as many transfers.
  const Program program = lowered(options_for("1f1b", 64, 512));
  EXPECT_DOUBLE_EQ(simulate(program, costs_of(program, 1, 2)).makespan, (512 + 63) * 3);
}

}  // namespace
}  // namespace pipetrain
