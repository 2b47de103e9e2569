// Symbolic execution of a schedule: every value is a hash of its inputs. A program is run lane by
// lane in random order with real slots, buffers and weight copies, and compared with a plain serial
// loop that knows no schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipeline/program/program.h"

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

/// What remains of a round on each replica of each stage: the weights, and the running statistics
/// that forwards leave behind.
struct Result {
  std::vector<Hash> weights, statistics;
  bool operator==(const Result&) const = default;
};

inline Hash initial_weight(int stage) { return mix(101, static_cast<Hash>(stage)); }
inline Hash forward_value(int stage, int micro_batch, Hash inputs, Hash weight) {
  return mix(mix(mix(11, static_cast<Hash>(stage)), static_cast<Hash>(micro_batch)),
             mix(inputs, weight));
}
inline Hash backward_value(int stage, int micro_batch, Hash activation, Hash inputs, Hash gradients,
                           Hash weight) {
  return mix(mix(mix(13, static_cast<Hash>(stage)), static_cast<Hash>(micro_batch)),
             mix(mix(activation, inputs), mix(gradients, weight)));
}

/// What the replicas of a stage make of their gradients together.
inline Hash reduced(const std::vector<Hash>& sums) {
  Hash total = sums[0];
  for (std::size_t r = 1; r < sums.size(); ++r) total = mix(total, sums[r]);
  return total;
}

/// The version that a micro-batch reads on a stage. `warm` (kStash, kVertical): how many
/// micro-batches of its replica a stage's forward lags behind.
inline int version_of(const Program& shape, const std::vector<int>& warm, int stage,
                      int micro_batch) {
  const int group = micro_batch / shape.group_size(stage);
  switch (shape.rule) {
    case UpdateRule::kStash:
      return std::max(0, group - warm.at(static_cast<std::size_t>(stage)));
    case UpdateRule::kVertical:
      return std::max(0, group - warm.at(0));
    case UpdateRule::kDoubleBuffer:
      return std::max(0, group - 1);
    default:
      return 0;
  }
}

/// The round as one device without schedule would compute it. Of `shape` only the sizes, the edges,
/// the replicas and the rule are read, not the lists.
inline Result serial_round(const Program& shape, const std::vector<int>& warm) {
  const auto n = static_cast<std::size_t>(shape.stages);
  std::vector<std::vector<Hash>> history(n);              // every version of each stage's weights
  std::vector<std::vector<Hash>> sums(n), statistics(n);  // of each replica
  for (std::size_t s = 0; s < n; ++s) {
    history[s] = {initial_weight(static_cast<int>(s))};
    sums[s].assign(shape.placement[s].size(), 0);
    statistics[s] = sums[s];
  }
  for (int k = 0; k < shape.micro_batches; ++k) {
    std::vector<Hash> values(n), gradients(n), inputs(n, 0), outer(n, 0), weight(n);
    for (std::size_t s = 0; s < n; ++s) {
      const int stage = static_cast<int>(s);
      weight[s] = history[s].at(static_cast<std::size_t>(version_of(shape, warm, stage, k)));
      for (const Edge& e : shape.edges) {
        if (!e.gradient && e.to_stage == stage) {
          inputs[s] = mix(inputs[s], values[static_cast<std::size_t>(e.from_stage)]);
        }
      }
      values[s] = forward_value(stage, k, inputs[s], weight[s]);
      Hash& seen = statistics[s][static_cast<std::size_t>(shape.replica_of(stage, k))];
      seen = mix(seen, values[s]);
    }
    if (shape.rule == UpdateRule::kNone) continue;
    for (std::size_t s = n; s-- > 0;) {
      const int stage = static_cast<int>(s);
      for (const Edge& e : shape.edges) {
        if (e.gradient && e.to_stage == stage) {
          outer[s] = mix(outer[s], gradients[static_cast<std::size_t>(e.from_stage)]);
        }
      }
      gradients[s] = backward_value(stage, k, values[s], inputs[s], outer[s], weight[s]);
      Hash& sum = sums[s][static_cast<std::size_t>(shape.replica_of(stage, k))];
      sum = mix(sum, gradients[s]);
      const bool ends_group =
          (k + 1) % shape.group_size(stage) == 0 || k + 1 == shape.micro_batches;
      if (shape.rule == UpdateRule::kSync || !ends_group) continue;
      history[s].push_back(mix(history[s].back(), reduced(sums[s])));
      sums[s].assign(sums[s].size(), 0);
    }
  }
  Hash norm = 0;
  if (shape.gradient_sync) {
    for (const auto& replicas : sums) norm = mix(norm, reduced(replicas));
  }
  Result result;
  for (std::size_t s = 0; s < n; ++s) {
    if (shape.rule == UpdateRule::kSync) {
      history[s].push_back(mix(history[s].back(), mix(reduced(sums[s]), norm)));
    }
    result.weights.insert(result.weights.end(), sums[s].size(), history[s].back());
    result.statistics.insert(result.statistics.end(), statistics[s].begin(), statistics[s].end());
  }
  return result;
}

/// The same for a chain of stages without replicas.
inline Result serial_round(UpdateRule rule, int stages, int micro_batches,
                           const std::vector<Edge>& edges, bool gradient_sync,
                           const std::vector<int>& warm) {
  Program shape;
  shape.rule = rule;
  shape.stages = stages;
  shape.micro_batches = micro_batches;
  shape.gradient_sync = gradient_sync;
  for (int s = 0; s < stages; ++s) shape.placement.push_back({s});
  shape.edges = edges;
  return serial_round(shape, warm);
}

/// Runs a lowered program as the runtime would, in a random interleaving of all lanes: compute, and
/// both ends of every channel. Throws std::runtime_error where it stops or reads what is not there.
class Run {
 public:
  Run(const Program& program, std::uint32_t seed) : program_(program), random_(seed) {
    const auto stages = static_cast<std::size_t>(program.stages);
    for (std::size_t s = 0; s < stages; ++s) {
      first_row_.push_back(latest_.size());
      for (std::size_t r = 0; r < program.placement.at(s).size(); ++r) {
        copies_.emplace_back(
            static_cast<std::size_t>(std::max(1, program.versions_per_stage.at(s))), 0);
        copies_.back()[0] = initial_weight(static_cast<int>(s));
        slots_.emplace_back(static_cast<std::size_t>(program.slots_per_stage.at(s)), 0);
        latest_.push_back(0);
      }
    }
    for (std::size_t e = 0; e < program.edges.size(); ++e) {
      const auto to = static_cast<std::size_t>(program.edges[e].to_stage);
      const std::vector<Hash> empty(static_cast<std::size_t>(program.slots_per_edge.at(e)), 0);
      buffers_.emplace_back(program.placement.at(to).size(), empty);
    }
    sums_.assign(latest_.size(), 0);
    result_.statistics.assign(latest_.size(), 0);
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
      if (instruction.kind == Kind::kGradientSync) {
        left -= run_sync();
        continue;
      }
      if (instruction.kind == Kind::kReduce) {
        left -= run_reduce(instruction);
        continue;
      }
      execute(lane, instruction);
      done_.at(lane.device).at(static_cast<std::size_t>(lane.instructions[lane.next])) = true;
      ++lane.next;
      --left;
    }
    for (std::size_t s = 0; s < copies_.size(); ++s) {
      result_.weights.push_back(
          copies_[s].at(static_cast<std::size_t>(latest_[s]) % copies_[s].size()));
    }
    return result_;
  }

 private:
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

  /// Indices on this device of the receives that feed (stage, micro-batch).
  std::vector<std::size_t> receives(std::size_t device, int stage, int micro_batch,
                                    bool gradient) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < program_.device[device].size(); ++i) {
      const Instruction& r = program_.device[device][i];
      if (r.kind == Kind::kReceive && r.stage == stage && r.micro_batch == micro_batch &&
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
    if (instruction.kind == Kind::kGradientSync) {
      for (const Lane& other : lanes_) {
        if (other.compute && (other.done() || other.head(program_).kind != Kind::kGradientSync)) {
          return false;
        }
      }
      return true;
    }
    if (instruction.kind == Kind::kReduce) {
      std::size_t there = 0;
      for (const Lane& other : lanes_) there += meets(other, instruction) ? 1 : 0;
      return there == replicas(instruction.stage);
    }
    if (instruction.kind == Kind::kSend) {
      return outputs_.count(
                 {instruction.stage, instruction.micro_batch, transfer(instruction).gradient}) > 0;
    }
    if (instruction.kind == Kind::kReceive) return can_receive(lane, instruction);
    if (instruction.kind == Kind::kForward || needs_gradient(instruction.kind)) {
      const bool gradient = instruction.kind != Kind::kForward;
      for (const std::size_t i :
           receives(lane.device, instruction.stage, instruction.micro_batch, gradient)) {
        if (!is_done(lane.device, i)) return false;
      }
    }
    return true;
  }

  std::size_t replicas(int stage) const {
    return program_.placement.at(static_cast<std::size_t>(stage)).size();
  }

  // As the functions of Program, but for programs in which anything may be wrong.
  int replica_of(int stage, int micro_batch) const {
    const std::size_t count = replicas(stage);
    if (count == 0 || micro_batch < 0)
      throw std::runtime_error("a micro-batch that does not exist");
    const int number = program_.route.empty()
                           ? micro_batch
                           : program_.route.at(static_cast<std::size_t>(micro_batch));
    if (number < 0) throw std::runtime_error("a replica that is not there");
    return number % static_cast<int>(count);
  }
  int device_of(int stage, int micro_batch) const {
    return program_.placement.at(static_cast<std::size_t>(stage))
        .at(static_cast<std::size_t>(replica_of(stage, micro_batch)));
  }
  int replica_on(int stage, std::size_t device) const {
    const auto& devices = program_.placement.at(static_cast<std::size_t>(stage));
    const auto found = std::find(devices.begin(), devices.end(), static_cast<int>(device));
    if (found == devices.end()) throw std::runtime_error("a stage that is not on this device");
    return static_cast<int>(found - devices.begin());
  }

  /// The row of the replica of a stage on a device.
  std::size_t row(int stage, std::size_t device) const {
    return first_row_.at(static_cast<std::size_t>(stage)) +
           static_cast<std::size_t>(replica_on(stage, device));
  }

  /// A lane has come to this reduce.
  bool meets(const Lane& lane, const Instruction& reduce) const {
    if (!lane.compute || lane.done()) return false;
    const Instruction& head = lane.head(program_);
    return head.kind == Kind::kReduce && head.stage == reduce.stage &&
           head.micro_batch == reduce.micro_batch && replica_on(reduce.stage, lane.device) >= 0;
  }

  /// The data is there, and the previous user of the buffer is done.
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
                           list[j].micro_batch == before.micro_batch;
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
      for (const std::size_t i :
           receives(device, instruction.stage, instruction.micro_batch, gradient)) {
        const Instruction& r = program_.device[device][i];
        if (transfer(r).edge != static_cast<int>(e)) continue;
        value = buffer(e, instruction, r.slot);
        found = true;
      }
      if (!found) {
        // Passed within the device, or missing.
        if (device_of(edge.from_stage, instruction.micro_batch) !=
            device_of(edge.to_stage, instruction.micro_batch)) {
          throw std::runtime_error("an input that is never received");
        }
        value = outputs_.at({edge.from_stage, instruction.micro_batch, gradient});
      }
      folded = mix(folded, value);
    }
    return folded;
  }

  Hash& buffer(std::size_t edge, const Instruction& instruction, int slot) {
    const int replica = replica_of(instruction.stage, instruction.micro_batch);
    return buffers_.at(edge)
        .at(static_cast<std::size_t>(replica))
        .at(static_cast<std::size_t>(slot));
  }

  void execute(const Lane& lane, const Instruction& instruction) {
    const std::size_t s = row(instruction.stage, lane.device);
    if (instruction.kind != Kind::kUpdate &&
        device_of(instruction.stage, instruction.micro_batch) != static_cast<int>(lane.device)) {
      throw std::runtime_error("a micro-batch of another device");
    }
    if (instruction.kind == Kind::kSend) {
      const Transfer& t = transfer(instruction);
      channels_[{t.from_device, t.to_device, t.gradient}].push(
          outputs_.at({instruction.stage, instruction.micro_batch, t.gradient}));
      return;
    }
    if (instruction.kind == Kind::kReceive) {
      const Transfer& t = transfer(instruction);
      auto& channel = channels_.at({t.from_device, t.to_device, t.gradient});
      buffer(static_cast<std::size_t>(t.edge), instruction, instruction.slot) = channel.front();
      channel.pop();
      return;
    }
    if (instruction.kind == Kind::kUpdate) return update(instruction, s);
    const Hash weight =
        copies_.at(s).at(static_cast<std::size_t>(instruction.version) % copies_[s].size());
    Hash& slot = slots_.at(s).at(static_cast<std::size_t>(instruction.slot));
    const Hash inputs = read_inputs(lane.device, instruction, false);
    const Hash value = forward_value(instruction.stage, instruction.micro_batch, inputs, weight);
    if (instruction.kind == Kind::kForward) {
      slot = value;
      outputs_[{instruction.stage, instruction.micro_batch, false}] = value;
      result_.statistics[s] = mix(result_.statistics[s], value);
      return;
    }
    if (instruction.kind == Kind::kRecompute) {
      slot = value;
      return;
    }
    const Hash gradient = backward_value(instruction.stage, instruction.micro_batch, slot, inputs,
                                         read_inputs(lane.device, instruction, true), weight);
    if (needs_gradient(instruction.kind)) {
      outputs_[{instruction.stage, instruction.micro_batch, true}] = gradient;
    }
    if (adds_gradient(instruction.kind)) sums_[s] = mix(sums_[s], gradient);
  }

  void update(const Instruction& instruction, std::size_t s) {
    const std::size_t count = copies_.at(s).size();
    if (instruction.version < 1) throw std::runtime_error("an update that makes no version");
    const Hash before = copies_[s][static_cast<std::size_t>(instruction.version - 1) % count];
    const Hash sum = program_.rule == UpdateRule::kSync ? mix(sums_[s], norm_) : sums_[s];
    copies_[s][static_cast<std::size_t>(instruction.version) % count] = mix(before, sum);
    sums_[s] = 0;
    latest_[s] = instruction.version;
  }

  std::size_t run_sync() {
    norm_ = 0;
    for (const std::size_t first : first_row_) norm_ = mix(norm_, sums_[first]);
    std::size_t count = 0;
    for (Lane& lane : lanes_) {
      if (!lane.compute) continue;
      ++lane.next;
      ++count;
    }
    return count;
  }

  /// The sum of all replicas on each of them.
  std::size_t run_reduce(Instruction instruction) {
    const std::size_t first = first_row_.at(static_cast<std::size_t>(instruction.stage));
    const auto begin = sums_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(replicas(instruction.stage));
    const Hash total = reduced(std::vector<Hash>(begin, end));
    std::fill(begin, end, total);
    std::size_t count = 0;
    for (Lane& lane : lanes_) {
      if (!meets(lane, instruction)) continue;
      ++lane.next;
      ++count;
    }
    return count;
  }

  const Program& program_;
  std::mt19937 random_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<bool>> done_;
  std::vector<std::size_t> first_row_;                   // [stages]
  std::vector<std::vector<Hash>> copies_, slots_;        // [rows]
  std::vector<std::vector<std::vector<Hash>>> buffers_;  // [edges][receiving replicas]
  std::vector<Hash> sums_;                               // [rows]
  std::vector<int> latest_;                              // [rows]
  std::map<std::vector<int>, Hash> outputs_;             // stage, micro-batch, gradient
  std::map<std::vector<int>, std::queue<Hash>> channels_;
  Hash norm_ = 0;
  Result result_;
};

}  // namespace pipetrain::symbolic
