// Validation of a model during training.
#pragma once

#include <cstdint>
#include <memory>

#include "train/metrics.h"

namespace pipetrain {

class Predictor;
class PipelineRun;

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
