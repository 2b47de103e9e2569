// One run of a list of steps for a micro-batch.
#pragma once

#include <span>
#include <vector>

#include "pipeline/stage/stage_gradients.h"
#include "pipeline/transport/shared_work.h"

namespace pipetrain {

/// Its independent steps are tasks that other devices may run.
class StepListRun : public SharedTasks {
 public:
  /// `first`: the micro-batch is the first of a step, so that gradients are overwritten. All
  /// arguments and the accumulators of `addresses` must outlive this.
  StepListRun(const TrainingGraph& training, std::vector<StageStep>& steps,
              const StageAddresses& addresses, bool first, StageGradients& gradients,
              const StageExecutor& executor);

  std::size_t count() const override { return independent_.size(); }
  double seconds(std::size_t task) const override { return independent_[task].last_seconds; }
  std::size_t workspace_bytes(std::size_t task) const override {
    return independent_[task].kernel->workspace_bytes();
  }
  void run(std::size_t task, std::byte* workspace) override {
    run_step(independent_[task], workspace);
  }
  void run_dependent();
  void run_independent();

 private:
  void* address(const Location& at, int direct, bool adding) const {
    if ((first_ || adding) && direct >= 0)
      return (*addresses_.accumulators)[static_cast<std::size_t>(direct)];
    return addresses_.of(at);
  }
  void run_step(StageStep& step, std::byte* workspace);

  const TrainingGraph* training_;
  bool first_;
  StageAddresses addresses_;
  StageGradients* gradients_;
  const StageExecutor* executor_;
  std::span<StageStep> dependent_, independent_;
};

}  // namespace pipetrain
