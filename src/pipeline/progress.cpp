#include "pipeline/progress.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace pipetrain {
namespace {

class ProgressRun {
 public:
  ProgressRun(const Program& program, Lanes lanes)
      : program_(program), lanes_(lanes), received_(program.transfers.size(), false) {
    split_lanes();
    collect_inputs();
  }

  std::string run() {
    while (std::any_of(awake_.begin(), awake_.end(), [](bool awake) { return awake; })) {
      for (std::size_t d = 0; d < queues_.size(); ++d) {
        if (!awake_[d]) continue;
        awake_[d] = false;
        while (advance(d)) {
        }
      }
    }
    return describe();
  }

 private:
  static constexpr std::size_t kLaneCount = 3;
  struct Queue {
    std::vector<int> instructions;  // indices into the device's list
    std::size_t next = 0;
    bool done() const { return next == instructions.size(); }
  };

  void split_lanes() {
    queues_.resize(program_.device.size());
    awake_.assign(program_.device.size(), true);
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
        queues_[d][lane_of(program_.device[d][i])].instructions.push_back(static_cast<int>(i));
      }
    }
  }

  std::size_t lane_of(const Instruction& instruction) const {
    if (lanes_ == Lanes::kOne) return 0;
    if (instruction.kind == Kind::kSend) return 1;
    return instruction.kind == Kind::kReceive ? 2 : 0;
  }

  std::size_t input_key(int stage, int unit, bool gradient) const {
    const auto row = static_cast<std::size_t>(stage) * static_cast<std::size_t>(program_.units) +
                     static_cast<std::size_t>(unit);
    return 2 * row + (gradient ? 1 : 0);
  }

  void collect_inputs() {
    const auto keys =
        2 * static_cast<std::size_t>(program_.stages) * static_cast<std::size_t>(program_.units);
    inputs_.resize(keys);
    made_.assign(keys, false);
    for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
      const Transfer& transfer = program_.transfers[t];
      inputs_[input_key(transfer.to_stage, transfer.unit, transfer.gradient)].push_back(
          static_cast<int>(t));
    }
  }

  const Instruction* head(std::size_t device, std::size_t lane) const {
    const Queue& queue = queues_[device][lane];
    if (queue.done()) return nullptr;
    return &program_.device[device][static_cast<std::size_t>(queue.instructions[queue.next])];
  }

  /// The transfer that a compute instruction still waits for.
  std::optional<int> missing_input(const Instruction& instruction) const {
    const bool forward = instruction.kind == Kind::kForward;
    const bool backward =
        instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput;
    if (!forward && !backward) return std::nullopt;
    for (const int t : inputs_[input_key(instruction.stage, instruction.unit, backward)]) {
      if (!received_[static_cast<std::size_t>(t)]) return t;
    }
    return std::nullopt;
  }

  const Transfer& transfer(const Instruction& instruction) const {
    return program_.transfers[static_cast<std::size_t>(instruction.transfer)];
  }

  bool data_is_made(const Instruction& send) const {
    return made_[input_key(send.stage, send.unit, transfer(send).gradient)];
  }

  /// Runs what can run on a device; true if anything did.
  bool advance(std::size_t device) {
    bool moved = false;
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      while (const Instruction* instruction = head(device, lane)) {
        if (!step(device, lane, *instruction)) break;
        moved = true;
      }
    }
    return moved;
  }

  bool step(std::size_t device, std::size_t lane, const Instruction& instruction) {
    if (instruction.kind == Kind::kGradientSync) return sync();
    if (is_transfer(instruction.kind)) return match(instruction);
    if (missing_input(instruction)) return false;
    if (instruction.kind == Kind::kForward) {
      made_[input_key(instruction.stage, instruction.unit, false)] = true;
    }
    if (instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput) {
      made_[input_key(instruction.stage, instruction.unit, true)] = true;
    }
    ++queues_[device][lane].next;
    return true;
  }

  /// A transfer happens when both ends have come to it.
  bool match(const Instruction& instruction) {
    const Transfer& moved = transfer(instruction);
    const auto from = static_cast<std::size_t>(moved.from_device);
    const auto to = static_cast<std::size_t>(moved.to_device);
    const std::size_t send_lane = lanes_ == Lanes::kOne ? 0 : 1;
    const std::size_t receive_lane = lanes_ == Lanes::kOne ? 0 : 2;
    const Instruction* send = head(from, send_lane);
    const Instruction* receive = head(to, receive_lane);
    const auto is_end = [&](const Instruction* end, Kind kind) {
      return end != nullptr && end->kind == kind && end->transfer == instruction.transfer;
    };
    if (!is_end(send, Kind::kSend) || !is_end(receive, Kind::kReceive)) return false;
    if (!data_is_made(*send)) return false;
    received_[static_cast<std::size_t>(instruction.transfer)] = true;
    ++queues_[from][send_lane].next;
    ++queues_[to][receive_lane].next;
    awake_[from] = awake_[to] = true;
    return true;
  }

  bool sync() {
    for (std::size_t d = 0; d < queues_.size(); ++d) {
      const Instruction* other = head(d, 0);
      if (other == nullptr || other->kind != Kind::kGradientSync) return false;
    }
    for (std::size_t d = 0; d < queues_.size(); ++d) {
      ++queues_[d][0].next;
      awake_[d] = true;
    }
    return true;
  }

  /// Whom the head of a lane waits for; the device itself where it waits for another of its lanes.
  std::size_t waits_for(std::size_t device, const Instruction& instruction) const {
    if (instruction.kind == Kind::kGradientSync) {
      for (std::size_t d = 0; d < queues_.size(); ++d) {
        const Instruction* other = head(d, 0);
        if (other == nullptr || other->kind != Kind::kGradientSync) return d;
      }
      return device;
    }
    if (instruction.kind == Kind::kSend) {
      if (!data_is_made(instruction)) return device;
      return static_cast<std::size_t>(transfer(instruction).to_device);
    }
    if (instruction.kind == Kind::kReceive) {
      return static_cast<std::size_t>(transfer(instruction).from_device);
    }
    const std::optional<int> missing = missing_input(instruction);
    if (!missing) return device;
    return static_cast<std::size_t>(
        program_.transfers[static_cast<std::size_t>(*missing)].from_device);
  }

  std::string describe() const {
    std::string text;
    int named = 0;
    for (std::size_t d = 0; d < queues_.size(); ++d) {
      for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
        const Instruction* blocked = head(d, lane);
        if (blocked == nullptr) continue;
        constexpr int kMostNamed = 6;
        if (++named > kMostNamed) continue;
        const Queue& queue = queues_[d][lane];
        text += fmt::format("{}device {}, instruction {} ({}) waits for device {}",
                            text.empty() ? "" : "; ", d, queue.instructions[queue.next],
                            to_text(program_, *blocked), waits_for(d, *blocked));
        break;  // one lane says enough
      }
    }
    return text;
  }

  const Program& program_;
  const Lanes lanes_;
  std::vector<std::array<Queue, kLaneCount>> queues_;
  std::vector<bool> awake_;
  std::vector<std::vector<int>> inputs_;  // transfers that (stage, unit, gradient) reads
  std::vector<bool> received_;            // [transfers]
  std::vector<bool> made_;                // (stage, unit, gradient)
};

}  // namespace

std::string find_deadlock(const Program& program, Lanes lanes) {
  return ProgressRun(program, lanes).run();
}

}  // namespace pipetrain
