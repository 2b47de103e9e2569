// The cost model: time and memory of any range of the chain as a stage.
#pragma once

#include <vector>

#include "partition/plan.h"

namespace pipetrain {

/// Sums over a range of elements, before a schedule, a device or a neighbour is known.
struct RangeCost {
  double forward_seconds = 0, input_gradient_seconds = 0, weight_gradient_seconds = 0;
  double step_seconds = 0;
  std::size_t parameter_bytes = 0, fixed_bytes = 0, saved_bytes = 0, transient_bytes = 0;
};

class StageCostModel {
 public:
  /// Keeps references. Error (kUsage) when the request or the chain cannot be planned at all.
  StageCostModel(const ChainCosts& chain, const PlanRequest& request);

  int count() const { return static_cast<int>(chain_.elements.size()); }
  const PlanRequest& request() const { return request_; }
  const ChainCosts& chain() const { return chain_; }
  /// Costs of [first, last) for every last = first + 1 … count(), in this order.
  std::vector<RangeCost> ranges_from(int first) const;

  /// Time that a cut adds to each of the two stages beside it.
  double cut_seconds(int cut) const { return cut_seconds_[static_cast<std::size_t>(cut)]; }
  /// Bytes that cross a cut in both directions, once per micro-batch.
  std::size_t cut_bytes(int cut) const;

  /// Compute time without transfers: it only grows with the range.
  double compute_seconds(const RangeCost& range, bool recompute) const;
  double seconds(const RangeCost& range, int first, int last, bool recompute) const {
    return compute_seconds(range, recompute) + cut_seconds(first) + cut_seconds(last);
  }
  MemoryNeed memory(const RangeCost& range, int first, ScheduleLoad load, bool recompute) const;
  bool fits(const MemoryNeed& memory) const {
    return request_.memory_limit_bytes == 0 || memory.total() <= request_.memory_limit_bytes;
  }

  /// Everything about one stage; `recompute` is already decided.
  StagePlan stage(const RangeCost& range, int first, int last, ScheduleLoad load,
                  bool recompute) const;

 private:
  const ChainCosts& chain_;
  const PlanRequest& request_;
  std::vector<double> cut_seconds_;  // size count() + 1, zero at both ends
};

}  // namespace pipetrain
