// Validation of a model during training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "train/metrics.h"

namespace pipetrain {

class PipelineRun;
class PlannedNetwork;
class Predictor;
struct Checkpoint;
struct OptimizationConfig;
struct Scores;
struct TrainingSummary;

/// Error (kUsage) when the metric of the best model, or early stopping, does not suit the network.
/// Before the first step, not after the first epoch.
void check_metric(const PlannedNetwork& network);

/// Error (kData) where no label of the data for validation counts. Before the first step, too.
void check_validation_labels(const PlannedNetwork& network);

/// Runs one validation between rounds.
EvaluationReport evaluate(PipelineRun& run, std::int64_t step, double epoch);

/// Whether there is one after a step. `last`: the run ends there.
bool is_evaluated(const PlannedNetwork& network, std::int64_t step, bool last);
/// Whether a run that is resumed from a checkpoint has to validate its step first: the run before
/// was stopped between the step and its validation, or went on where this one ends.
bool lacks_evaluation(const PlannedNetwork& network, const Checkpoint& checkpoint);
/// Puts what a checkpoint says of the validations before it into a summary, unless they were of
/// other data. Called by all processes.
void take_best(const PlannedNetwork& network, const Checkpoint& checkpoint,
               TrainingSummary& summary);
/// Whether the last evaluation is the best so far, which the summary then says.
bool note_best(const PlannedNetwork& network, TrainingSummary& summary);

/// Whether as many validations as --patience says were no better than the best one, or had no
/// finite value and there is no best one.
bool has_stalled(const OptimizationConfig& settings, const TrainingSummary& summary);

/// Metrics that need the outputs besides the loss.
class OutputMetrics {
 public:
  explicit OutputMetrics(PipelineRun& run);
  ~OutputMetrics();

  /// Runs the network once more over the evaluation data and adds what it finds to the report. `k`:
  /// of top-k accuracy; 0: without it.
  Scores add(EvaluationReport& report, int k);

 private:
  PipelineRun& run_;
  std::unique_ptr<Predictor> predictor_;  // created on first use
};

}  // namespace pipetrain
