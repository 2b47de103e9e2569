#include "pipeline/program/progress.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

class ProgressRun {
 public:
  ProgressRun(const Program& program, Lanes lanes)
      : program_(program),
        lanes_(lanes == Lanes::kOne ? 1 : kMostLanes),
        next_(program.device.size(), {0, 0, 0}),
        waiting_(program.device.size()),
        received_(program.edges.size() * index(program.micro_batches), false),
        made_(2 * index(program.stages) * index(program.micro_batches), false),
        inputs_(2 * index(program.stages)) {
    for (std::size_t e = 0; e < program.edges.size(); ++e) {
      const Edge& edge = program.edges[e];
      inputs_[2 * index(edge.to_stage) + (edge.gradient ? 1 : 0)].push_back(e);
    }
    for (std::size_t d = program.device.size(); d-- > 0;) {
      for (int lane = 0; lane < lanes_; ++lane) skip(d, lane);
      awake_.push_back(d);
    }
    is_awake_.assign(program.device.size(), true);
  }

  std::string run() {
    while (!awake_.empty()) {
      const std::size_t device = awake_.back();
      awake_.pop_back();
      is_awake_[device] = false;
      while (advance(device)) {
      }
    }
    return describe();
  }

 private:
  static constexpr int kMostLanes = 3;
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }

  int lane_of(Kind kind) const {
    if (lanes_ == 1) return 0;
    if (kind == Kind::kSend) return 1;
    return kind == Kind::kReceive ? 2 : 0;
  }
  int send_lane() const { return lane_of(Kind::kSend); }
  int receive_lane() const { return lane_of(Kind::kReceive); }

  /// Advances a lane to its next instruction.
  void skip(std::size_t device, int lane) {
    const auto& list = program_.device[device];
    std::size_t& next = next_[device][index(lane)];
    while (next < list.size() && lane_of(list[next].kind) != lane) ++next;
  }
  void step_over(std::size_t device, int lane) {
    ++next_[device][index(lane)];
    skip(device, lane);
    // Wakes devices blocked on this one.
    wake(device);
    for (const std::size_t other : waiting_[device]) wake(other);
    waiting_[device].clear();
  }
  void wake(std::size_t device) {
    if (is_awake_[device]) return;
    is_awake_[device] = true;
    awake_.push_back(device);
  }

  const Instruction* head(std::size_t device, int lane) const {
    const auto& list = program_.device[device];
    const std::size_t next = next_[device][index(lane)];
    return next < list.size() ? &list[next] : nullptr;
  }

  const Transfer& transfer(const Instruction& instruction) const {
    return program_.transfers[index(instruction.transfer)];
  }
  std::size_t made_key(int stage, int micro_batch, bool gradient) const {
    return 2 * (index(stage) * index(program_.micro_batches) + index(micro_batch)) +
           (gradient ? 1 : 0);
  }
  std::size_t received_key(std::size_t edge, int micro_batch) const {
    return edge * index(program_.micro_batches) + index(micro_batch);
  }

  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  /// The device that blocks this instruction (possibly itself, in another lane); kNobody if it can
  /// run.
  std::size_t waits_for(const Instruction& instruction) const {
    switch (instruction.kind) {
      case Kind::kForward:
        return missing_input(instruction, false);
      case Kind::kBackward:
      case Kind::kBackwardInput:
        return missing_input(instruction, true);
      case Kind::kReduce:
        for (const int replica : program_.placement[index(instruction.stage)]) {
          if (!is_at(index(replica), 0, instruction)) return index(replica);
        }
        return kNobody;
      case Kind::kGradientSync:
        for (std::size_t d = 0; d < program_.device.size(); ++d) {
          if (!is_at(d, 0, instruction)) return d;
        }
        return kNobody;
      case Kind::kSend:
      case Kind::kReceive:
        return missing_end(instruction);
      default:
        return kNobody;
    }
  }

  std::size_t missing_input(const Instruction& instruction, bool gradient) const {
    for (const std::size_t e : inputs_[2 * index(instruction.stage) + (gradient ? 1 : 0)]) {
      const int from = program_.edges[e].from_stage;
      const int source = program_.device_of(from, instruction.micro_batch);
      const bool moved = program_.lowered &&
                         source != program_.device_of(instruction.stage, instruction.micro_batch);
      const bool there = moved ? received_[received_key(e, instruction.micro_batch)]
                               : made_[made_key(from, instruction.micro_batch, gradient)];
      if (!there) return index(source);
    }
    return kNobody;
  }

  /// A transfer happens when both ends have reached it.
  std::size_t missing_end(const Instruction& instruction) const {
    const Transfer& moved = transfer(instruction);
    const std::size_t from = index(moved.from_device);
    const std::size_t to = index(moved.to_device);
    const Instruction* send = head(from, send_lane());
    const Instruction* receive = head(to, receive_lane());
    const auto is_end = [&](const Instruction* end, Kind kind) {
      return end != nullptr && end->kind == kind && end->transfer == instruction.transfer;
    };
    if (!is_end(send, Kind::kSend)) return from;
    if (!made_[made_key(moved.from_stage, moved.micro_batch, moved.gradient)]) return from;
    if (!is_end(receive, Kind::kReceive)) return to;
    return kNobody;
  }

  /// A device has reached the same collective.
  bool is_at(std::size_t device, int lane, const Instruction& collective) const {
    const Instruction* other = head(device, lane);
    return other != nullptr && other->kind == collective.kind && other->stage == collective.stage &&
           other->micro_batch == collective.micro_batch;
  }

  /// Runs a device until it blocks; true if anything ran.
  bool advance(std::size_t device) {
    bool moved = false;
    for (int lane = 0; lane < lanes_; ++lane) {
      while (const Instruction* instruction = head(device, lane)) {
        const std::size_t missing = waits_for(*instruction);
        if (missing != kNobody) {
          if (missing != device) waiting_[missing].push_back(device);
          break;
        }
        perform(device, lane, *instruction);
        moved = true;
      }
    }
    return moved;
  }

  void perform(std::size_t device, int lane, const Instruction& instruction) {
    switch (instruction.kind) {
      case Kind::kForward:
        made_[made_key(instruction.stage, instruction.micro_batch, false)] = true;
        break;
      case Kind::kBackward:
      case Kind::kBackwardInput:
        made_[made_key(instruction.stage, instruction.micro_batch, true)] = true;
        break;
      case Kind::kSend:
      case Kind::kReceive: {
        const Transfer& moved = transfer(instruction);
        received_[received_key(index(moved.edge), moved.micro_batch)] = true;
        step_over(index(moved.from_device), send_lane());
        step_over(index(moved.to_device), receive_lane());
        return;
      }
      case Kind::kReduce:
        for (const int replica : program_.placement[index(instruction.stage)]) {
          step_over(index(replica), 0);
        }
        return;
      case Kind::kGradientSync:
        for (std::size_t d = 0; d < program_.device.size(); ++d) step_over(d, 0);
        return;
      default:
        break;
    }
    step_over(device, lane);
  }

  std::string describe() const {
    std::string text;
    int named = 0;
    for (std::size_t d = 0; d < program_.device.size(); ++d) {
      for (int lane = 0; lane < lanes_; ++lane) {
        const Instruction* blocked = head(d, lane);
        if (blocked == nullptr) continue;
        constexpr int kMostNamed = 6;
        if (++named > kMostNamed) return text;
        text += fmt::format("{}device {}, instruction {} ({}) waits for device {}",
                            text.empty() ? "" : "; ", d, next_[d][index(lane)],
                            to_text(program_, *blocked), waits_for(*blocked));
        break;  // one lane per device is enough
      }
    }
    return text;
  }

  const Program& program_;
  const int lanes_;
  std::vector<std::array<std::size_t, kMostLanes>> next_;  // [devices][lanes]
  std::vector<std::size_t> awake_;                         // devices to run next
  std::vector<bool> is_awake_;
  std::vector<std::vector<std::size_t>> waiting_;  // [devices]: devices blocked on it
  std::vector<bool> received_;                     // (edge, micro-batch)
  std::vector<bool> made_;                         // (stage, micro-batch, gradient)
  std::vector<std::vector<std::size_t>> inputs_;   // edges that (stage, gradient) reads
};

}  // namespace

std::string find_deadlock(const Program& program, Lanes lanes) {
  return ProgressRun(program, lanes).run();
}

}  // namespace pipetrain
