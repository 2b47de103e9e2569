// What a model's outputs say beyond its loss: confusion matrix, precision and recall of every
// class, area under the ROC curve, overlap of segments, errors of regressions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/rows/dataset.h"
#include "passes/training_graph.h"
#include "train/metrics.h"

namespace pipetrain {

class Predictor;

/// Rows are labels, columns predictions.
struct Confusion {
  std::int64_t classes = 0;
  std::vector<std::int64_t> counts;  // [label × classes + prediction]; empty: too many classes
  std::int64_t in_top_k = 0, counted = 0;
};

struct ClassScore {
  std::int64_t labels = 0;  // how many have it
  bool occurs = false;      // among labels or predictions
  double precision = 0, recall = 0, f1 = 0;
  double iou = 0;  // intersection over union of labels and predictions
  /// Of this class against all others; absent where it is always or never the label.
  std::optional<double> auc;
};

/// What a task has; the rest is empty.
struct Scores {
  Confusion confusion;  // no classes: not a single label
  /// Classes, unless they are too many, or labels of which a sample may have several.
  std::vector<ClassScore> classes;
  double top_k = 0;
  std::optional<double> f1, auc, miou;  // means over the classes that occur
  std::optional<double> mae, r2;        // of regressions
};

/// Predicts the first `samples` of a data set and compares with the labels in its last column. Of
/// equal values the first is the likelier. Error (kUsage) when the task has neither classes nor
/// numbers.
Scores score(const Predictor& predictor, const Dataset& data, std::int64_t samples,
             const Loss& loss, int k);

/// Area under the ROC curve; equal scores count half. Absent where all are positive or none is.
std::optional<double> area_under_curve(std::span<const float> scores,
                                       const std::vector<bool>& positive);

/// Whether an output of the model is what a Softmax over classes or a Sigmoid gives.
bool gives_probabilities(const TrainingGraph& graph, std::size_t output);

/// Whether classes are few enough for a confusion matrix and what follows from it; others have
/// top-k accuracy only.
bool has_confusion_matrix(std::int64_t classes);
/// Whether a metric needs the outputs besides the loss: top5, f1, auc, miou, mae.
bool needs_outputs(std::string_view metric);
/// Whether an evaluation with a loss has a metric.
bool offers(const Loss& loss, std::string_view metric);
/// Fills in the metrics of a report.
void add_scores(EvaluationReport& report, const Scores& scores, int k);

}  // namespace pipetrain
