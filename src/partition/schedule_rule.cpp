#include "partition/schedule_rule.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {
namespace {

constexpr int kEveryNumber = 1 << 30;

// Least r with ceil(of / r) <= most, for of >= 0.
int least_divisor(int of, int most) {
  if (of == 0) return 1;
  return most <= 0 ? kEveryNumber : ceil_divide(of, most);
}

}  // namespace

ScheduleRule::ScheduleRule(const std::string& name, int micro_batches, int devices)
    : kind_(), micro_batches_(micro_batches), devices_(devices) {
  if (name == "gpipe") {
    kind_ = Kind::kGpipe;
  } else if (name == "1f1b") {
    kind_ = Kind::k1f1b;
  } else if (name == "1f1b-auto" || name == "1f1b-eager" || name == "auto") {
    kind_ = Kind::kAuto;
  } else if (name == "pipedream") {
    kind_ = Kind::kPipedream;
  } else if (name == "pipedream-2bw") {
    kind_ = Kind::kPipedream2bw;
  } else if (name == "zb-h1") {
    kind_ = Kind::kZeroBubble1;
  } else if (name == "zb-h2") {
    kind_ = Kind::kZeroBubble2;
  } else {
    PT_FAIL(kUsage,
            "schedule \"{}\" cannot be planned; those that can are 1f1b, gpipe, pipedream, "
            "pipedream-2bw, 1f1b-auto, 1f1b-eager, zb-h1, zb-h2",
            printable(name));
  }
}

ScheduleRule::ScheduleRule(std::vector<ScheduleLoad> loads)
    : kind_(Kind::kGiven), loads_(std::move(loads)) {}

ScheduleLoad ScheduleRule::load(int replicas, int after, bool whole) const {
  if (kind_ == Kind::kGiven) {
    const auto stage =
        loads_.size() - 1 - std::min(loads_.size() - 1, static_cast<std::size_t>(after));
    return loads_[stage];
  }
  const int share = ceil_divide(micro_batches_, replicas);
  const int behind = 1 + ceil_divide(after, replicas);
  switch (kind_) {
    case Kind::kGpipe:
      return {share, 1};
    case Kind::k1f1b:
      return {std::min(behind, share), 1};
    case Kind::kAuto:
      return {std::min(2 * behind - 1, share), 1};
    case Kind::kPipedream:
      return {behind, behind};
    case Kind::kPipedream2bw:
      return {behind, whole ? 1 : 2};
    case Kind::kZeroBubble1:
      return {std::min(ceil_divide(devices_, replicas), share), 1};
    case Kind::kGiven:
      break;
    case Kind::kZeroBubble2:
      return {std::min(2 * ceil_divide(devices_, replicas) - 1, share), 1};
  }
  PT_FAIL(kInternal, "a schedule without a rule");
}

int ScheduleRule::fewest_replicas(int in_flight, int after) const {
  if (in_flight < 1) return 0;
  const int by_share = least_divisor(micro_batches_, in_flight);
  const int by_depth = least_divisor(after, in_flight - 1);
  int out = by_share;
  switch (kind_) {
    case Kind::kGpipe:
      break;
    case Kind::k1f1b:
      out = std::min(by_share, by_depth);
      break;
    case Kind::kAuto:
      out = std::min(by_share, least_divisor(after, (in_flight - 1) / 2));
      break;
    case Kind::kPipedream:
    case Kind::kPipedream2bw:
      out = by_depth;
      break;
    case Kind::kZeroBubble1:
      out = std::min(by_share, least_divisor(devices_, in_flight));
      break;
    case Kind::kGiven:
      return load(1, after, false).in_flight <= in_flight ? 1 : 0;
    case Kind::kZeroBubble2:
      out = std::min(by_share, least_divisor(devices_, (in_flight + 1) / 2));
      break;
  }
  return out == kEveryNumber ? 0 : out;
}

ScheduleLoad schedule_load(const std::string& schedule, int stage, int stages, int micro_batches) {
  return ScheduleRule(schedule, micro_batches, stages).load(1, stages - stage - 1, stages == 1);
}

}  // namespace pipetrain
