// What a schedule computes, without numbers: every value is a hash of what it was made from. A
// program is run lane by lane in random order with real slots, buffers and weight copies, and
// compared with a plain serial loop that knows no schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipeline/program.h"

namespace pipetrain::symbolic {

using Hash = std::uint64_t;

inline Hash mix(Hash a, Hash b) {
  Hash x = a * 0x9E3779B97F4A7C15ULL + b + 0x7F4A7C15ULL;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 32;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// What remains of a round: the weights, and the running statistics that forwards leave behind on
/// every replica.
struct Result {
  std::vector<std::vector<Hash>> weights, statistics;  // [stages][replicas]
  bool operator==(const Result&) const = default;
};

/// Sum of the gradients of a stage's replicas, in their order; one replica's is left as it is.
inline Hash reduced(const std::vector<Hash>& sums) {
  if (sums.size() == 1) return sums[0];
  Hash total = 17;
  for (const Hash sum : sums) total = mix(total, sum);
  return total;
}

inline Hash initial_weight(int stage) { return mix(101, static_cast<Hash>(stage)); }
inline Hash forward_value(int stage, int unit, Hash inputs, Hash weight) {
  return mix(mix(mix(11, static_cast<Hash>(stage)), static_cast<Hash>(unit)), mix(inputs, weight));
}
inline Hash backward_value(int stage, int unit, Hash activation, Hash inputs, Hash gradients,
                           Hash weight) {
  return mix(mix(mix(13, static_cast<Hash>(stage)), static_cast<Hash>(unit)),
             mix(mix(activation, inputs), mix(gradients, weight)));
}

/// The round as one device without schedule would compute it: for every unit all forwards, then all
/// backwards. Of the program it reads what is declared, not the lists. `warm` (kStash, kVertical):
/// how many forwards a replica runs ahead of its first backward.
inline Result serial_round(const Program& program, const std::vector<int>& warm) {
  const UpdateRule rule = program.rule;
  const auto n = static_cast<std::size_t>(program.stages);
  std::vector<std::vector<Hash>> history(n), sums(n);  // history: every version of the weights
  std::vector<std::vector<int>> taken(n);              // units that each replica has had
  Result result;
  result.statistics.resize(n);
  for (std::size_t s = 0; s < n; ++s) {
    const std::size_t replicas = program.placement[s].size();
    history[s] = {initial_weight(static_cast<int>(s))};
    sums[s].assign(replicas, 0);
    taken[s].assign(replicas, 0);
    result.statistics[s].assign(replicas, 0);
  }
  const auto replica_of = [&](std::size_t s, int k) {
    return static_cast<std::size_t>(program.replica_of(static_cast<int>(s), k));
  };
  const auto version_of = [&](std::size_t s, int k) {
    const std::size_t replica = replica_of(s, k);
    if (rule == UpdateRule::kStash) {
      int units = 0;
      for (int j = 0; j < program.units; ++j) units += replica_of(s, j) == replica ? 1 : 0;
      return std::max(0, taken[s][replica] - std::min(units, warm.at(s)));
    }
    if (rule == UpdateRule::kVertical) return std::max(0, k - std::min(program.units, warm.at(0)));
    if (rule == UpdateRule::kDoubleBuffer) return std::max(0, k / program.units_per_update - 1);
    return 0;
  };
  for (int k = 0; k < program.units; ++k) {
    std::vector<Hash> values(n), gradients(n), inputs(n, 0), outer(n, 0), weight(n);
    for (std::size_t s = 0; s < n; ++s) {
      weight[s] = history[s].at(static_cast<std::size_t>(version_of(s, k)));
      ++taken[s][replica_of(s, k)];
      for (const Edge& e : program.edges) {
        if (!e.gradient && e.to_stage == static_cast<int>(s)) {
          inputs[s] = mix(inputs[s], values[static_cast<std::size_t>(e.from_stage)]);
        }
      }
      values[s] = forward_value(static_cast<int>(s), k, inputs[s], weight[s]);
      Hash& statistics = result.statistics[s][replica_of(s, k)];
      statistics = mix(statistics, values[s]);
    }
    if (rule == UpdateRule::kNone) continue;
    for (std::size_t s = n; s-- > 0;) {
      for (const Edge& e : program.edges) {
        if (e.gradient && e.to_stage == static_cast<int>(s)) {
          outer[s] = mix(outer[s], gradients[static_cast<std::size_t>(e.from_stage)]);
        }
      }
      gradients[s] =
          backward_value(static_cast<int>(s), k, values[s], inputs[s], outer[s], weight[s]);
      Hash& sum = sums[s][replica_of(s, k)];
      sum = mix(sum, gradients[s]);
      const int size = program.group_size(static_cast<int>(s));
      const bool ends_group = (k + 1) % size == 0 || k + 1 == program.units;
      if (rule != UpdateRule::kSync && ends_group) {
        history[s].push_back(mix(history[s].back(), reduced(sums[s])));
        std::fill(sums[s].begin(), sums[s].end(), 0);
      }
    }
  }
  Hash norm = 0;
  for (std::size_t s = 0; s < n && program.gradient_sync; ++s) norm = mix(norm, reduced(sums[s]));
  for (std::size_t s = 0; s < n; ++s) {
    if (rule == UpdateRule::kSync) {
      history[s].push_back(mix(history[s].back(), mix(reduced(sums[s]), norm)));
    }
    result.weights.emplace_back(program.placement[s].size(), history[s].back());
  }
  return result;
}

/// Runs a lowered program as the runtime would, in a random interleaving of all lanes: compute, and
/// both ends of every channel. Throws std::runtime_error where it stops or reads what is not there.
class Run {
 public:
  Run(const Program& program, std::uint32_t seed) : program_(program), random_(seed) {
    for (std::size_t s = 0; s < program.placement.size(); ++s) {
      auto& replicas = replicas_.emplace_back(program.placement[s].size());
      for (Replica& replica : replicas) {
        replica.copies.assign(static_cast<std::size_t>(std::max(1, program.versions_per_stage[s])),
                              0);
        replica.copies[0] = initial_weight(static_cast<int>(s));
        replica.slots.assign(static_cast<std::size_t>(program.slots_per_stage[s]), 0);
      }
    }
    make_lanes();
  }

  Result run() {
    std::size_t left = 0;
    for (const Lane& lane : lanes_) left += lane.instructions.size();
    while (left > 0) {
      std::vector<std::size_t> ready;
      for (std::size_t l = 0; l < lanes_.size(); ++l) {
        if (!lanes_[l].done() && can_run(lanes_[l])) ready.push_back(l);
      }
      if (ready.empty()) throw std::runtime_error("stuck");
      Lane& lane = lanes_[ready[random_() % ready.size()]];
      const Instruction& instruction = lane.head(program_);
      if (is_joint(instruction)) {
        left -= run_together(instruction);
        continue;
      }
      execute(lane, instruction);
      done_.at(lane.device).at(static_cast<std::size_t>(lane.instructions[lane.next])) = true;
      ++lane.next;
      --left;
    }
    Result result;
    for (const auto& replicas : replicas_) {
      auto& weights = result.weights.emplace_back();
      auto& statistics = result.statistics.emplace_back();
      for (const Replica& replica : replicas) {
        weights.push_back(
            replica.copies.at(static_cast<std::size_t>(replica.latest) % replica.copies.size()));
        statistics.push_back(replica.statistics);
      }
    }
    return result;
  }

 private:
  /// What a device holds of a stage.
  struct Replica {
    std::vector<Hash> copies, slots;
    Hash sum = 0;
    Hash statistics = 0;
    int latest = 0;
  };

  Replica& replica_on(int stage, std::size_t device) {
    const int replica = program_.replica_on(stage, static_cast<int>(device));
    if (replica < 0) throw std::runtime_error("a stage that is not on this device");
    return replicas_.at(static_cast<std::size_t>(stage)).at(static_cast<std::size_t>(replica));
  }

  /// Instructions that several devices run together.
  static bool is_joint(const Instruction& instruction) {
    return instruction.kind == Kind::kGradientSync || instruction.kind == Kind::kReduce;
  }

  struct Lane {
    std::size_t device = 0;
    bool compute = false;
    std::vector<int> instructions;
    std::size_t next = 0;
    bool done() const { return next == instructions.size(); }
    std::size_t index() const { return static_cast<std::size_t>(instructions[next]); }
    const Instruction& head(const Program& program) const {
      return program.device[device][index()];
    }
  };

  const Transfer& transfer(const Instruction& instruction) const {
    return program_.transfers.at(static_cast<std::size_t>(instruction.transfer));
  }

  void make_lanes() {
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      std::map<std::vector<int>, Lane> lanes;
      for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
        const Instruction& instruction = program_.device[d][i];
        std::vector<int> key = {-1};
        if (is_transfer(instruction.kind)) {
          const Transfer& t = transfer(instruction);
          const bool send = instruction.kind == Kind::kSend;
          if (static_cast<std::size_t>(send ? t.from_device : t.to_device) != d) {
            throw std::runtime_error("a transfer on a device that has no part in it");
          }
          key = {send ? 0 : 1, send ? t.to_device : t.from_device, t.gradient};
        }
        Lane& lane = lanes[key];
        lane.device = d;
        lane.compute = !is_transfer(instruction.kind);
        lane.instructions.push_back(static_cast<int>(i));
      }
      for (auto& [key, lane] : lanes) lanes_.push_back(lane);
      done_.emplace_back(program_.device[d].size(), false);
    }
  }

  bool is_done(std::size_t device, std::size_t index) const { return done_[device][index]; }

  /// Indices on this device of the receives that feed (stage, unit).
  std::vector<std::size_t> receives(std::size_t device, int stage, int unit, bool gradient) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < program_.device[device].size(); ++i) {
      const Instruction& r = program_.device[device][i];
      if (r.kind == Kind::kReceive && r.stage == stage && r.unit == unit &&
          transfer(r).gradient == gradient) {
        found.push_back(i);
      }
    }
    return found;
  }

  static bool needs_gradient(Kind kind) {
    return kind == Kind::kBackward || kind == Kind::kBackwardInput;
  }

  bool can_run(const Lane& lane) const {
    const Instruction& instruction = lane.head(program_);
    if (is_joint(instruction)) {
      std::size_t there = 0;
      for (const Lane& other : lanes_) there += joins(other, instruction) ? 1 : 0;
      return there ==
             (instruction.kind == Kind::kReduce
                  ? program_.placement.at(static_cast<std::size_t>(instruction.stage)).size()
                  : program_.device.size());
    }
    if (instruction.kind == Kind::kSend) {
      return outputs_.count({instruction.stage, instruction.unit, transfer(instruction).gradient}) >
             0;
    }
    if (instruction.kind == Kind::kReceive) return can_receive(lane, instruction);
    if (instruction.kind == Kind::kForward || needs_gradient(instruction.kind)) {
      const bool gradient = instruction.kind != Kind::kForward;
      for (const std::size_t i :
           receives(lane.device, instruction.stage, instruction.unit, gradient)) {
        if (!is_done(lane.device, i)) return false;
      }
    }
    return true;
  }

  bool joins(const Lane& lane, const Instruction& instruction) const {
    if (!lane.compute || lane.done()) return false;
    const Instruction& head = lane.head(program_);
    return head.kind == instruction.kind && head.stage == instruction.stage &&
           head.unit == instruction.unit;
  }

  /// There is data, and whoever holds the buffer by the list is through with it.
  bool can_receive(const Lane& lane, const Instruction& instruction) const {
    const Transfer& t = transfer(instruction);
    const auto channel = channels_.find({t.from_device, t.to_device, t.gradient});
    if (channel == channels_.end() || channel->second.empty()) return false;
    const auto& list = program_.device[lane.device];
    for (std::size_t i = 0; i < lane.index(); ++i) {
      const Instruction& before = list[i];
      if (before.kind != Kind::kReceive || before.slot != instruction.slot ||
          transfer(before).edge != t.edge) {
        continue;
      }
      for (std::size_t j = 0; j < lane.index(); ++j) {
        const bool reads = is_compute(list[j].kind) && list[j].stage == before.stage &&
                           list[j].unit == before.unit;
        if (reads && !is_done(lane.device, j)) return false;
      }
    }
    return true;
  }

  /// What the stage reads from others, folded in the order of the edges.
  Hash read_inputs(std::size_t device, const Instruction& instruction, bool gradient) {
    Hash folded = 0;
    for (std::size_t e = 0; e < program_.edges.size(); ++e) {
      const Edge& edge = program_.edges[e];
      if (edge.to_stage != instruction.stage || edge.gradient != gradient) continue;
      Hash value = 0;
      bool found = false;
      for (const std::size_t i : receives(device, instruction.stage, instruction.unit, gradient)) {
        const Instruction& r = program_.device[device][i];
        if (transfer(r).edge != static_cast<int>(e)) continue;
        value = buffers_.at({static_cast<int>(e), static_cast<int>(device), r.slot});
        found = true;
      }
      if (!found) {
        // Handed over inside the device, or missing.
        if (program_.device_of(edge.from_stage, instruction.unit) !=
            program_.device_of(edge.to_stage, instruction.unit)) {
          throw std::runtime_error("an input that is never received");
        }
        value = outputs_.at({edge.from_stage, instruction.unit, gradient});
      }
      folded = mix(folded, value);
    }
    return folded;
  }

  void execute(const Lane& lane, const Instruction& instruction) {
    Replica& replica = replica_on(instruction.stage, lane.device);
    if (instruction.kind == Kind::kSend) {
      const Transfer& t = transfer(instruction);
      channels_[{t.from_device, t.to_device, t.gradient}].push(
          outputs_.at({instruction.stage, instruction.unit, t.gradient}));
      return;
    }
    if (instruction.kind == Kind::kReceive) {
      const Transfer& t = transfer(instruction);
      auto& channel = channels_.at({t.from_device, t.to_device, t.gradient});
      if (instruction.slot >= program_.slots_per_edge.at(static_cast<std::size_t>(t.edge))) {
        throw std::runtime_error("a receive buffer that is not declared");
      }
      buffers_[{t.edge, t.to_device, instruction.slot}] = channel.front();
      channel.pop();
      return;
    }
    if (instruction.kind == Kind::kUpdate) return update(replica, instruction);
    const Hash weight =
        replica.copies.at(static_cast<std::size_t>(instruction.version) % replica.copies.size());
    Hash& slot = replica.slots.at(static_cast<std::size_t>(instruction.slot));
    const Hash inputs = read_inputs(lane.device, instruction, false);
    const Hash value = forward_value(instruction.stage, instruction.unit, inputs, weight);
    if (instruction.kind == Kind::kForward) {
      slot = value;
      outputs_[{instruction.stage, instruction.unit, false}] = value;
      replica.statistics = mix(replica.statistics, value);
      return;
    }
    if (instruction.kind == Kind::kRecompute) {
      slot = value;
      return;
    }
    const Hash gradient = backward_value(instruction.stage, instruction.unit, slot, inputs,
                                         read_inputs(lane.device, instruction, true), weight);
    if (needs_gradient(instruction.kind)) {
      outputs_[{instruction.stage, instruction.unit, true}] = gradient;
    }
    if (adds_gradient(instruction.kind)) replica.sum = mix(replica.sum, gradient);
  }

  void update(Replica& replica, const Instruction& instruction) {
    auto& copies = replica.copies;
    if (instruction.version < 1) throw std::runtime_error("an update that makes no version");
    const Hash before = copies[static_cast<std::size_t>(instruction.version - 1) % copies.size()];
    const Hash sum = program_.rule == UpdateRule::kSync ? mix(replica.sum, norm_) : replica.sum;
    copies[static_cast<std::size_t>(instruction.version) % copies.size()] = mix(before, sum);
    replica.sum = 0;
    replica.latest = instruction.version;
  }

  /// Runs a reduce or a gradient sync on all its devices; returns on how many.
  std::size_t run_together(const Instruction instruction) {
    if (instruction.kind == Kind::kReduce) {
      std::vector<Hash> sums;
      auto& replicas = replicas_.at(static_cast<std::size_t>(instruction.stage));
      for (const Replica& replica : replicas) sums.push_back(replica.sum);
      for (Replica& replica : replicas) replica.sum = reduced(sums);
    } else {
      // Replicas have been summed before.
      norm_ = 0;
      for (const auto& replicas : replicas_) norm_ = mix(norm_, replicas[0].sum);
    }
    std::size_t count = 0;
    for (Lane& lane : lanes_) {
      if (!joins(lane, instruction)) continue;
      done_.at(lane.device).at(lane.index()) = true;
      ++lane.next;
      ++count;
    }
    return count;
  }

  const Program& program_;
  std::mt19937 random_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<bool>> done_;
  std::vector<std::vector<Replica>> replicas_;  // [stages][replicas]
  std::map<std::vector<int>, Hash> buffers_;    // edge, device, slot
  std::map<std::vector<int>, Hash> outputs_;    // stage, unit, gradient
  std::map<std::vector<int>, std::queue<Hash>> channels_;
  Hash norm_ = 0;
};

}  // namespace pipetrain::symbolic
