// The planner's labels: the Pareto-optimal placements of the rest of the chain on the last devices,
// for each position.
#pragma once

#include <limits>
#include <vector>

#include "base/index.h"
#include "partition/stage_cost.h"

namespace pipetrain {

/// The objective among plans with equally few devices; kLatency: the sum of the stages' latencies,
/// with any number of devices there are.
enum class SecondAim : unsigned char { kNothing, kPeakMemory, kTraffic, kLatency };

/// One placement of the elements from a position on. Devices are assigned from the last one.
struct DeviceLabel {
  int end = 0;   // the previous stage ends before this device
  int used = 0;  // devices with a stage; others stay idle
  int stages = 0;
  int link = 0;       // level of the link over the cut in front
  double second = 0;  // memory, traffic or latency of the suffix
  int next = 0, next_label = 0;
  DeviceRange devices;
  bool recompute = false;
  double latency = 0;
};

/// The labels of all positions, and the conditions under which a new one can be useful.
class LabelRules {
 public:
  /// `stages`: plans have exactly so many, or any number for 0.
  LabelRules(const StagePricing& pricing, int stages);

  /// Begins a search and drops the labels of earlier ones.
  void begin(SecondAim aim);
  /// Adds a label unless it is dominated, and removes those that it dominates. True when it was
  /// added.
  bool insert(std::vector<DeviceLabel>& labels, const DeviceLabel& label);

  /// Whether no label was dropped since begin(): kLatency limits their number.
  bool exact() const { return exact_; }

  /// Looks at the labels of another position, or at those that insert() has changed. No label that
  /// leaves fewer than `least_end` devices in front is of use; `at_front`: nothing comes in front.
  void look_at(const std::vector<DeviceLabel>& labels, int least_end, bool at_front);
  /// Over this link, a useful label consumes at most most_consumed() devices, idle ones included,
  /// or uses at most most_used() of them; 0: no label is useful.
  int most_consumed(int link) const { return most_consumed_[static_cast<std::size_t>(link)]; }
  int most_used(int link) const { return most_used_[static_cast<std::size_t>(link)]; }
  /// The most replicas that a stage in front of `rest` can have for its label to be of use, over
  /// this link in front of it; 0: none.
  int most_replicas(int link, const DeviceLabel& rest);

 private:
  static constexpr std::size_t kMostLabels = 24;
  static constexpr std::size_t kMostRemembered = std::size_t{1} << 20;
  struct Remembered {
    int look = 0, used = 0, replicas = 0;
  };
  bool dominates(const DeviceLabel& a, const DeviceLabel& b) const;
  bool beaten(int link, int end, int used, int stages) const;
  bool possible_end(int link, int end) const;
  bool leaves_most(const DeviceLabel& label) const;
  void look_at_best(int link);
  int first_end(int link) const;
  int find_most_replicas(int link, const DeviceLabel& rest, int most) const;
  void thin(std::vector<DeviceLabel>& labels);

  const StagePricing& pricing_;
  int stages_;
  bool alike_;  // equal devices, all joined alike
  SecondAim aim_ = SecondAim::kNothing;
  int most_idle_ = 0;  // of any label so far
  bool exact_ = true;
  const std::vector<DeviceLabel>* labels_ = nullptr;
  int least_end_ = 0;
  bool at_front_ = false;
  std::vector<int> most_consumed_, most_used_, first_end_;  // [link]
  // [stages][link][end], for the look with that number.
  std::vector<Remembered> remembered_;
  int look_ = 0;
};

}  // namespace pipetrain
