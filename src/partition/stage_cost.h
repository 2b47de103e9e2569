// The cost model: time and memory of any range of the network as a stage on any devices.
#pragma once

#include <cstddef>
#include <vector>

#include "base/index.h"
#include "partition/plan.h"
#include "partition/schedule_rule.h"

namespace pipetrain {

/// Sums over a range of elements, before a schedule, a device or a neighbour is known.
struct RangeCost {
  double forward_seconds = 0, input_gradient_seconds = 0, weight_gradient_seconds = 0;
  double step_seconds = 0;
  std::size_t parameter_bytes = 0, more_gradient_bytes = 0, fixed_bytes = 0, constant_bytes = 0,
              saved_bytes = 0, transient_bytes = 0;
};

/// Adds what an element (or a node of a network) takes; transient_bytes do not add up.
template <class Element>
void add_to(RangeCost& sum, const Element& element) {
  sum.forward_seconds += element.forward_seconds;
  sum.input_gradient_seconds += element.input_gradient_seconds;
  sum.weight_gradient_seconds += element.weight_gradient_seconds;
  sum.step_seconds += element.step_seconds;
  sum.parameter_bytes += element.parameter_bytes;
  sum.saved_bytes += element.saved_bytes;
}
/// The difference of two sums.
RangeCost between(const RangeCost& begin, const RangeCost& end);

/// The cost functions of a request, its devices and links, independent of the network.
class StagePricing {
 public:
  /// Keeps a reference. `devices` is how many the stages may lie on. Error (kUsage) for an invalid
  /// request.
  StagePricing(const PlanRequest& request, int devices);

  const PlanRequest& request() const { return request_; }
  const ScheduleRule& rule() const { return rule_; }
  int devices() const { return devices_; }

  /// Levels of links; 1 where all devices are joined alike.
  int levels() const { return static_cast<int>(links_.size()); }
  /// Devices in a group of this level; 1 for level -1.
  int group_size(int level) const { return group_size_[static_cast<std::size_t>(level + 1)]; }
  /// The level of the link between a device and a later one.
  int level_between(int device, int later) const;
  /// All devices are equally fast.
  bool uniform() const { return speed_.empty(); }
  /// Of the slowest device in the range; 1 is a full one.
  double speed(int first_device, int replicas) const;
  double highest_speed() const { return highest_speed_; }

  /// One micro-batch over a link, there and back; an empty message is not sent.
  double transfer_seconds(int level, std::size_t forward_bytes, std::size_t backward_bytes) const;
  /// A sum over all replicas, level by level: a ring takes 2 (c - 1) / c of the bytes over the
  /// links of a level on which c groups take part, and 2 ceil(log2 c) latencies.
  double all_reduce_seconds(std::size_t bytes, int first_device, int replicas) const;
  /// The same for replicas within a group or in whole groups, which is where the planner puts them.
  double all_reduce_seconds(std::size_t bytes, int replicas) const {
    const auto at = static_cast<std::size_t>(replicas);
    return all_reduce_per_byte_[at] * static_cast<double>(bytes) + all_reduce_latency_[at];
  }

  double all_reduce_per_byte(int replicas) const {
    return all_reduce_per_byte_[static_cast<std::size_t>(replicas)];
  }

  /// Of one micro-batch on a full-speed device, transfers and optimizer step not included.
  double compute_seconds(const RangeCost& range, bool recompute) const {
    return (recompute ? 2 : 1) * range.forward_seconds + range.input_gradient_seconds +
           range.weight_gradient_seconds;
  }
  /// The steady-state cost of a stage per micro-batch: `latency` is what one replica takes for one
  /// micro-batch, transfers included; `step` the optimizer step.
  double seconds(double latency, double step, double all_reduce, int replicas) const;
  /// The fewest replicas, `least` at least, with which seconds() - or, for `after_first`, without
  /// the first micro-batch - keeps the limit; they must fit in front of device `end`. 0: none.
  int fewest_replicas(double latency, double step, std::size_t parameter_bytes, int least,
                      double limit, int end, bool after_first) const;
  /// As seconds(), but without the latency of the first micro-batch of a mini-batch: the time after
  /// that one.
  double seconds_after_first(double latency, double step, double all_reduce, int replicas) const {
    return seconds(latency, step, all_reduce, replicas) - latency / request_.micro_batches;
  }
  /// The least number of replicas, `replicas` at least, that lie in front of device `end` within a
  /// group or in whole groups; 0: there is none.
  int fitting_replicas(int replicas, int end) const;

  /// Of the optimizer, for each byte of parameters, on each of so many devices of a stage.
  double optimizer_bytes_per_byte(int replicas) const {
    return request_.optimizer_bytes_per_parameter_byte -
           request_.shared_bytes_per_parameter_byte * (1 - 1.0 / replicas);
  }
  /// On each device of the stage; `input_bytes`: what crosses the cut in front of it.
  MemoryNeed memory(const RangeCost& range, std::size_t input_bytes, ScheduleLoad load,
                    bool recompute, int replicas) const;
  bool fits(const MemoryNeed& memory) const {
    return request_.memory_limit_bytes == 0 || memory.total() <= request_.memory_limit_bytes;
  }
  /// The fewest replicas with which the stage fits into `limit` bytes; 0: it never does.
  int fewest_replicas_for_memory(const RangeCost& range, std::size_t input_bytes, bool recompute,
                                 int after, std::size_t limit) const;

 private:
  const PlanRequest& request_;
  ScheduleRule rule_;
  int devices_;
  std::vector<TopologyLevel> links_;  // [levels]
  std::vector<int> group_size_;       // 1, then of each level
  std::vector<double> speed_;         // empty: all 1
  double highest_speed_ = 1;
  std::vector<double> all_reduce_per_byte_, all_reduce_latency_;  // [replicas]
};

/// Ranges of a chain, each in constant time.
class ChainRanges {
 public:
  /// Keeps a reference. Error (kUsage, kModel) when the chain cannot be planned at all.
  explicit ChainRanges(const ChainCosts& chain);

  const ChainCosts& chain() const { return chain_; }
  int count() const { return static_cast<int>(chain_.elements.size()); }
  /// Whether a stage may hold what lies between these positions.
  bool related(int, int) const { return true; }
  RangeCost range(int first, int last) const;
  /// Bytes that cross the cut in front of a position, 0 at both ends.
  std::size_t forward_bytes(int cut) const {
    return inner(cut) ? chain_.forward_bytes[at(cut)] : 0;
  }
  std::size_t backward_bytes(int cut) const {
    return inner(cut) ? chain_.backward_bytes[at(cut)] : 0;
  }
  std::size_t cut_bytes(int cut) const { return forward_bytes(cut) + backward_bytes(cut); }
  /// What a stage that begins here keeps of each micro-batch to run its forward again.
  std::size_t input_bytes(int first) const { return chain_.forward_bytes[at(first)]; }

 private:
  // What a stage with a certain first element duplicates from earlier stages.
  struct Repeated {
    int element = 0;
    // Sums up to this element.
    std::size_t parameter_bytes = 0, more_gradient_bytes = 0, fixed_bytes = 0, constant_bytes = 0,
                saved_bytes = 0;
  };
  bool inner(int cut) const { return cut > 0 && cut < count(); }
  void add_repeated();

  const ChainCosts& chain_;
  std::vector<RangeCost> sums_;                      // of the first i elements
  std::vector<std::vector<std::size_t>> transient_;  // [k][i]: greatest of 2^k elements from i on
  std::vector<Repeated> repeated_;                   // for first = 0, 1, …
  std::vector<int> repeated_begin_;
};

/// Where a stage lies and what surrounds it.
struct StagePlace {
  DeviceRange devices;
  int after = 0;                          // devices of all later stages
  int level_before = 0, level_after = 0;  // of the links over which its two cuts go
};

/// A chain and a price for each of its ranges.
class StageCostModel {
 public:
  /// Keeps references to both.
  StageCostModel(const ChainCosts& chain, const PlanRequest& request, int devices);

  const ChainRanges& ranges() const { return ranges_; }
  const StagePricing& pricing() const { return pricing_; }
  const ChainCosts& chain() const { return ranges_.chain(); }
  const PlanRequest& request() const { return pricing_.request(); }
  int count() const { return ranges_.count(); }

  /// Time that a cut adds to each of the two stages beside it.
  double cut_seconds(int level, int cut) const {
    return cut_seconds_[static_cast<std::size_t>(level)][static_cast<std::size_t>(cut)];
  }
  /// The place of stage `stage` of `stages` with one device each, in order.
  StagePlace single_place(int stage, int stages) const;
  double seconds(const RangeCost& range, int first, int last, const StagePlace& place,
                 bool recompute) const;
  ScheduleLoad load(const StagePlace& place) const {
    return pricing_.rule().load(place.devices.count, place.after);
  }
  MemoryNeed memory(const RangeCost& range, int first, const StagePlace& place,
                    bool recompute) const {
    return pricing_.memory(range, ranges_.input_bytes(first), load(place), recompute,
                           place.devices.count);
  }
  /// Everything about one stage; `recompute` is already decided.
  StagePlan stage(int first, int last, const StagePlace& place, bool recompute) const;

 private:
  double latency(const RangeCost& range, int first, int last, const StagePlace& place,
                 bool recompute) const;

  ChainRanges ranges_;
  StagePricing pricing_;
  std::vector<std::vector<double>> cut_seconds_;  // [level][cut], zero at both ends
};

}  // namespace pipetrain
