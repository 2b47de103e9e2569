// Rules on what each stage runs and where: coverage, placement, order within a micro-batch, order
// of micro-batches.
#include <cstdint>
#include <vector>

#include "pipeline/program/checker.h"

namespace pipetrain {

void Checker::check_coverage() const {
  // Bits of what has been seen for (stage, micro-batch), one per compute kind.
  std::vector<std::uint8_t> seen(micro_batch_keys(), 0);
  const auto bit = [](Kind kind) { return static_cast<std::uint8_t>(1U << unsigned(kind)); };
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (!is_compute(instruction.kind)) return;
    std::uint8_t& bits = seen[micro_batch_key(instruction.stage, instruction.micro_batch)];
    if ((bits & bit(instruction.kind)) != 0) {
      fail(CheckRule::kCoverage, "{} occurs twice", where(d, i));
    }
    bits = static_cast<std::uint8_t>(bits | bit(instruction.kind));
  });
  const unsigned whole = bit(Kind::kBackward);
  const unsigned split = bit(Kind::kBackwardInput) | bit(Kind::kBackwardWeight);
  for (int stage = 0; stage < program_.stages; ++stage) {
    const bool recomputes = program_.recompute[at(stage)];
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      const unsigned bits = seen[micro_batch_key(stage, micro_batch)];
      const unsigned backward = bits & (whole | split);
      const char* wrong = nullptr;
      if ((bits & bit(Kind::kForward)) == 0) wrong = "no forward";
      if (program_.rule != UpdateRule::kNone && backward != whole && backward != split) {
        wrong = "not one backward, whole or split in two";
      }
      if (recomputes != ((bits & bit(Kind::kRecompute)) != 0)) {
        wrong = recomputes ? "no recompute" : "a recompute without need";
      }
      if (wrong != nullptr) {
        fail(CheckRule::kCoverage, "device {} has {} of micro-batch {} on stage {}",
             program_.device_of(stage, micro_batch), wrong, micro_batch, stage);
      }
    }
  }
}

void Checker::check_placement(const ReplicaRows& rows) const {
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (instruction.stage < 0) return;
    if (!is_compute(instruction.kind) && !is_transfer(instruction.kind)) {
      if (rows.on(instruction.stage, static_cast<int>(d)) >= 0) return;
      fail(CheckRule::kPlacement, "{}, but stage {} is not on this device", where(d, i),
           instruction.stage);
    }
    const int home = program_.device_of(instruction.stage, instruction.micro_batch);
    if (at(home) != d) {
      fail(CheckRule::kPlacement, "{}, but stage {} runs micro-batch {} on device {}", where(d, i),
           instruction.stage, instruction.micro_batch, home);
    }
  });
}

void Checker::check_local_order(const ComputeTable& table) const {
  constexpr Kind kOrder[] = {Kind::kForward, Kind::kRecompute, Kind::kBackward,
                             Kind::kBackwardInput, Kind::kBackwardWeight};
  for (int stage = 0; stage < program_.stages; ++stage) {
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      Place before;
      for (const Kind kind : kOrder) {
        const Place& place = table.at(kind, stage, micro_batch);
        if (!place.exists()) continue;
        if (before.exists() && place.index < before.index) {
          fail(CheckRule::kLocalOrder, "{} comes before {}", where(place), where(before));
        }
        before = place;
      }
    }
  }
}

void Checker::check_micro_batch_order(const ReplicaRows& rows) const {
  struct Last {  // micro-batches
    int forward = -1, input = -1, gradient = -1;
  };
  std::vector<Last> rows_last(at(rows.count()));
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (!is_compute(kind) || kind == Kind::kRecompute) return;
    const auto follow = [&](int& last) {
      if (instruction.micro_batch < last) {
        fail(CheckRule::kMicroBatchOrder, "{} comes after that of micro-batch {}", where(d, i),
             last);
      }
      last = instruction.micro_batch;
    };
    Last& last = rows_last[at(rows.running(instruction.stage, instruction.micro_batch))];
    if (kind == Kind::kForward) return follow(last.forward);
    if (kind != Kind::kBackwardWeight) follow(last.input);
    if (adds_gradient(kind)) follow(last.gradient);
  });
}

}  // namespace pipetrain
