// V-shaped schedules: device r runs stage r ("low") and stage 2p-1-r ("high"), so the loss is on
// the device that reads the data.
#include <algorithm>
#include <array>
#include <map>

#include "pipeline/schedule/schedule_table.h"

namespace pipetrain::schedule {
namespace {

/// A list in which every instruction takes the next micro-batch of its kind.
class VDevice {
 public:
  VDevice(int device, int devices, int micro_batches)
      : stage_{device, 2 * devices - 1 - device}, micro_batches_(micro_batches) {}

  static constexpr int kLow = 0;
  static constexpr int kHigh = 1;

  void add(Kind kind, int chunk) {
    const int micro_batch =
        issued_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk)]++;
    if (micro_batch < micro_batches_)
      list_.push_back({kind, stage_[static_cast<std::size_t>(chunk)], micro_batch});
  }
  void forward(int chunk) { add(Kind::kForward, chunk); }
  void input(int chunk) { add(Kind::kBackwardInput, chunk); }
  void weight(int chunk) { add(Kind::kBackwardWeight, chunk); }
  int forwards(int chunk) const {
    return issued_[static_cast<std::size_t>(Kind::kForward)][static_cast<std::size_t>(chunk)];
  }
  int weights(int chunk) const {
    return issued_[static_cast<std::size_t>(Kind::kBackwardWeight)]
                  [static_cast<std::size_t>(chunk)];
  }
  List take() { return std::move(list_); }

 private:
  std::array<int, 2> stage_;
  int micro_batches_;
  std::array<std::array<int, 2>, 5> issued_{};  // [compute kind][chunk]
  List list_;
};

/// Slots of the first micro-batch's work on one device; micro-batch k follows 6k slots later.
struct Pattern {
  int forward_low, forward_high, input_high, input_low;
};

/// Assigns micro-batches to time slots, weight gradients to the first free slot after their input
/// gradient.
template <class PatternOf>
Lists stable_pattern(const ScheduleOptions& options, PatternOf&& pattern_of) {
  constexpr int kPeriod = 6;
  const int devices = options.stages / 2;
  Lists lists;
  for (int r = 0; r < devices; ++r) {
    const Pattern pattern = pattern_of(devices, r);
    const int low = r;
    const int high = 2 * devices - 1 - r;
    std::map<int, Instruction> slots;
    for (int k = 0; k < options.micro_batches; ++k) {
      slots[kPeriod * k + pattern.forward_low] = forward(low, k);
      slots[kPeriod * k + pattern.forward_high] = forward(high, k);
      slots[kPeriod * k + pattern.input_high] = input_gradient(high, k);
      slots[kPeriod * k + pattern.input_low] = input_gradient(low, k);
    }
    std::map<int, Instruction> weights;
    int free = 0;
    for (const auto& [slot, instruction] : slots) {
      if (instruction.kind != Kind::kBackwardInput) continue;
      free = std::max(free, slot + 1);
      while (slots.count(free) > 0) ++free;
      weights[free++] = weight_gradient(instruction.stage, instruction.micro_batch);
    }
    slots.merge(weights);
    List list;
    for (const auto& [slot, instruction] : slots) list.push_back(instruction);
    lists.push_back(std::move(list));
  }
  return lists;
}

/// ZB-V of Qi et al., Zero Bubble Pipeline Parallelism, 2024: memory of 1F1B, no bubble where
/// forward and both halves of the backward take equally long and steps have no barrier.
Lists zero_bubble_v(const ScheduleOptions& options) {
  constexpr int kLow = VDevice::kLow;
  constexpr int kHigh = VDevice::kHigh;
  const int devices = options.stages / 2;
  // Generated for at least as many micro-batches as fill the pipeline; surplus ones are dropped.
  const int micro_batches = std::max(options.micro_batches, 2 * devices - 1);
  Lists lists;
  for (int r = 0; r < devices; ++r) {
    VDevice device(r, devices, options.micro_batches);
    for (int n = 0; n < 2 * (devices - r) - 1; ++n) device.forward(kLow);
    for (int n = 0; n < r; ++n) {
      device.forward(kHigh);
      device.forward(kLow);
    }
    for (int n = 0; n < devices - r; ++n) {
      device.forward(kHigh);
      device.input(kHigh);
      device.weight(kHigh);
    }
    while (device.forwards(kLow) < micro_batches || device.forwards(kHigh) < micro_batches) {
      if (device.forwards(kLow) < micro_batches) device.forward(kLow);
      device.input(kLow);
      device.weight(kLow);
      device.forward(kHigh);
      device.input(kHigh);
      device.weight(kHigh);
    }
    for (int n = 0; n < r; ++n) {
      device.input(kLow);
      device.input(kHigh);
    }
    for (int n = 0; n < devices - r; ++n) {
      device.input(kLow);
      device.weight(kLow);
    }
    while (device.weights(kHigh) < micro_batches) device.weight(kHigh);
    while (device.weights(kLow) < micro_batches) device.weight(kLow);
    lists.push_back(device.take());
  }
  return lists;
}

/// V-Min and V-Half (Qi et al., Pipeline Parallelism with Controllable Memory, 2024): at most
/// floor((p+4)/3) and floor((p+2)/2) micro-batches on a device where 1F1B has p, about a third and
/// a half, by a pattern that repeats every six slots. Each stage has its most at another time:
/// their sum may be half a micro-batch larger.
Lists v_min(const ScheduleOptions& options) {
  return stable_pattern(options, [](int p, int r) {
    const int gap = p % 3 == 0 ? 2 : 0;
    return Pattern{r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r};
  });
}

Lists v_half(const ScheduleOptions& options) {
  return stable_pattern(options, [](int p, int r) {
    const int gap = p % 2 == 0 ? 3 : 0;
    return Pattern{2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r};
  });
}

/// The time unit of the closed forms: forward, input and weight gradient of one stage, which must
/// take equally long. nullopt where they do not, or the pipeline is never full.
std::optional<double> equal_part(const EqualRound& round) {
  const auto& [f, i, w] = round.seconds;
  const auto [least, most] = std::minmax({f, i, w});
  if (least < 0.9 * most || round.micro_batches < 2 * round.devices - 1) return std::nullopt;
  return round.seconds.total() / 3 / round.chunks;
}

std::optional<double> idle_of_zero_bubble_v(const EqualRound& round) {
  const std::optional<double> part = equal_part(round);
  if (!part) return part;
  return (round.devices - 1) * *part;
}

std::optional<double> idle_of_half(const EqualRound& round) {
  const std::optional<double> part = equal_part(round);
  const double p = round.devices;
  if (!part) return part;
  return (static_cast<int>(p) % 2 == 1 ? 3.5 * (p - 1) : 3.5 * p - 2) * *part;
}

std::optional<double> idle_of_least(const EqualRound& round) {
  const std::optional<double> part = equal_part(round);
  const double p = round.devices;
  if (!part) return part;
  return (static_cast<int>(p) % 3 == 0 ? 4 * p - 3 : 4 * p - 5) * *part;
}

Schedule down_and_up(const char* name, const char* summary) {
  return {
      .description = {
          .name = name, .summary = summary, .placement = Placement::kV, .splits_backward = true}};
}

}  // namespace

std::vector<Schedule> down_and_up_schedules() {
  Schedule full = down_and_up("zb-v",
                              "two stages per device, in a V: about half the bubble of zb-h1, in "
                              "the memory of 1f1b");
  full.lists = zero_bubble_v;
  full.idle_seconds = idle_of_zero_bubble_v;
  Schedule half = down_and_up("v-half",
                              "like zb-v, with about half the activation memory of 1f1b on many "
                              "devices");
  half.lists = v_half;
  half.idle_seconds = idle_of_half;
  Schedule least = down_and_up(
      "v-min",
      "like zb-v, with about a third of the activation memory of 1f1b on many devices; for fast "
      "links");
  least.lists = v_min;
  least.idle_seconds = idle_of_least;
  return {full, half, least};
}

}  // namespace pipetrain::schedule
