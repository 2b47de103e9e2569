#include "partition/device_labels.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace pipetrain {

LabelRules::LabelRules(const StagePricing& pricing, int stages)
    : pricing_(pricing),
      stages_(stages),
      alike_(pricing.uniform() && pricing.levels() == 1 && stages == 0),
      most_consumed_(at(pricing.levels()), 0),
      most_used_(at(pricing.levels()), 0),
      first_end_(at(pricing.levels()), 0) {
  const std::size_t entries = at(stages + 1) * at(pricing.levels()) * at(pricing.devices() + 1);
  if (entries <= kMostRemembered) remembered_.resize(entries);
}

void LabelRules::begin(SecondAim aim) {
  aim_ = aim;
  most_idle_ = 0;
  exact_ = true;
}

// Whether a dominates b: every continuation of b is also one of a, and no worse. Devices may stay
// idle, so more devices left in a group are never worse.
bool LabelRules::dominates(const DeviceLabel& a, const DeviceLabel& b) const {
  if (a.end < b.end || a.used > b.used || a.link != b.link) return false;
  if (stages_ > 0 && a.stages != b.stages) return false;
  for (int level = 0; level + 1 < pricing_.levels(); ++level) {
    const int group = pricing_.group_size(level);
    if ((a.end - 1) % group < (b.end - 1) % group) return false;
  }
  if (aim_ == SecondAim::kLatency || (a.end == b.end && a.used == b.used)) {
    return a.second <= b.second;
  }
  return true;
}

bool LabelRules::insert(std::vector<DeviceLabel>& labels, const DeviceLabel& label) {
  for (const DeviceLabel& other : labels) {
    if (dominates(other, label)) return false;
  }
  std::erase_if(labels, [&](const DeviceLabel& other) { return dominates(label, other); });
  labels.push_back(label);
  most_idle_ = std::max(most_idle_, pricing_.devices() - label.end - label.used);
  if (aim_ == SecondAim::kLatency && labels.size() > kMostLabels * at(std::max(1, stages_))) {
    thin(labels);
  }
  return true;
}

// Too many labels: drops the one whose loss matters least, never an extreme one.
void LabelRules::thin(std::vector<DeviceLabel>& labels) {
  exact_ = false;
  const auto kind = [](const DeviceLabel& label) { return std::pair(label.stages, label.link); };
  std::stable_sort(labels.begin(), labels.end(), [&](const DeviceLabel& a, const DeviceLabel& b) {
    return kind(a) != kind(b) ? kind(a) < kind(b) : a.end > b.end;
  });
  std::size_t least = labels.size();
  double loss = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i + 1 < labels.size(); ++i) {
    const DeviceLabel &left = labels[i - 1], &label = labels[i], &right = labels[i + 1];
    if (kind(left) != kind(label) || kind(right) != kind(label)) continue;
    if (left.second - label.second < loss) {
      loss = left.second - label.second;
      least = i;
    }
  }
  if (least == labels.size()) --least;
  labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(least));
}

// Whether a label of the position dominates one that uses at least `used` devices.
bool LabelRules::beaten(int link, int end, int used, int stages) const {
  return std::any_of(labels_->begin(), labels_->end(), [&](const DeviceLabel& label) {
    if (label.end < end || label.used > used || label.link != link) return false;
    if (stages_ > 0 && label.stages != stages) return false;
    for (int level = 0; level + 1 < pricing_.levels(); ++level) {
      const int group = pricing_.group_size(level);
      if ((label.end - 1) % group < (end - 1) % group) return false;
    }
    // Of equal ones the second aim decides.
    return aim_ == SecondAim::kNothing || label.end != end || label.used != used;
  });
}

// Whether a cut over this link can have its front side end here: the stages after it begin in
// another group of the level below, and in the same group of the level.
bool LabelRules::possible_end(int link, int end) const {
  if (end % pricing_.group_size(link - 1) != 0) return false;
  return link + 1 == pricing_.levels() || end % pricing_.group_size(link) != 0;
}

// Whether no label with the same link can leave more devices in its groups.
bool LabelRules::leaves_most(const DeviceLabel& label) const {
  if (stages_ > 0) return false;
  for (int level = 0; level + 1 < pricing_.levels(); ++level) {
    // Over this link a group of the level below begins, over a lower one it does not.
    const int group = pricing_.group_size(level);
    const int most = label.link > level ? group : group - 1;
    if ((label.end - 1) % group + 1 < most) return false;
  }
  return true;
}

// A label that leaves the most devices in its group dominates all others with the same link that
// consume and use no less.
void LabelRules::look_at_best(int link) {
  const int gain = aim_ == SecondAim::kNothing ? 1 : 0;
  const int most = pricing_.devices() - least_end_;
  int &consumed = most_consumed_[at(link)], &used = most_used_[at(link)];
  consumed = used = most;
  int least = std::numeric_limits<int>::max();
  for (const DeviceLabel& label : *labels_) {
    const int behind = pricing_.devices() - label.end;
    if (label.link != link || behind >= least || !leaves_most(label)) continue;
    least = behind;
    consumed = std::min(most, behind - gain);
    used = std::min(most, label.used - gain);
  }
}

// The first end at which a label is not dominated.
int LabelRules::first_end(int link) const {
  const int devices = pricing_.devices();
  const int rounding = at_front_ ? 0 : pricing_.group_size(link - 1) - 1;
  for (int end = least_end_; end < devices; ++end) {
    if (!at_front_ && !possible_end(link, end)) continue;
    const int used = devices - end - most_idle_ - rounding;
    if (stages_ > 0 || !beaten(link, end, used, 0)) return end;
  }
  return devices;
}

void LabelRules::look_at(const std::vector<DeviceLabel>& labels, int least_end, bool at_front) {
  labels_ = &labels;
  at_front_ = at_front;
  ++look_;
  least_end_ = least_end;
  for (int link = 0; link < pricing_.levels(); ++link) {
    most_consumed_[at(link)] = most_used_[at(link)] = 0;
    if (at_front && link > 0) continue;
    look_at_best(link);
    if (alike_ || !pricing_.uniform()) continue;
    first_end_[at(link)] = first_end(link);
    const int most = pricing_.devices() - first_end_[at(link)];
    most_consumed_[at(link)] = std::min(most_consumed_[at(link)], most);
    most_used_[at(link)] = std::min(most_used_[at(link)], most);
  }
}

int LabelRules::most_replicas(int link, const DeviceLabel& rest) {
  int out = std::max(most_consumed_[at(link)] - (pricing_.devices() - rest.end),
                     most_used_[at(link)] - rest.used);
  // Over the link of a lower level the next stage begins in the same group: a device is left to it.
  if (!at_front_ && link + 1 < pricing_.levels()) {
    out = std::min(out, (rest.end - 1) % pricing_.group_size(link));
  }
  if (out < 1 || alike_ || !pricing_.uniform()) return out;
  const int stages = stages_ > 0 ? rest.stages + 1 : 0;
  if (remembered_.empty()) return find_most_replicas(link, rest, out);
  const std::size_t row = at(stages) * at(pricing_.levels()) + at(link);
  Remembered& known = remembered_[row * at(pricing_.devices() + 1) + at(rest.end)];
  if (known.look != look_ || known.used != rest.used) {
    known = {look_, rest.used, find_most_replicas(link, rest, out)};
  }
  return known.replicas;
}

// At most `most`.
int LabelRules::find_most_replicas(int link, const DeviceLabel& rest, int most) const {
  const int unit = at_front_ ? 1 : pricing_.group_size(link - 1);
  // The group of this level that holds the stage; the next one must find room in it.
  const int group = pricing_.group_size(link);
  const int begin = at_front_ || link + 1 == pricing_.levels() ? 0 : (rest.end - 1) / group * group;
  const int first = std::max(first_end_[at(link)], rest.end - most - unit + 1);
  for (int front = std::max(begin, first / unit * unit); front < rest.end; front += unit) {
    if (front < first || (!at_front_ && !possible_end(link, front))) continue;
    // The stage begins in [front, front + unit).
    const int fewest = std::max(1, rest.end - front - unit + 1);
    if (!beaten(link, front, rest.used + fewest, rest.stages + 1)) {
      return std::min(most, rest.end - front);
    }
  }
  return 0;
}

}  // namespace pipetrain
