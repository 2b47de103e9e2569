// The best plan for a chain (or for a lattice of ideals), by bisection around DeviceSearch.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "partition/device_search.h"

namespace pipetrain {

struct Optimum {
  std::vector<StageChoice> stages;
  double seconds = 0;  // of the slowest stage, or of a mini-batch
  double bound = 0;    // no plan is faster
};

template <class Ranges>
class OptimumSearch {
 public:
  /// Keeps references. `stages`: exactly so many, or 0 for any number.
  OptimumSearch(const Ranges& ranges, const StagePricing& pricing, int stages)
      : ranges_(ranges), pricing_(pricing), search_(ranges, pricing, stages) {
    const std::size_t limit = pricing.request().memory_limit_bytes;
    if (limit > 0) memory_ = limit;
  }

  /// The least time of the slowest stage, to `tolerance`, given that it is at least `lower`.
  /// Nothing if it is not below `upper`, or if nothing fits into memory.
  std::optional<Optimum> throughput(double lower, double tolerance,
                                    double upper = std::numeric_limits<double>::infinity());
  /// Of all plans with this slowest stage and as few devices: the smallest peak memory, then the
  /// fewest bytes sent, then the earliest cuts.
  std::vector<StageChoice> tidy(const Optimum& optimum);
  /// The least time of a mini-batch, beginning with a plan that is good already.
  Optimum mini_batch(const Optimum& start, double tolerance);
  /// The least memory of a device with which there is a plan at all, to about 0.1 %; the plan is
  /// returned. Nothing when no memory is enough.
  std::optional<Optimum> least_memory();

 private:
  using Search = DeviceSearch<Ranges>;

  bool within(double seconds, double horizon) {
    SearchLimits limits;
    limits.seconds = seconds;
    limits.horizon = horizon;
    limits.memory = memory_;
    return search_.run(limits, SecondAim::kNothing);
  }
  static double slowest(const std::vector<StageChoice>& stages) {
    double out = 0;
    for (const StageChoice& stage : stages) out = std::max(out, stage.seconds);
    return out;
  }

  const Ranges& ranges_;
  const StagePricing& pricing_;
  Search search_;
  std::size_t memory_ = std::numeric_limits<std::size_t>::max();
};

template <class Ranges>
std::optional<Optimum> OptimumSearch<Ranges>::throughput(double lower, double tolerance,
                                                         double upper) {
  // Without next_change() every step of the bisection costs the same.
  constexpr int kShort = 64;
  if (!search_.sees_changes() && ranges_.count() > kShort) tolerance = std::max(tolerance, 1e-6);
  Optimum out;
  bool found = false;
  search_.forget();
  const auto probe = [&](double limit) {
    const bool succeeded = within(limit, found ? out.seconds : 0);
    search_.remember(succeeded);
    if (!succeeded) {
      // Up to the next change the same would be found: nothing.
      lower = std::max(lower, found ? std::min(search_.next_change(), out.seconds) : limit);
      return false;
    }
    out.stages = search_.plan();
    out.seconds = slowest(out.stages);
    found = true;
    return true;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  if (upper < infinity) {
    if (!probe(upper)) return std::nullopt;
  } else {
    for (const double factor : {1.0 + 1e-12, 1.01, 1.06, 1.3, 2.5, 8.0, infinity}) {
      const double limit = lower > 0 ? lower * factor : infinity;
      if (probe(limit)) break;
      if (limit == infinity) return std::nullopt;
    }
  }
  // Each success gives the time of an actual plan, which may be well below the limit.
  while (found && out.seconds - lower > tolerance * out.seconds) {
    const double middle = out.seconds > 4 * lower && lower > 0 ? std::sqrt(lower * out.seconds)
                                                               : lower + (out.seconds - lower) / 2;
    if (middle <= lower || middle >= out.seconds) break;
    probe(middle);
  }
  out.bound = std::min(lower, out.seconds);
  return out;
}

template <class Ranges>
std::vector<StageChoice> OptimumSearch<Ranges>::tidy(const Optimum& optimum) {
  SearchLimits limits;
  limits.seconds = optimum.seconds;
  limits.memory = memory_;
  if (!search_.run(limits, SecondAim::kPeakMemory)) return optimum.stages;
  const double peak = search_.second();
  std::vector<StageChoice> out = search_.plan();
  limits.peak = static_cast<std::size_t>(peak);
  if (search_.run(limits, SecondAim::kTraffic)) out = search_.plan();
  return out;
}

// A mini-batch takes the sum E of all stages' latencies and then m times the greatest H of what a
// stage still has to do per micro-batch. The least E for H <= limit only falls as the limit rises,
// so an interval of H can be discarded when its lower end and the least E at its upper end are no
// better than the best plan. If a search dropped labels, the E that it finds is not a proven bound:
// intervals discarded because of it enter Optimum::bound with their last proven E.
template <class Ranges>
Optimum OptimumSearch<Ranges>::mini_batch(const Optimum& start, double tolerance) {
  const int count = pricing_.request().micro_batches;
  const auto evaluate = [&](const std::vector<StageChoice>& stages, double& latency, double& wait) {
    latency = wait = 0;
    for (const StageChoice& stage : stages) {
      const RangeCost range = ranges_.range(stage.first, stage.last);
      const double speed = pricing_.speed(stage.devices.first, stage.devices.count);
      latency += stage.latency;
      wait = std::max(wait,
                      pricing_.seconds_after_first(
                          stage.latency, range.step_seconds / speed,
                          pricing_.all_reduce_seconds(range.parameter_bytes, stage.devices.count),
                          stage.devices.count));
    }
    return latency + count * wait;
  };
  Optimum best = start;
  double latency = 0, wait = 0;
  best.seconds = evaluate(start.stages, latency, wait);

  const bool twice = pricing_.request().recompute == Recompute::kAll;
  const double least_latency =
      pricing_.compute_seconds(ranges_.range(0, ranges_.count()), twice) / pricing_.highest_speed();
  struct Interval {
    double low, high, latency;  // of H; least E where H <= high, as found
    double proven;              // E is not less
    double bound(int micro_batches) const { return latency + micro_batches * low; }
    double sure(int micro_batches) const { return proven + micro_batches * low; }
  };
  std::vector<Interval> open = {
      {0, (best.seconds - least_latency) / count, least_latency, least_latency}};
  double passed = std::numeric_limits<double>::infinity();
  constexpr int kMostProbes = 60;
  for (int probes = 0; probes < kMostProbes && !open.empty(); ++probes) {
    const auto promising = std::min_element(
        open.begin(), open.end(),
        [&](const Interval& a, const Interval& b) { return a.bound(count) < b.bound(count); });
    if (promising->bound(count) >= best.seconds * (1 - tolerance)) break;
    const Interval interval = *promising;
    open.erase(promising);
    // The first look is at the widest limit: it tells how small E can be at all.
    const bool first = probes == 0;
    const double middle = first ? interval.high : interval.low + (interval.high - interval.low) / 2;
    SearchLimits limits;
    limits.seconds = middle;
    limits.after_first = true;
    limits.memory = memory_;
    limits.total_latency = best.seconds - count * interval.low;
    const bool found = search_.run(limits, SecondAim::kLatency);
    double reached = middle, least = std::numeric_limits<double>::infinity();
    if (found) {
      const std::vector<StageChoice> stages = search_.plan();
      const double seconds = evaluate(stages, least, reached);
      if (seconds < best.seconds) {
        best.stages = stages;
        best.seconds = seconds;
      }
      if (reached > interval.low) {
        const double proven = search_.exact() ? least : interval.proven;
        open.push_back({interval.low, reached, least, proven});
      }
    } else if (!search_.exact()) {
      passed = std::min(passed, interval.sure(count));
    }
    if (!first && middle < interval.high) {
      open.push_back({middle, interval.high, interval.latency, interval.proven});
    }
    std::erase_if(open, [&](const Interval& other) {
      if (other.bound(count) >= best.seconds) {
        passed = std::min(passed, other.sure(count));
        return true;
      }
      return other.high - other.low <= 1e-12 * other.high;
    });
  }
  best.bound = std::min(best.seconds, passed);
  for (const Interval& interval : open) best.bound = std::min(best.bound, interval.sure(count));
  return best;
}

template <class Ranges>
std::optional<Optimum> OptimumSearch<Ranges>::least_memory() {
  const double infinity = std::numeric_limits<double>::infinity();
  search_.forget();
  const std::size_t limit = memory_;
  memory_ = std::numeric_limits<std::size_t>::max();
  std::optional<Optimum> out;
  SearchLimits limits;
  limits.seconds = infinity;
  if (search_.run(limits, SecondAim::kPeakMemory)) {
    out = Optimum{search_.plan(), 0, 0};
    double low = 0, high = search_.second();
    while (high - low > 1 && high - low > 1e-3 * high) {
      limits.memory = static_cast<std::size_t>(low + (high - low) / 2);
      if (search_.run(limits, SecondAim::kPeakMemory)) {
        out = Optimum{search_.plan(), 0, 0};
        high = search_.second();
      } else {
        low = static_cast<double>(limits.memory);
      }
    }
    out->bound = high;
  }
  memory_ = limit;
  return out;
}

}  // namespace pipetrain
