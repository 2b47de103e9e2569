// --on-error nan=…: what becomes of a step whose loss or gradients are not finite.
#pragma once

#include <optional>
#include <string>

#include "data/loading/sampler.h"
#include "train/pipeline_run.h"
#include "train/saving.h"
#include "train/trainer.h"

namespace pipetrain {

class FiniteCheck {
 public:
  /// All arguments outlive this.
  FiniteCheck(PipelineRun& run, const Sampler& sampler, const Saving& saving)
      : run_(run), sampler_(sampler), saving_(saving) {}

  /// After each step. Error (kDiverged) that names where values stopped being finite, if it is to
  /// stop the run; the first step that is skipped is a warning.
  void check(const StepReport& report);

 private:
  /// A step may be skipped while a smaller loss scale can be tried.
  void check_scale(const StepReport& report) const;
  /// What a message adds about the first such value; empty when none was found.
  std::string described(const std::optional<NonfiniteValue>& found) const;
  std::string last_checkpoint() const;
  /// The learning rate as given, which a schedule scales.
  double given_rate() const;

  PipelineRun& run_;
  const Sampler& sampler_;
  const Saving& saving_;
  bool told_skipped_ = false;
};

}  // namespace pipetrain
