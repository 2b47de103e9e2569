#include "partition/schedule_rule.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {
namespace {

using Length = MemoryRule::Length;

constexpr int kEveryNumber = 1 << 30;

// Least r with ceil(of / r) <= most, for of >= 0.
int least_divisor(int of, int most) {
  if (most < 0) return kEveryNumber;
  if (of == 0) return 1;
  return most == 0 ? kEveryNumber : ceil_divide(of, most);
}

}  // namespace

ScheduleRule::ScheduleRule(const MemoryRule& rule, int micro_batches, int devices)
    : rule_(rule), micro_batches_(micro_batches), devices_(devices) {
  PT_CHECK(rule.times >= 1 && rule.times + rule.more >= 1, kInternal,
           "a stage cannot hold {} * length + {} micro-batches", rule.times, rule.more);
}

ScheduleRule::ScheduleRule(std::vector<ScheduleLoad> loads) : loads_(std::move(loads)) {}

ScheduleLoad ScheduleRule::load(int replicas, int after) const {
  if (!loads_.empty()) {
    const auto stage =
        loads_.size() - 1 - std::min(loads_.size() - 1, static_cast<std::size_t>(after));
    return loads_[stage];
  }
  const int share = ceil_divide(micro_batches_, replicas);
  int length = share;
  if (rule_.length == Length::kFromHere) length = 1 + ceil_divide(after, replicas);
  if (rule_.length == Length::kPipeline) length = ceil_divide(devices_, replicas);
  const int in_flight = rule_.times * length + rule_.more;
  switch (rule_.copies) {
    case WeightCopies::kOne:
      break;
    case WeightCopies::kPerMicroBatch:
      return {in_flight, in_flight};
    case WeightCopies::kTwo:
      return {in_flight, 2};
  }
  return {std::min(in_flight, share), 1};
}

int ScheduleRule::fewest_replicas(int in_flight, int after) const {
  if (in_flight < 1) return 0;
  if (!loads_.empty()) return load(1, after).in_flight <= in_flight ? 1 : 0;
  int out = kEveryNumber;
  // The longest pipeline whose micro-batches are no more; a length is at least 1.
  const int longest = in_flight >= rule_.more ? (in_flight - rule_.more) / rule_.times : 0;
  if (rule_.length == Length::kFromHere) out = least_divisor(after, longest - 1);
  if (rule_.length == Length::kPipeline) out = least_divisor(devices_, longest);
  if (!asynchronous()) out = std::min(out, least_divisor(micro_batches_, in_flight));
  return out == kEveryNumber ? 0 : out;
}

ScheduleLoad schedule_load(const MemoryRule& rule, int stage, int stages, int micro_batches) {
  return ScheduleRule(rule, micro_batches, stages).load(1, stages - stage - 1);
}

}  // namespace pipetrain
