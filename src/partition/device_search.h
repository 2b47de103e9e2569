// Fewest devices: the recursion at the heart of the planner.
//
//   G[n] = 0,  G[a] = min over b > a of  r(a, b, G[b]) + G[b]
//
// where r is the smallest number of replicas with which the stage [a, b) keeps a time limit and
// fits into memory, given that G[b] devices come after it. More devices behind a stage never make r
// smaller, so the fewest devices of every suffix give the fewest of the whole: exact.
//
// Where G alone does not say all, a position keeps several labels of which none is better in every
// respect: on devices in groups one for each place in a group, and one for each sum of latencies
// where that counts too.
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

  // Keys of positions that may be worth a look.
  struct Threshold {
    double consumed, used;
  };

  static constexpr std::size_t kMostLabels = 24;
  static constexpr int kNone = std::numeric_limits<int>::max();
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  double compute(int position) const { return remaining_[at(position)]; }
  int class_of(const Label& label) const;
  void prepare(double seconds_limit);
  void fill(int first);
  void try_range(int first, int last);
  void try_stage(const Stage& stage, int link);
  void place(const Stage& stage, int link, double latency, bool recompute, int replicas);
  void place_on_unequal(const Stage& stage, int link, bool recompute);
  void insert(int first, const Label& label);
  void thin(std::vector<Label>& labels);
  void note_best(int first);
  void add_root_labels();
  // Devices behind the next stage to the left, idle ones included.
  int consumed(const Label& label) const { return pricing_.devices() - label.end; }
  // Devices left for stages [first, …) when everything before needs its least.
  int most_consumed(int first) const;
  Threshold threshold(int first) const;

  const Ranges& ranges_;
  const StagePricing& pricing_;
  int stages_;
  int count_;
  int alignment_;
  int classes_;
  std::vector<std::vector<double>> cut_seconds_;  // [level][position]
  std::vector<double> remaining_;                 // compute seconds of [position, count)
  std::vector<double> cheapest_cut_;

  SearchLimits limits_;
  Second second_ = Second::kNothing;
  double per_limit_ = 0;  // 1 / seconds limit
  std::vector<std::vector<Label>> labels_;
  std::vector<double> key_, key_used_;  // [position]: see fill()
  std::vector<int> class_best_;         // [class]: index of the label that consumes least, or -1
  int classes_found_ = 0;
  int most_ = 0;
  const Label* root_ = nullptr;
};

template <class Ranges>
DeviceSearch<Ranges>::DeviceSearch(const Ranges& ranges, const StagePricing& pricing, int stages)
    : ranges_(ranges), pricing_(pricing), stages_(stages), count_(ranges.count()) {
  // Which plans a position can be continued with depends on where in its group of devices it is.
  const int outer = pricing.group_size(pricing.levels() - 2);
  alignment_ = outer <= 64 ? outer : pricing.group_size(0);
  classes_ = (alignment_ + pricing.levels()) * (stages_ + 1);
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
  }
}

template <class Ranges>
int DeviceSearch<Ranges>::class_of(const Label& label) const {
  int out = label.end % alignment_;
  // Groups of more levels than the alignment tells apart.
  if (out == 0) {
    for (int level = 0; level + 1 < pricing_.levels(); ++level) {
      if (label.end % pricing_.group_size(level) == 0 && pricing_.group_size(level) > alignment_) {
        out = alignment_ + level;
      }
    }
  }
  return stages_ == 0 ? out : out * (stages_ + 1) + label.stages;
}

template <class Ranges>
int DeviceSearch<Ranges>::most_consumed(int first) const {
  const double before = compute(0) - compute(first);
  double least = before * per_limit_;
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
  per_limit_ = limits.seconds > 0 ? 1 / limits.seconds : 1e300;
  labels_.assign(at(count_ + 1), {});
  key_.assign(at(count_ + 1), std::numeric_limits<double>::infinity());
  key_used_ = key_;
  root_ = nullptr;
  class_best_.assign(at(classes_), kNone);
  classes_found_ = 0;
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
  std::fill(class_best_.begin(), class_best_.end(), kNone);
  classes_found_ = 0;
  most_ = most_consumed(first);
  if (most_ < 1) return;
  Threshold limit = threshold(first);
  const auto passes = [&](int last) {
    return key_[at(last)] <= limit.consumed || key_used_[at(last)] <= limit.used;
  };
  // The stage that was best one position to the right is a good start.
  if (second_ != Second::kLatency && first + 1 < count_ && !labels_[at(first + 1)].empty()) {
    const int guess = labels_[at(first + 1)].front().next;
    if (ranges_.related(first, guess) && passes(guess)) {
      try_range(first, guess);
      limit = threshold(first);
    }
  }
  for (int last = first + 1; last <= count_; ++last) {
    if (!passes(last) || !ranges_.related(first, last)) continue;
    try_range(first, last);
    limit = threshold(first);
  }
}

// A plan is useless if some label of its class consumes and uses no more devices: the one that
// consumes least is looked at here.
template <class Ranges>
typename DeviceSearch<Ranges>::Threshold DeviceSearch<Ranges>::threshold(int first) const {
  const double cut = cheapest_cut_[at(first)];
  if (second_ == Second::kLatency) {
    return {limits_.total_latency * (1 + 1e-9) - cut, -std::numeric_limits<double>::infinity()};
  }
  int worst = most_ + 1, worst_used = most_ + 1;
  if (classes_found_ >= (stages_ == 0 ? alignment_ : classes_)) {
    worst = worst_used = 0;
    for (const int index : class_best_) {
      if (index == kNone) continue;
      const Label& label = labels_[at(first)][at(index)];
      worst = std::max(worst, consumed(label));
      worst_used = std::max(worst_used, label.used);
    }
  }
  const int gain = second_ == Second::kNothing ? 1 : 0;
  const double own = (compute(first) + cut) * per_limit_ - 1e-6;
  return {std::min(most_, worst - gain) - own, std::min(most_, worst_used - gain) - own};
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
      try_stage(stage, link);
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
  const bool limited = limits_.memory != std::numeric_limits<std::size_t>::max();
  const bool whole = stage.first == 0 && stage.last == count_;
  int kept = 0;
  for (const bool recompute : {false, true}) {
    if (mode == (recompute ? Recompute::kNone : Recompute::kAll)) continue;
    const double latency = pricing_.compute_seconds(stage.range, recompute) + cuts;
    int least = 1;
    if (limited) {
      least = pricing_.fewest_replicas_for_memory(stage.range, ranges_.input_bytes(stage.first),
                                                  recompute, rest.used, whole, limits_.memory);
      if (least == 0) continue;
    }
    const int replicas =
        pricing_.fewest_replicas(latency, stage.range.step_seconds, stage.range.parameter_bytes,
                                 least, limits_.seconds, rest.end, limits_.after_first);
    if (replicas == 0) continue;
    // Running the forward twice is worth it only where it saves devices.
    if (recompute && kept > 0 && replicas >= kept) continue;
    if (!recompute) kept = replicas;
    place(stage, link, latency, recompute, replicas);
    if (!limited) break;  // nothing to be saved
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
  const int kind = class_of(label);
  const auto dominates = [&](const Label& a, const Label& b) {
    if (a.end < b.end || a.used > b.used) return false;
    if (second_ == Second::kLatency || (a.end == b.end && a.used == b.used)) {
      return a.second <= b.second;
    }
    return true;
  };
  for (const Label& other : labels) {
    if (class_of(other) == kind && other.link == label.link && dominates(other, label)) return;
  }
  std::erase_if(labels, [&](const Label& other) {
    return class_of(other) == kind && other.link == label.link && dominates(label, other);
  });
  labels.push_back(label);
  if (labels.size() > kMostLabels * at(alignment_) * at(pricing_.levels())) thin(labels);
  note_best(first);
}

template <class Ranges>
void DeviceSearch<Ranges>::note_best(int first) {
  const std::vector<Label>& labels = labels_[at(first)];
  if (second_ == Second::kLatency) return;
  std::fill(class_best_.begin(), class_best_.end(), kNone);
  classes_found_ = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    int& best = class_best_[at(class_of(labels[i]))];
    if (best == kNone) ++classes_found_;
    if (best == kNone || consumed(labels[i]) < consumed(labels[at(best)])) {
      best = static_cast<int>(i);
    }
  }
}

// Too many sums of latencies: gives up the label that is missed least, never an extreme one.
template <class Ranges>
void DeviceSearch<Ranges>::thin(std::vector<Label>& labels) {
  std::stable_sort(labels.begin(), labels.end(), [&](const Label& a, const Label& b) {
    return std::tuple(class_of(a), a.link, -a.end) < std::tuple(class_of(b), b.link, -b.end);
  });
  std::size_t least = labels.size();
  double loss = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i + 1 < labels.size(); ++i) {
    const Label &left = labels[i - 1], &label = labels[i], &right = labels[i + 1];
    if (class_of(left) != class_of(label) || class_of(right) != class_of(label)) continue;
    if (left.link != label.link || right.link != label.link) continue;
    if (left.second - label.second < loss) {
      loss = left.second - label.second;
      least = i;
    }
  }
  if (least < labels.size()) labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(least));
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
