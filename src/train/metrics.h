// Validation metrics by name: for the best model, early stopping and --assert.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

/// One pass over validation data. Metrics that the task does not have are absent.
struct EvaluationReport {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;  // without label smoothing and class weights
  std::optional<double> accuracy;
  std::optional<double> perplexity;
  std::optional<double> r2;     // of regression: coefficient of determination
  std::optional<double> top_k;  // top-k accuracy, if requested
  int k = 0;
  /// Means over the classes: of F1 scores, areas under ROC curves, intersections over unions.
  std::optional<double> f1, auc, miou;
  std::optional<double> mae;  // of regression: mean absolute error
  std::int64_t samples = 0;
  double seconds = 0;
};

/// "loss", "accuracy", "perplexity", "r2", "mae", "f1", "auc", "miou", "top5"; "val_loss" … mean
/// the same. Error (kUsage) with the nearest one for another name.
std::string metric_named(std::string_view name);
/// The value of a metric in a report; empty where the task has none.
std::optional<double> metric_of(const EvaluationReport& report, std::string_view metric);
/// The k of "top5"; 0 for another metric.
int top_of(std::string_view metric);
/// Whether more is better.
bool grows(std::string_view metric);

/// The sum of squared deviations of targets from the mean of their column, over many batches: what
/// the error of a regression is compared with. Merged as by Chan et al. 1983.
class Spread {
 public:
  /// Targets (samples, …), float32.
  void add(const Tensor& targets);
  double total() const;

 private:
  std::vector<double> mean_, squares_;
  double count_ = 0;
};

}  // namespace pipetrain
