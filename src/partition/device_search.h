// Fewest devices: the recursion at the heart of the planner.
//
//   G[n] = 0,  G[a] = min over b > a of  r(a, b, G[b]) + G[b]
//
// where r is the smallest number of replicas with which the stage [a, b) keeps a time limit and
// fits into memory, given that G[b] devices come after it. More devices behind a stage never make r
// smaller, so the fewest devices of every suffix give the fewest of the whole: exact.
//
// Where G alone does not say all, a position keeps several labels of which none is better in every
// respect: on devices in groups it also counts how many devices the group has left, and where the
// sum of latencies is made small, that sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

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
  /// What is made small among plans with equally few devices; kLatency: the sum of the stages'
  /// latencies, with any number of devices there are.
  enum class Second : unsigned char { kNothing, kPeakMemory, kTraffic, kLatency };

  /// Keeps references. `stages`: exactly so many, or 0 for any number.
  DeviceSearch(const Ranges& ranges, const StagePricing& pricing, int stages);

  /// Whether there is a plan within the limits.
  bool run(const SearchLimits& limits, Second second);
  /// Later runs for kNothing with the same memory, but less time (after a run that succeeded) or
  /// more time (after one that did not), may build on what the last run found: G never falls when
  /// time gets shorter.
  void remember(bool succeeded);
  /// A run for kNothing with any limit from that of the last one up to this, not included, or up to
  /// the horizon, finds the same.
  double next_change() const { return next_change_; }
  /// Whether next_change() says more than that: on equal devices joined alike.
  bool sees_changes() const { return one_label_; }
  void forget() { floor_ = ceiling_ = {}; }
  /// The plan that run() found, in order, beginning at device 0 where that changes nothing.
  std::vector<StageChoice> plan() const;
  /// Fewest devices, peak memory, traffic or latency of that plan.
  int devices() const { return root_->used; }
  double second() const { return root_->second; }

 private:
  struct Label {
    int end = 0;   // the next stage to the left lies in front of this device
    int used = 0;  // devices with a stage; others stay idle
    int stages = 0;
    int link = 0;       // level of the link over the cut in front
    double second = 0;  // memory, traffic or latency of the suffix
    int next = 0, next_label = 0;
    DeviceRange devices;
    bool recompute = false;
    double latency = 0;
  };
  struct Stage {
    int first, last;
    const Label* rest;
    int rest_index;
    RangeCost range;
  };

  // Lower bounds of a range are differences of these. What a stage shares with earlier elements is
  // not in them; rounding is taken off.
  struct Sums {
    double forward_seconds, parameter_bytes, saved_bytes;
  };
  struct Useful {
    int consumed, used;
  };

  static constexpr std::size_t kMostLabels = 24;
  static constexpr int kNone = std::numeric_limits<int>::max();
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  double compute(int position) const { return remaining_[at(position)]; }
  bool dominates(const Label& a, const Label& b) const;
  double least_seconds(double latency, double parameter_bytes, int most) const;
  bool may_be_of_use(int first, int last, double latency, int after);
  bool limited() const { return limits_.memory != std::numeric_limits<std::size_t>::max(); }
  double fastest(const RangeCost& range, double latency, int least, int most) const;
  void note_change(double seconds);
  void fill(int first);
  void try_range(int first, int last);
  void try_stage(const Stage& stage, int link);
  void place(const Stage& stage, int link, double latency, bool recompute, int replicas);
  void place_on_unequal(const Stage& stage, int link, bool recompute);
  void insert(int first, const Label& label);
  void thin(std::vector<Label>& labels);
  bool try_known(int first);
  void add_root_labels();
  // Devices behind the next stage to the left, idle ones included.
  int consumed(const Label& label) const { return pricing_.devices() - label.end; }
  // Devices left for stages [first, …) when everything before needs its least.
  int most_consumed(int first) const;
  void set_useful(int first);
  int allowed_over(int link, int consumed, int used, int left) const;
  bool leaves_most(const Label& label) const;

  const Ranges& ranges_;
  const StagePricing& pricing_;
  int stages_;
  int count_;
  bool one_label_;  // of a position is better than all others: equal devices, all joined alike
  std::vector<std::vector<double>> cut_seconds_;  // [level][position]
  std::vector<double> remaining_;                 // compute seconds of [position, count)
  std::vector<Sums> sums_;                        // of [position, count)
  std::vector<double> cheapest_cut_;
  // [replicas]: what a second of latency costs the pipeline, and a byte of parameters at least.
  std::vector<double> share_, reduce_, reduce_latency_;

  SearchLimits limits_;
  Second second_ = Second::kNothing;
  double per_limit_ = 0, per_horizon_ = 0;  // 1 / seconds
  std::vector<std::vector<Label>> labels_;
  std::vector<double> key_, key_used_;   // [position]: see fill()
  std::vector<int> least_, least_used_;  // [position]: devices consumed and used by the best label
  int most_ = 0;
  Useful useful_ = {0, 0};           // what a label must keep at least one of
  std::vector<Useful> useful_over_;  // the same for each level of links
  int allowed_ = 0;                  // replicas of the stage that is tried, if it is to be of use
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
    : ranges_(ranges), pricing_(pricing), stages_(stages), count_(ranges.count()) {
  one_label_ = pricing.uniform() && pricing.levels() == 1 && stages == 0;
  for (int level = 0; level < pricing.levels(); ++level) {
    std::vector<double>& row = cut_seconds_.emplace_back();
    for (int cut = 0; cut <= count_; ++cut) {
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
  for (int position = 0; position <= count_; ++position) {
    remaining_.push_back(position == count_
                             ? 0
                             : pricing.compute_seconds(ranges.range(position, count_), twice) /
                                   pricing.highest_speed());
    const RangeCost all = ranges.range(0, count_);
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

// Whether every way to go on from b is also one from a, and no worse. Devices may be left idle:
// what can be placed where a group has few devices left can be placed where it has more.
template <class Ranges>
bool DeviceSearch<Ranges>::dominates(const Label& a, const Label& b) const {
  if (a.end < b.end || a.used > b.used || a.link != b.link) return false;
  if (stages_ > 0 && a.stages != b.stages) return false;
  for (int level = 0; level + 1 < pricing_.levels(); ++level) {
    const int group = pricing_.group_size(level);
    if ((a.end - 1) % group < (b.end - 1) % group) return false;
  }
  if (second_ == Second::kLatency || (a.end == b.end && a.used == b.used)) {
    return a.second <= b.second;
  }
  return true;
}

// A lower bound for the time of a stage with up to `most` replicas; from two on, gradients have to
// be summed.
template <class Ranges>
double DeviceSearch<Ranges>::least_seconds(double latency, double parameter_bytes, int most) const {
  return std::min(latency, latency * share_[at(most)] + parameter_bytes * reduce_[at(most)] +
                               reduce_latency_[at(most)]);
}

// The least time with any number of replicas from `least` to `most`, or a bound. More replicas are
// faster, but for small steps in the cost of summing gradients.
template <class Ranges>
double DeviceSearch<Ranges>::fastest(const RangeCost& range, double latency, int least,
                                     int most) const {
  const auto bytes = static_cast<double>(range.parameter_bytes);
  double out = std::numeric_limits<double>::infinity();
  constexpr int kMostLooks = 8;
  for (int replicas = most; replicas >= least; --replicas) {
    const double bound = least_seconds(latency, bytes, replicas);
    if (bound >= out) break;
    if (replicas == most - kMostLooks) return bound;
    const double sum = pricing_.all_reduce_seconds(range.parameter_bytes, replicas);
    out = std::min(out, pricing_.seconds(latency, range.step_seconds, sum, replicas));
  }
  return out;
}

// Time has to be this long for a stage to have one replica less.
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

// Looks at the ends that earlier runs found best. True when nothing better can come.
template <class Ranges>
bool DeviceSearch<Ranges>::try_known(int first) {
  set_useful(first);
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

template <class Ranges>
int DeviceSearch<Ranges>::most_consumed(int first) const {
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
    if (root.end > 0) insert(count_, root);
  }
}

template <class Ranges>
bool DeviceSearch<Ranges>::run(const SearchLimits& limits, Second second) {
  limits_ = limits;
  second_ = second;
  limits_.horizon = std::max(limits.horizon, limits.seconds);
  per_limit_ = limits.seconds > 0 ? 1 / limits.seconds : 1e300;
  per_horizon_ = limits_.horizon > 0 ? 1 / limits_.horizon : 1e300;
  next_change_ = one_label_ && second == Second::kNothing ? std::numeric_limits<double>::infinity()
                                                          : limits.seconds;
  labels_.resize(at(count_ + 1));
  for (std::vector<Label>& labels : labels_) labels.clear();
  key_.assign(at(count_ + 1), std::numeric_limits<double>::infinity());
  key_used_ = key_;
  useful_over_.assign(at(pricing_.levels()), {0, 0});
  least_.assign(at(count_ + 1), kNone);
  least_used_ = least_;
  root_ = nullptr;
  add_root_labels();
  for (int first = count_; first >= 0; --first) {
    if (first < count_) fill(first);
    const std::vector<Label>& labels = labels_[at(first)];
    if (labels.empty()) continue;
    double latency = std::numeric_limits<double>::infinity();
    int least = kNone, least_used = kNone;
    for (const Label& label : labels) {
      latency = std::min(latency, label.second);
      least = std::min(least, consumed(label));
      least_used = std::min(least_used, label.used);
    }
    const double cut = cheapest_cut_[at(first)];
    if (second_ == Second::kLatency) {
      key_[at(first)] = latency + (compute(0) - compute(first)) + cut;
    } else {
      key_[at(first)] = least - (compute(first) - cut) * per_limit_;
      key_used_[at(first)] = least_used - (compute(first) - cut) * per_limit_;
    }
    least_[at(first)] = least;
    least_used_[at(first)] = least_used;
  }
  for (const Label& label : labels_[0]) {
    const bool better =
        root_ == nullptr ||
        (second_ == Second::kLatency
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
void DeviceSearch<Ranges>::fill(int first) {
  most_ = most_consumed(first);
  if (most_ < 1) return;
  const bool latency = second_ == Second::kLatency;
  const bool known = one_label_ && second_ == Second::kNothing;
  if (known && try_known(first)) return;
  set_useful(first);
  // The stages that were best one position to the right are a good start.
  if (!latency && first + 1 < count_) {
    for (const Label& label : labels_[at(first + 1)]) {
      if (ranges_.related(first, label.next)) try_range(first, label.next);
    }
  }
  const double cut = cheapest_cut_[at(first)], own_compute = compute(first) + cut;
  const double own = own_compute * per_limit_ - 1e-6;
  const double longest = limits_.total_latency * (1 + 1e-9) - cut;
  for (int last = first + 1; last <= count_; ++last) {
    if (latency) {
      if (key_[at(last)] > longest) continue;
    } else {
      if (least_[at(last)] == kNone) continue;
      if (!known && key_[at(last)] > useful_.consumed - own &&
          key_used_[at(last)] > useful_.used - own) {
        continue;
      }
      const double least = own_compute - compute(last) + cheapest_cut_[at(last)];
      allowed_ = 0;
      for (int link = 0; link < (first == 0 ? 1 : pricing_.levels()); ++link) {
        allowed_ = std::max(allowed_, allowed_over(link, least_[at(last)], least_used_[at(last)],
                                                   first == 0 ? kNone : pricing_.group_size(link)));
      }
      if (allowed_ < 1 || !ranges_.related(first, last) ||
          !may_be_of_use(first, last, least - 1e-12 * own_compute, least_used_[at(last)])) {
        continue;
      }
    }
    if (labels_[at(last)].empty() || !ranges_.related(first, last)) continue;
    try_range(first, last);
    if (known && !floor_.least.empty() && useful_.consumed < floor_.least[at(first)]) return;
  }
}

// Whether a stage can do with the replicas that are allowed, by bounds that take little to compute:
// dismisses nearly all ranges. `latency`: at least, without recompute.
template <class Ranges>
bool DeviceSearch<Ranges>::may_be_of_use(int first, int last, double latency, int after) {
  const int replicas = std::min(allowed_, pricing_.devices());
  const Sums &begin = sums_[at(first)], &end = sums_[at(last)];
  const double bytes = begin.parameter_bytes - end.parameter_bytes;
  double seconds = least_seconds(latency, bytes, replicas);
  if (seconds <= limits_.seconds && limited()) {
    const ScheduleLoad load = pricing_.rule().load(replicas, after, first == 0 && last == count_);
    const double memory =
        bytes * (1 + load.weight_versions + pricing_.request().optimizer_bytes_per_parameter_byte) +
        (begin.saved_bytes - end.saved_bytes) * load.in_flight;
    if (memory * (1 - 1e-9) > static_cast<double>(limits_.memory)) {
      // Not without running the forward twice.
      if (pricing_.request().recompute == Recompute::kNone) return false;
      if (pricing_.request().recompute == Recompute::kAuto) {
        latency += begin.forward_seconds - end.forward_seconds;
        seconds = least_seconds(latency, bytes, replicas);
      }
    }
  }
  if (seconds <= limits_.seconds) return true;
  note_change(seconds);
  return false;
}

// What a new label must keep to be of use. With one that leaves the most devices in its group, all
// others with the same link that consume and use no less are useless.
template <class Ranges>
void DeviceSearch<Ranges>::set_useful(int first) {
  if (second_ == Second::kLatency) return;
  const int gain = second_ == Second::kNothing ? 1 : 0;
  useful_ = {0, 0};
  for (int link = 0; link < (first == 0 ? 1 : pricing_.levels()); ++link) {
    Useful& here = useful_over_[at(link)];
    here = {most_, most_};
    int least = kNone;
    for (const Label& label : labels_[at(first)]) {
      if (label.link != link || consumed(label) >= least) continue;
      if (!one_label_ && !leaves_most(label)) continue;
      least = consumed(label);
      here = {std::min(most_, least - gain), std::min(most_, label.used - gain)};
    }
    useful_.consumed = std::max(useful_.consumed, here.consumed);
    useful_.used = std::max(useful_.used, here.used);
  }
}

// The most replicas of a stage behind which so many devices are consumed or used, so that it may be
// of use. `left`: devices of its group at the level of the link.
template <class Ranges>
int DeviceSearch<Ranges>::allowed_over(int link, int consumed, int used, int left) const {
  const Useful& useful = useful_over_[at(link)];
  const int out = std::max(useful.consumed - consumed, useful.used - used);
  // Over the link of a lower level the next stage begins in the same group: a device is left to it.
  return link + 1 < pricing_.levels() ? std::min(out, left - 1) : out;
}

// Whether no label with the same link can leave more devices in its groups.
template <class Ranges>
bool DeviceSearch<Ranges>::leaves_most(const Label& label) const {
  if (stages_ > 0) return false;
  for (int level = 0; level + 1 < pricing_.levels(); ++level) {
    // Over this link a group of the level below begins, over a lower one it does not.
    const int group = pricing_.group_size(level);
    const int most = label.link > level ? group : group - 1;
    if ((label.end - 1) % group + 1 < most) return false;
  }
  return true;
}

template <class Ranges>
void DeviceSearch<Ranges>::try_range(int first, int last) {
  Stage stage{first, last, nullptr, 0, ranges_.range(first, last)};
  const std::vector<Label>& rest = labels_[at(last)];
  for (std::size_t i = 0; i < rest.size(); ++i) {
    stage.rest = &rest[i];
    stage.rest_index = static_cast<int>(i);
    if (stages_ > 0) {
      const int stages = rest[i].stages + 1;
      if (first == 0 ? stages != stages_ : stages >= stages_) continue;
    }
    for (int link = 0; link < (first == 0 ? 1 : pricing_.levels()); ++link) {
      if (second_ != Second::kLatency) {
        allowed_ =
            allowed_over(link, consumed(rest[i]), rest[i].used,
                         first == 0 ? kNone : (rest[i].end - 1) % pricing_.group_size(link) + 1);
        if (allowed_ < 1) continue;
        if (!one_label_) {
          const double least = compute(first) - compute(last) - 1e-12 * compute(first) +
                               cut_seconds_[at(link)][at(first)] +
                               cut_seconds_[at(rest[i].link)][at(last)];
          if (!may_be_of_use(first, last, least, rest[i].used)) continue;
        }
      }
      try_stage(stage, link);
      set_useful(first);
    }
  }
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
  const double cuts = cut_seconds_[at(link)][at(stage.first)] +
                      (stage.last == count_ ? 0 : cut_seconds_[at(rest.link)][at(stage.last)]);
  const bool whole = stage.first == 0 && stage.last == count_;
  int kept = 0;
  for (const bool recompute : {false, true}) {
    if (mode == (recompute ? Recompute::kNone : Recompute::kAll)) continue;
    const double latency = pricing_.compute_seconds(stage.range, recompute) + cuts;
    int least = 1;
    if (limited()) {
      least = pricing_.fewest_replicas_for_memory(stage.range, ranges_.input_bytes(stage.first),
                                                  recompute, rest.used, whole, limits_.memory);
      if (least == 0) continue;
    }
    const int replicas =
        pricing_.fewest_replicas(latency, stage.range.step_seconds, stage.range.parameter_bytes,
                                 least, limits_.seconds, rest.end, limits_.after_first);
    const int fewer = std::min(allowed_, replicas == 0 ? rest.end : replicas - 1);
    if (one_label_ && fewer >= least) note_change(fastest(stage.range, latency, least, fewer));
    if (replicas == 0) continue;
    // Running the forward twice is worth it only where it saves devices.
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
  if (consumed(label) > most_consumed(stage.first)) return;
  if (second_ == Second::kLatency) {
    label.second = rest.second + latency;
    const double total = label.second + (compute(0) - compute(stage.first));
    if (total > limits_.total_latency) return;
  } else if (second_ != Second::kNothing) {
    const bool whole = stage.first == 0 && stage.last == count_;
    const std::size_t memory =
        pricing_
            .memory(stage.range, ranges_.input_bytes(stage.first),
                    pricing_.rule().load(replicas, rest.used, whole), recompute)
            .total();
    if (memory > limits_.peak) return;
    label.second = second_ == Second::kPeakMemory
                       ? std::max(rest.second, static_cast<double>(memory))
                       : rest.second + static_cast<double>(ranges_.cut_bytes(stage.last));
  }
  insert(stage.first, label);
}

// Devices of different speed: the first place to the left that ends soonest and is fast enough.
template <class Ranges>
void DeviceSearch<Ranges>::place_on_unequal(const Stage& stage, int link, bool recompute) {
  const Label& rest = *stage.rest;
  const bool whole = stage.first == 0 && stage.last == count_;
  const double cuts = cut_seconds_[at(link)][at(stage.first)] +
                      (stage.last == count_ ? 0 : cut_seconds_[at(rest.link)][at(stage.last)]);
  const double compute = pricing_.compute_seconds(stage.range, recompute);
  const int front = pricing_.devices() - most_consumed(stage.first);
  for (int first = rest.end - 1; first >= std::max(0, front); --first) {
    const int most = pricing_.request().replication ? rest.end - first : 1;
    for (int replicas = 1; replicas <= most; ++replicas) {
      if (pricing_.fitting_replicas(replicas, first + replicas) != replicas) continue;
      // Idle devices in between must not change the link that was reckoned with.
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
                      pricing_.rule().load(replicas, rest.used, whole), recompute)
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
void DeviceSearch<Ranges>::insert(int first, const Label& label) {
  std::vector<Label>& labels = labels_[at(first)];
  for (const Label& other : labels) {
    if (dominates(other, label)) return;
  }
  std::erase_if(labels, [&](const Label& other) { return dominates(label, other); });
  labels.push_back(label);
  if (second_ == Second::kLatency && labels.size() > kMostLabels * at(std::max(1, stages_))) {
    thin(labels);
  }
}

// Too many sums of latencies: gives up the label that is missed least, never an extreme one.
template <class Ranges>
void DeviceSearch<Ranges>::thin(std::vector<Label>& labels) {
  const auto kind = [](const Label& label) { return std::pair(label.stages, label.link); };
  std::stable_sort(labels.begin(), labels.end(), [&](const Label& a, const Label& b) {
    return kind(a) != kind(b) ? kind(a) < kind(b) : a.end > b.end;
  });
  std::size_t least = labels.size();
  double loss = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i + 1 < labels.size(); ++i) {
    const Label &left = labels[i - 1], &label = labels[i], &right = labels[i + 1];
    if (kind(left) != kind(label) || kind(right) != kind(label)) continue;
    if (left.second - label.second < loss) {
      loss = left.second - label.second;
      least = i;
    }
  }
  if (least == labels.size()) --least;
  labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(least));
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
