// Simulations of random programs against a clock that runs them tick by tick.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "pipeline/schedule/warm_up.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

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

  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  bool finished(std::size_t d, std::size_t i) const {
    return end_[d][i] >= 0 && end_[d][i] <= now_;
  }

  long whole(double seconds) const { return std::lround(seconds); }

  /// Looks an instruction up by what it does.
  std::pair<std::size_t, std::size_t> find(Kind kind, int stage, int micro_batch,
                                           int transfer) const {
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
        const Instruction& x = program_.device[d][i];
        if (x.kind == kind && x.stage == stage && x.micro_batch == micro_batch &&
            x.transfer == transfer) {
          return {d, i};
        }
      }
    }
    return {0, kNowhere};
  }

  bool step(Lane& lane) {
    if (lane.next == lane.list.size()) return false;
    if (lane.next > 0 && !finished(lane.device, lane.list[lane.next - 1])) return false;
    const std::size_t index = lane.list[lane.next];
    const Instruction& x = program_.device[lane.device][index];
    const double scale = x.micro_batch < 0 || costs_.micro_batch_scale.empty()
                             ? 1
                             : costs_.micro_batch_scale[static_cast<std::size_t>(x.micro_batch)];
    double seconds = 0;
    if (x.kind == Kind::kReduce || x.kind == Kind::kGradientSync) return meet(lane, x);
    if (is_transfer(x.kind)) {
      const Transfer& t = program_.transfers[static_cast<std::size_t>(x.transfer)];
      const auto edge = static_cast<std::size_t>(t.edge);
      const LinkCost& link = costs_.edge_link[edge];
      const double wire = scale * static_cast<double>(program_.edges[edge].bytes_per_micro_batch) /
                          link.bytes_per_second;
      const auto [sd, si] = find(Kind::kSend, t.from_stage, t.micro_batch, x.transfer);
      const auto [rd, ri] = find(Kind::kReceive, t.to_stage, t.micro_batch, x.transfer);
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
      auto [pd, pi] =
          find(t.gradient ? Kind::kBackward : Kind::kForward, t.from_stage, t.micro_batch, -1);
      if (pi == kNowhere) {
        std::tie(pd, pi) = find(Kind::kBackwardInput, t.from_stage, t.micro_batch, -1);
      }
      if (!finished(pd, pi)) return false;
      seconds = wire;
    } else {
      for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
        const Transfer& in = program_.transfers[t];
        if (in.to_stage != x.stage || in.micro_batch != x.micro_batch) continue;
        const bool backward = x.kind == Kind::kBackward || x.kind == Kind::kBackwardInput;
        if (in.gradient ? !backward : x.kind != Kind::kForward) continue;
        const auto [rd, ri] = find(Kind::kReceive, x.stage, x.micro_batch, static_cast<int>(t));
        if (!finished(rd, ri)) return false;
      }
      const StageSeconds& stage = costs_.stage[static_cast<std::size_t>(x.stage)];
      seconds = x.kind == Kind::kForward          ? stage.forward * scale
                : x.kind == Kind::kBackward       ? stage.backward * scale
                : x.kind == Kind::kBackwardInput  ? stage.backward_input * scale
                : x.kind == Kind::kBackwardWeight ? stage.backward_weight * scale
                : x.kind == Kind::kRecompute      ? stage.recompute * scale
                                                  : stage.update;
      if (!costs_.device_scale.empty()) seconds *= costs_.device_scale[lane.device];
    }
    end_[lane.device][index] = now_ + whole(seconds);
    ++lane.next;
    return true;
  }

  /// A reduce or a gradient sync: when all its devices are there, all go through it.
  bool meet(Lane& lane, const Instruction& x) {
    std::vector<Lane*> members;
    for (Lane& other : lanes_) {
      if (&other != &lane && other.next == other.list.size()) continue;
      const Instruction& head = program_.device[other.device][other.list[other.next]];
      if (head.kind != x.kind || head.stage != x.stage || head.micro_batch != x.micro_batch)
        continue;
      if (other.next > 0 && !finished(other.device, other.list[other.next - 1])) continue;
      members.push_back(&other);
    }
    const bool sync = x.kind == Kind::kGradientSync;
    const auto wanted =
        static_cast<std::size_t>(sync ? program_.devices : program_.replicas(x.stage));
    if (members.size() != wanted) return false;
    const double seconds = sync ? costs_.gradient_sync_seconds
                                : costs_.stage[static_cast<std::size_t>(x.stage)].reduce;
    for (Lane* member : members) {
      end_[member->device][member->list[member->next]] = now_ + whole(seconds);
      ++member->next;
    }
    return true;
  }

  const Program& program_;
  const Costs& costs_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<long>> end_;
  long now_ = 0;
};

/// A random program of any schedule, lowered.
Program random_program(std::mt19937& random) {
  const auto below = [&](unsigned bound) { return static_cast<int>(random() % bound); };
  const auto& all = schedules();
  const ScheduleDescription& schedule = all[random() % all.size()];
  const bool chain = schedule.placement == Placement::kChain;
  const int p = chain ? 1 + below(4) : 2 + 2 * below(2);
  ScheduleOptions options = options_for(schedule.name, p, chain ? 1 + below(5) : 4);
  if (schedule.takes_replicas && below(2) == 0) {
    for (int s = 0; s < p; ++s) options.replicas.push_back(1 + below(3));
  } else if (schedule.takes_warm_up && schedule.rule != UpdateRule::kDoubleBuffer &&
             !schedule.splits_backward) {
    options.warm = random_warm_up(p, random);
  }
  for (int s = 0; s < p && schedule.rule != UpdateRule::kNone; ++s) {
    options.recompute.push_back(below(2) == 0);
  }
  options.gradient_sync = schedule.rule == UpdateRule::kSync && below(2) == 0;
  return lower(generate(options), random_edges(p, random));
}

TEST(Simulate, AgreesWithAClockOnRandomCosts) {
  std::mt19937 random(3);
  const auto pick = [&](unsigned most) { return static_cast<double>(random() % (most + 1)); };
  for (int n = 0; n < 300; ++n) {
    const Program program = random_program(random);
    Costs costs;
    for (int s = 0; s < program.stages; ++s) {
      costs.stage.push_back(
          {1 + pick(5), 1 + pick(9), 1 + pick(5), 1 + pick(5), 1 + pick(4), pick(3), pick(3)});
    }
    costs.gradient_sync_seconds = pick(3);
    for (int k = 0; k < program.micro_batches; ++k) costs.micro_batch_scale.push_back(1 + pick(2));
    for (int d = 0; d < program.devices; ++d) costs.device_scale.push_back(1 + pick(1));
    for (std::size_t e = 0; e < program.edges.size(); ++e) costs.edge_link.push_back({pick(3), 1});
    for (const TransferMode mode : {TransferMode::kBuffered, TransferMode::kRendezvous}) {
      costs.transfers = mode;
      const Simulation result = simulate(program, costs);
      EXPECT_DOUBLE_EQ(result.makespan, static_cast<double>(Clock(program, costs).makespan()))
          << program.schedule << " p=" << program.stages << " m=" << program.micro_batches
          << " mode " << static_cast<int>(mode);
      for (std::size_t d = 0; d < result.idle.size(); ++d) {
        const IdleSeconds& split = result.idle_split[d];
        EXPECT_NEAR(split.warm_up + split.steady + split.drain, result.idle[d], 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain
