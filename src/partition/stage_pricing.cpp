// What a stage costs on given devices: compute, transfers, gradient sums, memory.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "partition/stage_cost.h"

namespace pipetrain {
namespace {

// Least n >= x up to rounding; the caller checks the result.
int at_least(double x) {
  if (!(x < 1e9)) return 1 << 30;
  return static_cast<int>(std::ceil(x * (1 - 1e-12) - 1e-9));
}

double log2_rounded_up(int count) {
  int out = 0;
  while ((1 << out) < count) ++out;
  return out;
}

void check_request(const PlanRequest& request) {
  PT_CHECK(request.micro_batches >= 1, kUsage, "{} must be at least 1, got {}",
           setting("micro-batches"), request.micro_batches);
  PT_CHECK(request.transfer.latency_seconds >= 0 && request.transfer.bytes_per_second > 0, kUsage,
           "a link needs a latency of at least 0 s and a bandwidth above 0 B/s, got {} and {}",
           request.transfer.latency_seconds, request.transfer.bytes_per_second);
  PT_CHECK(std::isfinite(request.optimizer_bytes_per_parameter_byte) &&
               request.optimizer_bytes_per_parameter_byte >= 0,
           kInternal, "optimizer state of {} bytes per parameter byte",
           request.optimizer_bytes_per_parameter_byte);
  PT_CHECK(
      request.shared_bytes_per_parameter_byte >= 0 &&
          request.shared_bytes_per_parameter_byte <= request.optimizer_bytes_per_parameter_byte,
      kInternal, "{} of {} bytes of optimizer state are divided among replicas",
      request.shared_bytes_per_parameter_byte, request.optimizer_bytes_per_parameter_byte);
  for (const TopologyLevel& level : request.topology.levels) {
    PT_CHECK(level.count >= 1 && level.latency_seconds >= 0 && level.bytes_per_second > 0, kUsage,
             "level \"{}\" of the topology needs at least one group, a latency of at least 0 s and "
             "a bandwidth above 0 B/s, got {}, {} and {}",
             printable(level.name), level.count, level.latency_seconds, level.bytes_per_second);
  }
  for (const double speed : request.topology.device_speed) {
    PT_CHECK(std::isfinite(speed) && speed > 0, kUsage,
             "the speed of a device must be above 0, the topology says {}", speed);
  }
}

ScheduleRule rule_of(const PlanRequest& request, int devices) {
  if (!request.loads.empty()) return ScheduleRule(request.loads);
  PT_CHECK(request.schedule.memory, kUsage,
           "schedule \"{}\" cannot be planned: the memory of its stages has no closed form; "
           "use 1f1b or gpipe",
           printable(request.schedule.name));
  return {*request.schedule.memory, std::max(1, request.micro_batches), devices};
}

}  // namespace

StagePricing::StagePricing(const PlanRequest& request, int devices)
    : request_(request), rule_(rule_of(request, devices)), devices_(devices), group_size_{1} {
  check_request(request);
  const Topology& topology = request.topology;
  if (topology.levels.empty()) {
    links_ = {level_of(request.transfer)};
    group_size_.push_back(devices);
  } else {
    PT_CHECK(devices <= topology.devices(), kUsage,
             "{} devices are asked for, but topology \"{}\" has {}", devices,
             printable(topology.name), topology.devices());
    links_ = topology.levels;
    for (const TopologyLevel& level : links_)
      group_size_.push_back(group_size_.back() * level.count);
  }
  const auto unequal = [](double speed) { return speed != 1; };
  if (std::any_of(topology.device_speed.begin(), topology.device_speed.end(), unequal)) {
    PT_CHECK(static_cast<int>(topology.device_speed.size()) >= devices, kUsage,
             "topology \"{}\" gives the speeds of {} devices, but {} are asked for",
             printable(topology.name), topology.device_speed.size(), devices);
    speed_.assign(topology.device_speed.begin(), topology.device_speed.begin() + devices);
    highest_speed_ = *std::max_element(speed_.begin(), speed_.end());
  }
  for (int replicas = 0; replicas <= devices; ++replicas) {
    double per_byte = 0, latency = 0;
    for (int level = 0; level < levels() && replicas > 1; ++level) {
      const TopologyLevel& link = links_[static_cast<std::size_t>(level)];
      const int groups = std::min(ceil_divide(replicas, group_size(level - 1)),
                                  group_size(level) / group_size(level - 1));
      per_byte += 2.0 * (groups - 1) / groups / link.all_reduce_rate();
      latency += 2 * log2_rounded_up(groups) * link.latency_seconds;
    }
    all_reduce_per_byte_.push_back(per_byte);
    all_reduce_latency_.push_back(latency);
  }
}

int StagePricing::level_between(int device, int later) const {
  int level = 0;
  while (level + 1 < levels() && device / group_size(level) != later / group_size(level)) ++level;
  return level;
}

double StagePricing::speed(int first_device, int replicas) const {
  if (speed_.empty()) return 1;
  const auto begin = speed_.begin() + first_device;
  return *std::min_element(begin, begin + replicas);
}

double StagePricing::transfer_seconds(int level, std::size_t forward_bytes,
                                      std::size_t backward_bytes) const {
  const TopologyLevel& link = links_[static_cast<std::size_t>(level)];
  double out = 0;
  for (const std::size_t bytes : {forward_bytes, backward_bytes}) {
    if (bytes == 0) continue;
    out += link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
  }
  return out;
}

double StagePricing::all_reduce_seconds(std::size_t bytes, int first_device, int replicas) const {
  const int last_device = first_device + replicas - 1;
  double out = 0;
  for (int level = 0; level < levels() && replicas > 1; ++level) {
    // Of the groups of the level below, the most that lie in one group of this level.
    const int inner = group_size(level - 1), outer = group_size(level);
    const int begin = first_device / outer, end = last_device / outer;
    const int first = first_device / inner, last = last_device / inner, per = outer / inner;
    int groups = per;
    if (begin == end) {
      groups = last - first + 1;
    } else if (end == begin + 1) {
      groups = std::max((begin + 1) * per - first, last - end * per + 1);
    }
    const TopologyLevel& link = links_[static_cast<std::size_t>(level)];
    out += 2.0 * (groups - 1) / groups * static_cast<double>(bytes) / link.all_reduce_rate() +
           2 * log2_rounded_up(groups) * link.latency_seconds;
  }
  return out;
}

double StagePricing::seconds(double latency, double step, double all_reduce, int replicas) const {
  const int count = request_.micro_batches;
  if (rule_.updates_each_round()) return (latency + step / count + all_reduce) / replicas;
  const double share = rule_.asynchronous()
                           ? 1.0 / replicas
                           : static_cast<double>(ceil_divide(count, replicas)) / count;
  return latency * share + (step + all_reduce) / count;
}

int StagePricing::fewest_replicas(double latency, double step, std::size_t parameter_bytes,
                                  int least, double limit, int end, bool after_first) const {
  const int count = request_.micro_batches;
  int replicas = least;
  while (true) {
    replicas = fitting_replicas(replicas, end);
    if (replicas == 0) return 0;
    const double all_reduce = all_reduce_seconds(parameter_bytes, replicas);
    const double now = after_first ? seconds_after_first(latency, step, all_reduce, replicas)
                                   : seconds(latency, step, all_reduce, replicas);
    if (now <= limit) return replicas;
    if (!request_.replication) return 0;
    // The sum of the gradients only grows with more replicas: what it leaves bounds them from
    // below.
    int more = 0;
    if (rule_.updates_each_round()) {
      more = at_least((latency + step / count + all_reduce) / limit);
    } else if (rule_.asynchronous()) {
      const double left = limit - (step + all_reduce) / count;
      if (left <= 0) return 0;
      more = at_least(latency / left);
    } else {
      if (replicas >= count || latency <= 0) return 0;
      const double left = limit * count - step - all_reduce;
      if (left < 0) return 0;
      const double rounds = std::floor(left / latency * (1 + 1e-12) + 1e-9) + (after_first ? 1 : 0);
      if (rounds < 1) return 0;
      more = rounds >= count ? 1 : ceil_divide(count, static_cast<int>(rounds));
    }
    replicas = std::max(replicas + 1, more);
    if (replicas > devices_) return 0;
  }
}

int StagePricing::fitting_replicas(int replicas, int end) const {
  if (!request_.replication && replicas > 1) return 0;
  int best = 0;
  for (int level = 0; level < levels(); ++level) {
    const int unit = group_size(level - 1);
    if (end % unit != 0) break;
    const int rounded = ceil_divide(replicas, unit) * unit;
    if (rounded > (end - 1) % group_size(level) + 1) continue;
    if (best == 0 || rounded < best) best = rounded;
  }
  return best;
}

MemoryNeed StagePricing::memory(const RangeCost& range, std::size_t input_bytes, ScheduleLoad load,
                                bool recompute, int replicas) const {
  const auto in_flight = static_cast<std::size_t>(load.in_flight);
  MemoryNeed out;
  out.weight_bytes =
      (range.parameter_bytes + range.fixed_bytes) * static_cast<std::size_t>(load.weight_versions) +
      range.constant_bytes;
  out.gradient_bytes = range.parameter_bytes + range.more_gradient_bytes;
  out.optimizer_bytes = static_cast<std::size_t>(std::llround(
      static_cast<double>(range.parameter_bytes) * optimizer_bytes_per_byte(replicas)));
  // With recompute only the stage's inputs wait; the activations exist for the one micro-batch that
  // runs again.
  out.activation_bytes =
      recompute ? in_flight * input_bytes + range.saved_bytes : in_flight * range.saved_bytes;
  out.transient_bytes = range.transient_bytes;
  return out;
}

int StagePricing::fewest_replicas_for_memory(const RangeCost& range, std::size_t input_bytes,
                                             bool recompute, int after, std::size_t limit) const {
  const ScheduleLoad one = rule_.load(1, after);
  if (memory(range, input_bytes, one, recompute, 1).total() <= limit) return 1;
  if (!request_.replication) return 0;
  if (request_.shared_bytes_per_parameter_byte > 0) {
    int too_few = 1, enough = devices_ + 1;  // more replicas never need more memory each
    while (enough - too_few > 1) {
      const int r = (too_few + enough) / 2;
      const ScheduleLoad load = rule_.load(r, after);
      const bool fits = memory(range, input_bytes, load, recompute, r).total() <= limit;
      (fits ? enough : too_few) = r;
    }
    return enough > devices_ ? 0 : enough;
  }
  const bool stashes = rule_.updates_each_round();
  // Memory is fixed + in flight x each.
  const std::size_t fixed =
      memory(range, input_bytes, {0, stashes ? 0 : one.weight_versions}, recompute, 1).total();
  if (fixed > limit) return 0;
  const std::size_t each = (recompute ? input_bytes : range.saved_bytes) +
                           (stashes ? range.parameter_bytes + range.fixed_bytes : 0);
  const std::size_t most = (limit - fixed) / std::max<std::size_t>(1, each);
  return rule_.fewest_replicas(static_cast<int>(std::min<std::size_t>(most, 1 << 29)), after);
}

}  // namespace pipetrain
