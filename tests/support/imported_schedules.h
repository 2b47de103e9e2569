// Schedules that the program knows only as files: what wrote schedules/*.schedule.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "pipeline/program/complete.h"
#include "pipeline/program/program.h"

namespace pipetrain {

/// What both have: a synchronous round without lists.
inline Program empty_round(const std::string& name, int devices, int stages, int micro_batches) {
  Program program;
  program.schedule = name;
  program.rule = UpdateRule::kSync;
  program.stages = stages;
  program.devices = devices;
  program.micro_batches = micro_batches;
  program.recompute.assign(static_cast<std::size_t>(stages), false);
  program.edges = chain_edges(stages);
  program.device.resize(static_cast<std::size_t>(devices));
  return program;
}

/// Chimera (Li and Hoefler, 2021): half of the micro-batches run down the devices, half up, so that
/// every stage is on two mirrored devices. `micro_batches` a multiple of `devices`, which is even.
inline Program chimera(int devices, int micro_batches) {
  Program program = empty_round("chimera", devices, devices, micro_batches);
  program.route.resize(static_cast<std::size_t>(micro_batches));
  std::vector<std::map<int, Instruction>> slots(static_cast<std::size_t>(devices));
  for (int s = 0; s < devices; ++s) program.placement.push_back({s, devices - 1 - s});
  const int half = devices / 2;
  for (int k = 0; k < micro_batches; ++k) {
    const int group = k / devices;
    const int up = k % devices / half;
    const int first = group * 2 * devices + 2 * (k % half);
    program.route[static_cast<std::size_t>(k)] = up;
    for (int s = 0; s < devices; ++s) {
      auto& list = slots[static_cast<std::size_t>(up ? devices - 1 - s : s)];
      list[first + s] = {Kind::kForward, s, k};
      list[first + 2 * devices - 1 - s] = {Kind::kBackward, s, k};
    }
  }
  for (std::size_t d = 0; d < slots.size(); ++d) {
    for (const auto& [slot, instruction] : slots[d]) program.device[d].push_back(instruction);
  }
  complete(program);
  return program;
}

/// One device of DualPipeV: every instruction takes the next micro-batch of its kind and chunk.
class DualPipeVDevice {
 public:
  DualPipeVDevice(int device, int devices) : stage_{device, 2 * devices - 1 - device} {}

  /// A forward and the backward that its authors overlap with it.
  void pair(int forward_chunk, int backward_chunk) {
    pairs_.insert(static_cast<int>(list_.size()));
    forward(forward_chunk);
    backward(backward_chunk);
  }
  void forward(int chunk) { add(Kind::kForward, chunk, forwards_[chunk]++); }
  void backward(int chunk, bool split = false) {
    const int micro_batch = backwards_[chunk]++;
    add(split ? Kind::kBackwardInput : Kind::kBackward, chunk, micro_batch);
    if (split) owed_.push_back({Kind::kBackwardWeight, stage_[chunk], micro_batch});
  }
  /// The weight gradient that waits longest, if any does.
  void weight() {
    if (paid_ < owed_.size()) list_.push_back(owed_[paid_++]);
  }
  bool owes() const { return paid_ < owed_.size(); }
  std::vector<Instruction> take() { return std::move(list_); }
  const std::set<int>& pairs() const { return pairs_; }

 private:
  void add(Kind kind, int chunk, int micro_batch) {
    list_.push_back({kind, stage_[chunk], micro_batch});
  }

  int stage_[2];
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::vector<Instruction> list_, owed_;
  std::size_t paid_ = 0;
  std::set<int> pairs_;
};

struct DualPipeV {
  Program program;
  std::vector<std::set<int>> pairs;  // [devices], where the forward of a pair stands
};

/// DualPipeV (DeepSeek, 2025), 2p stages down p devices and back up, `micro_batches` at least 2p.
/// Where it overlaps a forward with a backward the two follow each other here, in its order.
inline DualPipeV dual_pipe_v(int devices, int micro_batches) {
  const int p = devices;
  DualPipeV result;
  Program& program = result.program = empty_round("dualpipev", p, 2 * p, micro_batches);
  for (int s = 0; s < 2 * p; ++s) program.placement.push_back({s < p ? s : 2 * p - 1 - s});
  for (int r = 0; r < p; ++r) {
    DualPipeVDevice device(r, p);
    for (int n = 0; n < 2 * (p - 1 - r); ++n) device.forward(0);
    for (int n = 0; n < r + 1; ++n) {
      device.forward(0);
      device.forward(1);
    }
    for (int n = 0; n < p - 1 - r; ++n) {
      device.backward(1, /*split=*/true);
      device.weight();
      device.forward(1);
    }
    for (int n = 0; n < micro_batches - 2 * p + r + 1; ++n) {
      if (r == p - 1 && n == 0) {
        device.forward(0);
        device.backward(1);
      } else {
        device.pair(0, 1);
      }
      device.pair(1, 0);
    }
    for (int n = 0; n < p - 1 - r; ++n) {
      device.backward(1);
      device.pair(1, 0);
    }
    // From half-way on, weight gradients are deferred to the end.
    bool split = false;
    for (int n = 0; n < r + 1; ++n) {
      if (n == (r + 1) / 2 && r % 2 == 1) split = true;
      device.backward(1, split);
      if (n == (r + 1) / 2 && r % 2 == 0) split = true;
      device.backward(0, split);
    }
    for (int n = 0; n < p - 1 - r; ++n) {
      device.weight();
      device.backward(0, /*split=*/true);
    }
    while (device.owes()) device.weight();
    result.pairs.push_back(device.pairs());
    program.device[static_cast<std::size_t>(r)] = device.take();
  }
  complete(program);
  return result;
}

}  // namespace pipetrain
