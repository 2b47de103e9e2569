// Validation of a model during training.
#pragma once

#include <cstdint>
#include <memory>

#include "train/metrics.h"

namespace pipetrain {

class PipelineRun;
class PlannedNetwork;
class Predictor;

/// Error (kUsage) when the metric of the best model, or early stopping, does not suit the network.
/// Before the first step, not after the first epoch.
void check_metric(const PlannedNetwork& network);

/// Runs one validation between rounds.
EvaluationReport evaluate(PipelineRun& run, std::int64_t step, double epoch);

/// Top-k accuracy, which needs the outputs besides the loss.
class TopK {
 public:
  explicit TopK(PipelineRun& run);
  ~TopK();

  /// Runs the network once more over the evaluation data and adds what it finds to the report.
  void add(EvaluationReport& report, int k);

 private:
  PipelineRun& run_;
  std::unique_ptr<Predictor> predictor_;  // created on first use
};

}  // namespace pipetrain
