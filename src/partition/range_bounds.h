// Lower bounds on the time of a stage that are cheaper than its exact cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/index.h"
#include "partition/stage_cost.h"

namespace pipetrain {

/// Ranges: ChainRanges or IdealRanges.
template <class Ranges>
class RangeBounds {
 public:
  RangeBounds(const Ranges& ranges, const StagePricing& pricing);

  /// Of [position, count), on the fastest device.
  double compute(int position) const { return remaining_[at(position)]; }
  /// Of [first, last), transfers not included; what a stage shares with earlier elements may be
  /// missing, and rounding is taken off.
  double compute(int first, int last) const {
    return compute(first) - compute(last) - 1e-12 * compute(first);
  }
  double forward_seconds(int first, int last) const {
    return sums_[at(first)].forward_seconds - sums_[at(last)].forward_seconds;
  }
  double parameter_bytes(int first, int last) const {
    return sums_[at(first)].parameter_bytes - sums_[at(last)].parameter_bytes;
  }
  double saved_bytes(int first, int last) const {
    return sums_[at(first)].saved_bytes - sums_[at(last)].saved_bytes;
  }
  double cut_seconds(int level, int cut) const { return cut_seconds_[at(level)][at(cut)]; }
  double cheapest_cut(int cut) const { return cheapest_cut_[at(cut)]; }

  /// The time of a stage with up to `most` replicas; from two on, gradients have to be summed.
  double least_seconds(double latency, double parameter_bytes, int most) const {
    return std::min(latency, latency * share_[at(most)] + parameter_bytes * reduce_[at(most)] +
                                 reduce_latency_[at(most)]);
  }
  /// The devices that [0, position) needs at least where no stage takes longer than `limit`: by the
  /// planner's recursion from the front, as if every stage began a group and every cut went over
  /// its cheapest link. One number for each position, where the search has many labels. More than
  /// there are: none is enough.
  std::vector<int> devices_before(double limit) const;

 private:
  struct Sums {
    double forward_seconds, parameter_bytes, saved_bytes;
  };

  const Ranges& ranges_;
  const StagePricing& pricing_;
  std::vector<std::vector<double>> cut_seconds_;  // [level][position]
  std::vector<double> cheapest_cut_, remaining_;
  std::vector<Sums> sums_;  // of [position, count)
  // [replicas]: what a second of latency costs the pipeline, and a byte of parameters at least.
  std::vector<double> share_, reduce_, reduce_latency_;
};

template <class Ranges>
RangeBounds<Ranges>::RangeBounds(const Ranges& ranges, const StagePricing& pricing)
    : ranges_(ranges), pricing_(pricing) {
  const int count = ranges.count();
  for (int level = 0; level < pricing.levels(); ++level) {
    std::vector<double>& row = cut_seconds_.emplace_back();
    for (int cut = 0; cut <= count; ++cut) {
      row.push_back(
          pricing.transfer_seconds(level, ranges.forward_bytes(cut), ranges.backward_bytes(cut)));
      if (level == 0) {
        cheapest_cut_.push_back(row.back());
      } else {
        cheapest_cut_[at(cut)] = std::min(cheapest_cut_[at(cut)], row.back());
      }
    }
  }
  const bool twice = pricing.request().recompute == Recompute::kAll;
  const RangeCost all = ranges.range(0, count);
  for (int position = 0; position <= count; ++position) {
    remaining_.push_back(position == count
                             ? 0
                             : pricing.compute_seconds(ranges.range(position, count), twice) /
                                   pricing.highest_speed());
    const RangeCost before = position > 0 ? ranges.range(0, position) : RangeCost{};
    sums_.push_back(
        {(all.forward_seconds - before.forward_seconds) * (1 - 1e-12) / pricing.highest_speed(),
         static_cast<double>(all.parameter_bytes - before.parameter_bytes),
         static_cast<double>(all.saved_bytes - before.saved_bytes)});
  }
  const int batches = pricing.request().micro_batches;
  const bool each_round = pricing.rule().updates_each_round();
  for (int replicas = 0; replicas <= pricing.devices(); ++replicas) {
    const double reduce = pricing.all_reduce_per_byte(replicas) / (each_round ? replicas : batches);
    share_.push_back(replicas == 0 ? 1 : pricing.seconds(1, 0, 0, replicas));
    const double wait =
        pricing.all_reduce_seconds(0, replicas) / (each_round ? std::max(1, replicas) : batches);
    reduce_latency_.push_back(replicas < 3 ? wait : std::min(reduce_latency_.back(), wait));
    reduce_.push_back(replicas < 2 ? 0 : replicas == 2 ? reduce : std::min(reduce_.back(), reduce));
  }
}

template <class Ranges>
std::vector<int> RangeBounds<Ranges>::devices_before(double limit) const {
  const int count = ranges_.count(), devices = pricing_.devices();
  const double per_limit = 1 / limit, longest = limit * (1 + 1e-9);
  // In front of the last whole group any number of replicas fits that fits anywhere.
  int group = 1;
  for (int level = 0; level < pricing_.levels(); ++level) {
    if (pricing_.group_size(level) <= devices) group = pricing_.group_size(level);
  }
  const int end = devices / group * group;
  std::vector<int> out(at(count + 1), devices + 1);
  // out[first] and the time that a stage from there on takes in any case, in devices.
  std::vector<double> key(at(count + 1), std::numeric_limits<double>::infinity());
  for (int last = 0; last <= count; ++last) {
    int least = last == 0 ? 0 : devices + 1;
    const double behind = (compute(last) - cheapest_cut(last)) * per_limit + 1e-6;
    for (int first = last - 1; first >= 0; --first) {
      if (key[at(first)] > least - 1 + behind || !ranges_.related(first, last)) continue;
      const double latency = compute(first, last) + cheapest_cut(first) + cheapest_cut(last);
      const auto bytes = static_cast<std::size_t>(std::max(0.0, parameter_bytes(first, last)));
      const int replicas = pricing_.fewest_replicas(std::max(0.0, latency), 0, bytes, 1, longest,
                                                    end, /*after_first=*/false);
      if (replicas > 0) least = std::min(least, out[at(first)] + replicas);
    }
    out[at(last)] = least;
    if (least <= devices) {
      key[at(last)] = least + (compute(last) + cheapest_cut(last)) * per_limit * (1 - 1e-9);
    }
  }
  return out;
}

}  // namespace pipetrain
