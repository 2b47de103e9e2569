// The planner's core recursion: the fewest devices for a time limit.
//
//   G[n] = 0,  G[a] = min over b > a of  r(a, b, G[b]) + G[b]
//
// where r is the smallest number of replicas with which the stage [a, b) keeps a time limit and
// fits into memory, given that G[b] devices come after it. More devices after a stage never make r
// smaller, so the fewest devices of every suffix give the fewest of the whole: exact.
//
// Where G alone is not enough, a position keeps several Pareto-optimal labels: on devices in groups
// they include the devices left in the group, and for kLatency the sum of latencies.
//
// One file because all members of DeviceSearch work on the same labels; what does not is in
// device_labels.h, range_bounds.h and stage_cost.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/index.h"
#include "partition/device_labels.h"
#include "partition/range_bounds.h"
#include "partition/stage_cost.h"

namespace pipetrain {

/// One stage of a found plan.
struct StageChoice {
  int first = 0, last = 0;  // positions
  DeviceRange devices;
  bool recompute = false;
  double latency = 0;  // of one micro-batch on one replica, transfers included
  double seconds = 0;  // what the time limit was held against
};

struct SearchLimits {
  double seconds = 0;  // of each stage: StagePricing::seconds(), or seconds_after_first()
  bool after_first = false;
  std::size_t memory = std::numeric_limits<std::size_t>::max();  // what a device has
  /// Stages whose memory, as decided under the limit above, exceeds this are not taken.
  std::size_t peak = std::numeric_limits<std::size_t>::max();
  double total_latency = std::numeric_limits<double>::infinity();  // of all stages; kLatency only
  /// What next_change() looks ahead to, at least `seconds`; 0: nothing.
  double horizon = 0;
};

/// Ranges: ChainRanges or IdealRanges. Positions run from 0 (nothing before) to count().
template <class Ranges>
class DeviceSearch {
 public:
  /// Keeps references. `stages`: exactly so many, or 0 for any number.
  DeviceSearch(const Ranges& ranges, const StagePricing& pricing, int stages);

  /// Whether there is a plan within the limits.
  bool run(const SearchLimits& limits, SecondAim second);
  /// Later runs for kNothing with the same memory and a shorter limit (after success) or a longer
  /// one (after failure) can reuse the last run's results: G never falls when the limit shrinks.
  void remember(bool succeeded);
  /// For kNothing: the result of the last run also holds for every longer limit below this value,
  /// or below the horizon if that comes first.
  double next_change() const { return next_change_; }
  /// Whether next_change() says more than that: on equal devices joined alike.
  bool sees_changes() const { return one_label_; }
  /// Whether the last run's sum of latencies is optimal. It may not be where labels were dropped.
  bool exact() const { return rules_.exact(); }
  void forget() { floor_ = ceiling_ = {}; }
  /// The plan that run() found, in order, beginning at device 0 where that changes nothing.
  std::vector<StageChoice> plan() const;
  /// Fewest devices, peak memory, traffic or latency of that plan.
  int devices() const { return root_->used; }
  double second() const { return root_->second; }

 private:
  using Label = DeviceLabel;
  struct Stage {
    int first, last;
    const Label* rest;
    int rest_index;
    RangeCost range;
  };

  static constexpr int kNone = std::numeric_limits<int>::max();
  double compute(int position) const { return bounds_.compute(position); }
  bool may_be_of_use(int first, int last, double latency, int after);
  bool limited() const { return limits_.memory != std::numeric_limits<std::size_t>::max(); }
  double fastest(const RangeCost& range, double latency, int least, int most) const;
  void note_change(double seconds);
  int links(int first) const { return first == 0 ? 1 : pricing_.levels(); }
  void fill(int first);
  void note_keys(int first);
  bool worth_trying(int first, int last);
  void try_range(int first, int last);
  bool worth_trying(const Stage& stage, int link);
  void try_stage(const Stage& stage, int link);
  void place(const Stage& stage, int link, double latency, bool recompute, int replicas);
  void place_on_unequal(const Stage& stage, int link, bool recompute);
  bool try_known(int first);
  void add_root_labels();
  // Devices after the next stage to the left, idle ones included.
  int consumed(const Label& label) const { return pricing_.devices() - label.end; }
  int most_consumed(int first) const;
  void look_at(int first) {
    if (second_ == SecondAim::kLatency) return;
    rules_.look_at(labels_[at(first)], pricing_.devices() - most_, first == 0);
  }

  const Ranges& ranges_;
  const StagePricing& pricing_;
  int stages_;
  int count_;
  bool one_label_;  // of a position is better than all others: equal devices, all joined alike
  RangeBounds<Ranges> bounds_;
  LabelRules rules_;

  SearchLimits limits_;
  SecondAim second_ = SecondAim::kNothing;
  double per_limit_ = 0, per_horizon_ = 0;  // 1 / seconds
  std::vector<std::vector<Label>> labels_;
  std::vector<double> key_, key_used_;   // [position]: see fill()
  std::vector<int> least_, least_used_;  // [position]: devices consumed and used by the best label
  std::vector<int>
      before_;  // [position]: devices that all in front needs at least; empty: see most_consumed()
  int most_ = 0;     // devices left for what is laid out now
  int allowed_ = 0;  // replicas of the stage that is tried, if it is to be of use
  double next_change_ = 0;

  // What an earlier run says of each position: G and the end of the first stage.
  struct Known {
    std::vector<int> least, next;
  };
  Known floor_, ceiling_;
  const Label* root_ = nullptr;
};

template <class Ranges>
DeviceSearch<Ranges>::DeviceSearch(const Ranges& ranges, const StagePricing& pricing, int stages)
    : ranges_(ranges),
      pricing_(pricing),
      stages_(stages),
      count_(ranges.count()),
      one_label_(pricing.uniform() && pricing.levels() == 1 && stages == 0),
      bounds_(ranges, pricing),
      rules_(pricing, stages) {}

// The least time with any number of replicas from `least` to `most`, or a bound. More replicas are
// faster, but for small steps in the cost of summing gradients.
template <class Ranges>
double DeviceSearch<Ranges>::fastest(const RangeCost& range, double latency, int least,
                                     int most) const {
  const auto bytes = static_cast<double>(range.parameter_bytes);
  double out = std::numeric_limits<double>::infinity();
  constexpr int kMostLooks = 8;
  for (int replicas = most; replicas >= least; --replicas) {
    const double bound = bounds_.least_seconds(latency, bytes, replicas);
    if (bound >= out) break;
    if (replicas == most - kMostLooks) return bound;
    const double sum = pricing_.all_reduce_seconds(range.parameter_bytes, replicas);
    out = std::min(out, pricing_.seconds(latency, range.step_seconds, sum, replicas));
  }
  return out;
}

// The time limit from which a stage needs one replica less.
template <class Ranges>
void DeviceSearch<Ranges>::note_change(double seconds) {
  next_change_ = std::min(next_change_, std::max(seconds, limits_.seconds));
}

template <class Ranges>
void DeviceSearch<Ranges>::remember(bool succeeded) {
  if (!one_label_) return;
  Known& known = succeeded ? floor_ : ceiling_;
  known.least = least_;
  known.next.assign(at(count_ + 1), 0);
  for (int position = 0; position < count_; ++position) {
    if (!labels_[at(position)].empty()) {
      known.next[at(position)] = labels_[at(position)].front().next;
    }
  }
}

// Tries the best ends of earlier runs. True when they are optimal.
template <class Ranges>
bool DeviceSearch<Ranges>::try_known(int first) {
  look_at(first);
  const auto reached = [&] {
    const std::vector<Label>& labels = labels_[at(first)];
    return !labels.empty() && !floor_.least.empty() &&
           consumed(labels.front()) <= floor_.least[at(first)];
  };
  if (!floor_.least.empty() && floor_.least[at(first)] == kNone) return true;
  for (const Known* known : {&ceiling_, &floor_}) {
    if (known->least.empty() || known->least[at(first)] == kNone) continue;
    const int last = known->next[at(first)];
    if (!labels_[at(last)].empty()) try_range(first, last);
    if (reached()) return true;
  }
  return false;
}

// Devices left for stages [first, …) when everything before needs its least.
template <class Ranges>
int DeviceSearch<Ranges>::most_consumed(int first) const {
  if (!before_.empty()) return pricing_.devices() - std::max(first > 0 ? 1 : 0, before_[at(first)]);
  const double before = compute(0) - compute(first);
  double least = before * per_horizon_;
  if (limits_.after_first) {
    // ceil(m / r) - 1 <= m limit / latency, so that r >= latency / (limit + latency / m).
    const double wait = limits_.seconds + before / pricing_.request().micro_batches;
    least = wait > 0 ? before / wait : 0;
  }
  if (!(least < 1e9)) return -1;
  const int needed = static_cast<int>(std::ceil(least * (1 - 1e-9) - 1e-9));
  return pricing_.devices() - (first > 0 ? std::max(1, needed) : 0);
}

template <class Ranges>
void DeviceSearch<Ranges>::add_root_labels() {
  for (int level = 0; level < pricing_.levels(); ++level) {
    Label root;
    root.end = pricing_.devices() / pricing_.group_size(level - 1) * pricing_.group_size(level - 1);
    if (root.end > 0) rules_.insert(labels_[at(count_)], root);
  }
}

template <class Ranges>
bool DeviceSearch<Ranges>::run(const SearchLimits& limits, SecondAim second) {
  limits_ = limits;
  second_ = second;
  rules_.begin(second);
  limits_.horizon = std::max(limits.horizon, limits.seconds);
  per_limit_ = limits.seconds > 0 ? 1 / limits.seconds : 1e300;
  per_horizon_ = limits_.horizon > 0 ? 1 / limits_.horizon : 1e300;
  next_change_ = one_label_ && second == SecondAim::kNothing
                     ? std::numeric_limits<double>::infinity()
                     : limits.seconds;
  labels_.resize(at(count_ + 1));
  for (std::vector<Label>& labels : labels_) labels.clear();
  key_.assign(at(count_ + 1), std::numeric_limits<double>::infinity());
  key_used_ = key_;
  least_.assign(at(count_ + 1), kNone);
  least_used_ = least_;
  root_ = nullptr;
  before_.clear();
  const bool finite = limits.seconds > 0 && limits.seconds < 1e300;
  if (!one_label_ && !limits.after_first && finite) {
    before_ = bounds_.devices_before(limits.seconds);
    if (before_[at(count_)] > pricing_.devices()) return false;
  }
  add_root_labels();
  for (int first = count_; first >= 0; --first) {
    if (first < count_) fill(first);
    if (!labels_[at(first)].empty()) note_keys(first);
  }
  for (const Label& label : labels_[0]) {
    const bool better =
        root_ == nullptr ||
        (second_ == SecondAim::kLatency
             ? std::pair(label.second, label.used) < std::pair(root_->second, root_->used)
             : std::pair(label.used, label.second) < std::pair(root_->used, root_->second));
    if (better) root_ = &label;
  }
  return root_ != nullptr;
}

// A stage [first, last) needs at least its compute time and transfers over the limit in devices.
// With key[last] = G[last] - (remaining[last] - cut[last]) / limit, a plan through `last` can only
// improve on the labels of `first` where key[last] is small enough: most ranges are dismissed by
// one comparison. For kLatency the same is done with the sum of latencies.
template <class Ranges>
void DeviceSearch<Ranges>::note_keys(int first) {
  double latency = std::numeric_limits<double>::infinity();
  int least = kNone, least_used = kNone;
  for (const Label& label : labels_[at(first)]) {
    latency = std::min(latency, label.second);
    least = std::min(least, consumed(label));
    least_used = std::min(least_used, label.used);
  }
  const double cut = bounds_.cheapest_cut(first);
  if (second_ == SecondAim::kLatency) {
    key_[at(first)] = latency + (compute(0) - compute(first)) + cut;
  } else {
    key_[at(first)] = least - (compute(first) - cut) * per_limit_;
    key_used_[at(first)] = least_used - (compute(first) - cut) * per_limit_;
  }
  least_[at(first)] = least;
  least_used_[at(first)] = least_used;
}

template <class Ranges>
void DeviceSearch<Ranges>::fill(int first) {
  most_ = most_consumed(first);
  if (most_ < 1) return;
  const bool latency = second_ == SecondAim::kLatency;
  const bool known = one_label_ && second_ == SecondAim::kNothing;
  if (known && try_known(first)) return;
  look_at(first);
  // The stages that were best one position to the right are a good start.
  if (!latency && first + 1 < count_) {
    for (const Label& label : labels_[at(first + 1)]) {
      if (ranges_.related(first, label.next)) try_range(first, label.next);
    }
  }
  const double own = compute(first) + bounds_.cheapest_cut(first);
  const double longest = limits_.total_latency * (1 + 1e-9) - bounds_.cheapest_cut(first);
  for (int last = first + 1; last <= count_; ++last) {
    if (latency ? key_[at(last)] > longest : !worth_trying(first, last)) continue;
    if (labels_[at(last)].empty() || !ranges_.related(first, last)) continue;
    if (one_label_ && !latency) {
      const double least = own - compute(last) + bounds_.cheapest_cut(last) - 1e-12 * own;
      allowed_ = rules_.most_consumed(0) - least_[at(last)];
      if (!may_be_of_use(first, last, least, least_used_[at(last)])) continue;
    }
    try_range(first, last);
    if (known && !floor_.least.empty() && rules_.most_consumed(0) < floor_.least[at(first)]) return;
  }
}

// Whether a stage that ends here can leave enough devices for its label to be of use: by the keys,
// then by the replicas that the best label after it allows.
template <class Ranges>
bool DeviceSearch<Ranges>::worth_trying(int first, int last) {
  const int least = least_[at(last)], least_used = least_used_[at(last)];
  if (least == kNone) return false;
  for (int link = 0; link < links(first); ++link) {
    const int consumed = rules_.most_consumed(link), used = rules_.most_used(link);
    if (least >= consumed && least_used >= used) continue;
    // note_change() must see every stage that could have one replica less.
    if (one_label_ && second_ == SecondAim::kNothing) return true;
    const double cut = bounds_.cut_seconds(link, first);
    const double own = (compute(first) + cut) * per_limit_ * (1 - 1e-9) - 1e-6;
    if (key_[at(last)] > consumed - own && key_used_[at(last)] > used - own) continue;
    int replicas = std::max(consumed - least, used - least_used);
    if (first > 0 && link + 1 < pricing_.levels()) {
      replicas = std::min(replicas, pricing_.group_size(link) - 1);
      if (replicas < 1) continue;
    }
    const double latency = bounds_.compute(first, last) + cut + bounds_.cheapest_cut(last);
    if (bounds_.least_seconds(latency, bounds_.parameter_bytes(first, last), replicas) <=
        limits_.seconds) {
      return true;
    }
  }
  return false;
}

// Whether a stage can do with the replicas that are allowed, by bounds that take little to compute:
// dismisses nearly all ranges. `latency`: at least, without recompute.
template <class Ranges>
bool DeviceSearch<Ranges>::may_be_of_use(int first, int last, double latency, int after) {
  const int replicas = std::min(allowed_, pricing_.devices());
  const double bytes = bounds_.parameter_bytes(first, last);
  double seconds = bounds_.least_seconds(latency, bytes, replicas);
  if (seconds <= limits_.seconds && limited()) {
    const ScheduleLoad load = pricing_.rule().load(replicas, after);
    const double memory =
        bytes * (1 + load.weight_versions + pricing_.optimizer_bytes_per_byte(replicas)) +
        bounds_.saved_bytes(first, last) * load.in_flight;
    if (memory * (1 - 1e-9) > static_cast<double>(limits_.memory)) {
      // Not without running the forward twice.
      if (pricing_.request().recompute == Recompute::kNone) return false;
      if (pricing_.request().recompute == Recompute::kAuto) {
        latency += bounds_.forward_seconds(first, last);
        seconds = bounds_.least_seconds(latency, bytes, replicas);
      }
    }
  }
  if (seconds <= limits_.seconds) return true;
  note_change(seconds);
  return false;
}

template <class Ranges>
void DeviceSearch<Ranges>::try_range(int first, int last) {
  Stage stage{first, last, nullptr, 0, {}};
  bool priced = false;
  const std::vector<Label>& rest = labels_[at(last)];
  for (std::size_t i = 0; i < rest.size(); ++i) {
    stage.rest = &rest[i];
    stage.rest_index = static_cast<int>(i);
    if (stages_ > 0) {
      const int stages = rest[i].stages + 1;
      if (first == 0 ? stages != stages_ : stages >= stages_) continue;
    }
    for (int link = 0; link < links(first); ++link) {
      if (second_ != SecondAim::kLatency && !worth_trying(stage, link)) continue;
      if (!priced) stage.range = ranges_.range(first, last);
      priced = true;
      try_stage(stage, link);
    }
  }
}

// Whether the label of a stage in front of this rest can be of use.
template <class Ranges>
bool DeviceSearch<Ranges>::worth_trying(const Stage& stage, int link) {
  allowed_ = rules_.most_replicas(link, *stage.rest);
  if (allowed_ < 1) return false;
  if (one_label_) return true;  // fill() has looked already
  const double least = bounds_.compute(stage.first, stage.last) +
                       bounds_.cut_seconds(link, stage.first) +
                       bounds_.cut_seconds(stage.rest->link, stage.last);
  return may_be_of_use(stage.first, stage.last, least, stage.rest->used);
}

template <class Ranges>
void DeviceSearch<Ranges>::try_stage(const Stage& stage, int link) {
  const Label& rest = *stage.rest;
  const Recompute mode = pricing_.request().recompute;
  if (!pricing_.uniform()) {
    if (mode != Recompute::kAll) place_on_unequal(stage, link, false);
    if (mode != Recompute::kNone) place_on_unequal(stage, link, true);
    return;
  }
  const double cuts = bounds_.cut_seconds(link, stage.first) +
                      (stage.last == count_ ? 0 : bounds_.cut_seconds(rest.link, stage.last));
  int kept = 0;
  for (const bool recompute : {false, true}) {
    if (mode == (recompute ? Recompute::kNone : Recompute::kAll)) continue;
    const double latency = pricing_.compute_seconds(stage.range, recompute) + cuts;
    int least = 1;
    if (limited()) {
      least = pricing_.fewest_replicas_for_memory(stage.range, ranges_.input_bytes(stage.first),
                                                  recompute, rest.used, limits_.memory);
      if (least == 0) continue;
    }
    const int replicas =
        pricing_.fewest_replicas(latency, stage.range.step_seconds, stage.range.parameter_bytes,
                                 least, limits_.seconds, rest.end, limits_.after_first);
    const int fewer = std::min(allowed_, replicas == 0 ? rest.end : replicas - 1);
    if (one_label_ && fewer >= least) note_change(fastest(stage.range, latency, least, fewer));
    if (replicas == 0) continue;
    // Recompute is used only where it saves devices.
    if (recompute && kept > 0 && replicas >= kept) continue;
    if (!recompute) kept = replicas;
    place(stage, link, latency, recompute, replicas);
    if (!limited()) break;  // nothing to be saved
  }
}

template <class Ranges>
void DeviceSearch<Ranges>::place(const Stage& stage, int link, double latency, bool recompute,
                                 int replicas) {
  const Label& rest = *stage.rest;
  Label label;
  label.devices = {rest.end - replicas, replicas};
  if (label.devices.first < 0) return;
  label.end = label.devices.first;
  label.used = rest.used + replicas;
  label.stages = rest.stages + 1;
  label.link = link;
  label.next = stage.last;
  label.next_label = stage.rest_index;
  label.recompute = recompute;
  label.latency = latency;
  if (stage.first > 0) {
    // The stage in front may have to lie in another group for the cut to go over this link.
    const int unit = pricing_.group_size(link - 1);
    label.end = label.end / unit * unit;
    if (label.end == 0) return;
    if (pricing_.level_between(label.end - 1, label.devices.first) != link) return;
  }
  if (consumed(label) > most_) return;
  if (second_ == SecondAim::kLatency) {
    label.second = rest.second + latency;
    const double total = label.second + (compute(0) - compute(stage.first));
    if (total > limits_.total_latency) return;
  } else if (second_ != SecondAim::kNothing) {
    const std::size_t memory =
        pricing_
            .memory(stage.range, ranges_.input_bytes(stage.first),
                    pricing_.rule().load(replicas, rest.used), recompute, replicas)
            .total();
    if (memory > limits_.peak) return;
    label.second = second_ == SecondAim::kPeakMemory
                       ? std::max(rest.second, static_cast<double>(memory))
                       : rest.second + static_cast<double>(ranges_.cut_bytes(stage.last));
  }
  if (rules_.insert(labels_[at(stage.first)], label)) look_at(stage.first);
}

// Devices of different speed: the first place to the left that ends soonest and is fast enough.
template <class Ranges>
void DeviceSearch<Ranges>::place_on_unequal(const Stage& stage, int link, bool recompute) {
  const Label& rest = *stage.rest;
  const double cuts = bounds_.cut_seconds(link, stage.first) +
                      (stage.last == count_ ? 0 : bounds_.cut_seconds(rest.link, stage.last));
  const double compute = pricing_.compute_seconds(stage.range, recompute);
  const int front = pricing_.devices() - most_;
  for (int first = rest.end - 1; first >= std::max(0, front); --first) {
    const int most = pricing_.request().replication ? rest.end - first : 1;
    for (int replicas = 1; replicas <= most; ++replicas) {
      if (pricing_.fitting_replicas(replicas, first + replicas) != replicas) continue;
      // Idle devices in between must not change the assumed link.
      if (stage.last < count_ &&
          pricing_.level_between(first + replicas - 1, rest.devices.first) != rest.link) {
        continue;
      }
      const double speed = pricing_.speed(first, replicas);
      const double latency = compute / speed + cuts;
      const double step = stage.range.step_seconds / speed;
      const double all_reduce = pricing_.all_reduce_seconds(stage.range.parameter_bytes, replicas);
      const double seconds = limits_.after_first
                                 ? pricing_.seconds_after_first(latency, step, all_reduce, replicas)
                                 : pricing_.seconds(latency, step, all_reduce, replicas);
      if (seconds > limits_.seconds) continue;
      if (pricing_
              .memory(stage.range, ranges_.input_bytes(stage.first),
                      pricing_.rule().load(replicas, rest.used), recompute, replicas)
              .total() > limits_.memory) {
        continue;
      }
      Label moved = rest;
      moved.end = first + replicas;
      Stage there = stage;
      there.rest = &moved;
      place(there, link, latency, recompute, replicas);
      return;
    }
  }
}

template <class Ranges>
std::vector<StageChoice> DeviceSearch<Ranges>::plan() const {
  std::vector<StageChoice> out;
  int position = 0;
  const Label* label = root_;
  while (position < count_) {
    const RangeCost range = ranges_.range(position, label->next);
    const DeviceRange devices = label->devices;
    const double step = range.step_seconds / pricing_.speed(devices.first, devices.count);
    const double all_reduce = pricing_.all_reduce_seconds(range.parameter_bytes, devices.count);
    const double seconds =
        limits_.after_first
            ? pricing_.seconds_after_first(label->latency, step, all_reduce, devices.count)
            : pricing_.seconds(label->latency, step, all_reduce, devices.count);
    out.push_back({position, label->next, devices, label->recompute, label->latency, seconds});
    position = label->next;
    label = &labels_[at(position)][at(label->next_label)];
  }
  const int group = pricing_.group_size(pricing_.levels() - 2);
  if (pricing_.uniform()) {
    const int shift = out.front().devices.first / group * group;
    for (StageChoice& stage : out) stage.devices.first -= shift;
  }
  return out;
}

}  // namespace pipetrain
