// The training loop: rounds of steps, validation between them, a stop when the loss is not finite.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/runtime.h"
#include "train/session.h"

namespace pipetrain {

struct StepReport {
  std::int64_t step = 0, total_steps = 0;  // step counts from 1
  double epoch = 0;                        // epochs done, fractional
  double loss = 0;
  std::optional<double> accuracy;
  std::optional<double> gradient_norm;
  double learning_rate = 0;
  double seconds = 0;       // of this step; 0 inside a round without a drain
  double data_seconds = 0;  // waited for data
  double samples_per_second = 0;
  std::optional<double> bubble;    // idle share of the devices in this step
  std::vector<double> stage_busy;  // share of the step each device computed
};

struct EvaluationReport {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  std::optional<double> accuracy;
  std::optional<double> perplexity;
  std::int64_t samples = 0;
  double seconds = 0;
};

struct TrainingSummary {
  std::int64_t steps = 0;
  double seconds = 0;
  double first_step_seconds = 0;
  double steady_step_seconds = 0;  // median after the first steps
  double steady_bubble = 0;
  std::optional<EvaluationReport> last_evaluation;
};

/// What happens, as it happens. Calls come one at a time.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void on_step(const StepReport&) {}
  /// A round of the runtime: `step` (from 1) is its mini-batch, or its first one.
  virtual void on_round(std::int64_t /*step*/, const Program&, const RoundResult&) {}
  virtual void on_evaluation(const EvaluationReport&) {}
};

/// Evaluates the session's evaluation data once.
EvaluationReport evaluate(Session& session, std::int64_t step, double epoch);

/// Trains a started session to its end. Error (kDiverged) names the first tensor that is not
/// finite.
TrainingSummary train(Session& session, TrainingObserver& observer);

}  // namespace pipetrain
