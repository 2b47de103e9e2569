#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "train/as_process_0.h"
#include "train/batch_source.h"
#include "train/checkpoint.h"
#include "train/fingerprint.h"
#include "train/network.h"
#include "train/predict.h"
#include "train/scores.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

[[noreturn]] void fail_without_labels(const Network& network) {
  PT_FAIL(kData, "no label of the data for validation counts; all are {} {}",
          setting("ignore-index"), network.graph().loss.ignore_index);
}

/// Whether the validations before a checkpoint were of other data than those of this run.
bool was_validated_otherwise(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  const auto& data = network.data().validation;
  return data && !checkpoint.run.predates("validation") &&
         checkpoint.run.value("validation") != fingerprint(*data);
}

}  // namespace

void check_metric(const PlannedNetwork& network) {
  const OptimizationConfig& settings = network.config().optimization;
  const Loss& loss = network.graph().loss;
  PT_CHECK(offers(loss, settings.best_metric), kUsage, "{} {} is not available for a {}",
           setting("best-metric"), settings.best_metric, loss.task);
  const bool validates = network.evaluation_data() && settings.evaluate_every > 0;
  if (validates || (settings.patience == 0 && settings.best_metric == "loss")) return;
  const std::string what = settings.patience > 0
                               ? setting("patience")
                               : setting("best-metric") + " " + settings.best_metric;
  PT_CHECK(!network.evaluation_data(), kUsage, "{} needs validations, which {} never turns off",
           what, setting("val-every"));
  PT_FAIL(kUsage, "{} needs validation data; give {} or {}", what, setting("val-split"),
          setting("val-data"));
}

void check_validation_labels(const PlannedNetwork& network) {
  if (!network.evaluation_data() || network.config().optimization.evaluate_every <= 0) return;
  const Dataset& dataset = *network.evaluation_data();
  const std::size_t last = dataset.columns().size() - 1;
  const Column& column = dataset.columns()[last];
  const Loss& loss = network.graph().loss;
  if (loss.kind == LossKind::kOutput || is_float(column.dtype)) return;  // every one counts
  // A model of a fixed batch leaves some over. Where it leaves all, PipelineRun says so.
  const std::size_t batch = network.model().has_fixed_batch()
                                ? static_cast<std::size_t>(network.micro_batch())
                                : std::size_t{1};
  const std::size_t total = dataset.size() / batch * batch;
  if (total == 0) return;
  // Nearly always the first part has a label that counts.
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const std::size_t part = std::max<std::size_t>(1, kBytes / (1 + column.batch_type(1).bytes()));
  for (std::size_t first = 0; first < total; first += part) {
    std::vector<std::size_t> indices(std::min(part, total - first));
    std::iota(indices.begin(), indices.end(), first);
    const HostTensor labels(column.batch_type(indices.size()));
    dataset.gather(indices, last, labels.view());
    if (count_labels(loss, labels.view(), std::ssize(indices)) > 0) return;
  }
  fail_without_labels(network);
}

EvaluationReport evaluate(PipelineRun& run, std::int64_t step, double epoch) {
  const PlannedNetwork& network = run.network();
  const double start = steady_seconds();
  const AveragedWeights averaged(run.network(), run.runtime());
  const bool regression = network.graph().loss.kind == LossKind::kSquaredError;
  Spread spread;
  const Dataset& dataset = *network.evaluation_data();
  const std::int64_t total = run.evaluated_samples();
  BatchUnits units(run, /*evaluation=*/true);
  std::vector<std::size_t> indices;
  BatchMemory memory(network.batch_memory());
  double loss_sum = 0, correct = 0;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < total;) {
    const Program& program = run.evaluation_program(total - first);
    const std::int64_t samples =
        std::min(total - first, program.micro_batches * network.micro_batch());
    indices.resize(static_cast<std::size_t>(samples));
    std::iota(indices.begin(), indices.end(), static_cast<std::size_t>(first));
    const std::vector<Tensor> columns = memory.columns(dataset, indices.size());
    gather_batch(dataset, indices, columns);
    units.set(columns, samples, static_cast<std::uint64_t>(step), 0);
    run.runtime().run(program, units);
    if (regression) spread.add(columns.back());
    loss_sum += units.loss() * static_cast<double>(units.counted());
    correct += units.correct();
    // Where none of a round counts, its loss is 0, and its count must not be 1.
    counted += count_labels(network.graph().loss, columns.back(), samples);
    first += samples;
  }
  if (counted == 0) fail_without_labels(network);
  EvaluationReport report;
  report.step = step;
  report.epoch = epoch;
  report.samples = total;
  report.loss = loss_sum / static_cast<double>(counted);
  const Loss& loss = network.graph().loss;
  if (loss.counts_correct()) report.accuracy = correct / static_cast<double>(counted);
  if (regression && spread.total() > 0) report.r2 = 1 - loss_sum / spread.total();
  if (loss.kind == LossKind::kCausalLm) report.perplexity = std::exp(report.loss);
  report.seconds = steady_seconds() - start;
  return report;
}

bool is_evaluated(const PlannedNetwork& network, std::int64_t step, bool last) {
  const OptimizationConfig& settings = network.config().optimization;
  if (!network.evaluation_data() || settings.evaluate_every <= 0) return false;
  const double every =
      settings.evaluate_every *
      (settings.evaluate_by_steps ? 1 : static_cast<double>(network.batches_per_epoch()));
  const auto steps = std::max<std::int64_t>(1, std::llround(every));
  // Asynchronous schedules end their rounds with the epochs: what is due inside of one is done
  // there.
  const std::int64_t before =
      std::max<std::int64_t>(0, step - (network.asynchronous() ? network.batches_per_epoch() : 1));
  return last || step / steps > before / steps;
}

bool lacks_evaluation(const PlannedNetwork& network, const Checkpoint& checkpoint) {
  if (checkpoint.unevaluated) return true;
  const std::int64_t step = checkpoint.step;
  if (step != network.total_steps() || step == checkpoint.total_steps) return false;
  const bool was_due = !checkpoint.in_flight() && is_evaluated(network, step, /*last=*/false);
  return !was_due && is_evaluated(network, step, /*last=*/true);
}

bool has_stalled(const OptimizationConfig& settings, const TrainingSummary& summary) {
  if (settings.patience <= 0) return false;
  const std::optional<BestResult>& best = summary.best;
  const UnmeasuredResults& unmeasured = summary.unmeasured;
  if (!best)
    return unmeasured.metric == settings.best_metric && unmeasured.validations >= settings.patience;
  return best->metric == settings.best_metric && best->stalled >= settings.patience;
}

void take_best(const PlannedNetwork& network, const Checkpoint& checkpoint,
               TrainingSummary& summary) {
  // Of several processes, each may have other data for validation.
  if (as_process_0(network.processes(), was_validated_otherwise(network, checkpoint))) return;
  summary.best = checkpoint.best;
  summary.best_weights = checkpoint.best_weights;
  summary.unmeasured = checkpoint.unmeasured;
}

bool note_best(const PlannedNetwork& network, TrainingSummary& summary) {
  const EvaluationReport& report = *summary.last_evaluation;
  std::optional<BestResult>& best = summary.best;
  const std::string& metric = network.config().optimization.best_metric;
  std::optional<double> value = metric_of(report, metric);
  if (!value && (metric == "auc" || metric == "r2" || metric == "f1" || metric == "miou")) {
    log_warning("train", "the validation at step {} has no {}: {}", report.step, metric,
                metric == "auc"  ? "one class only, scores that are no numbers, or too many of them"
                : metric == "r2" ? "all targets are equal"
                                 : "no label is set or predicted");
    value = std::numeric_limits<double>::quiet_NaN();
  }
  PT_CHECK(value, kUsage, "{} {} is not available for a {}", setting("best-metric"), metric,
           network.graph().loss.task);
  if (best && best->metric != metric) best.reset();  // a run that is resumed with another one
  const bool better = std::isfinite(*value) &&
                      (!best || (grows(metric) ? *value > best->value : *value < best->value));
  UnmeasuredResults& unmeasured = summary.unmeasured;
  if (better || unmeasured.metric != metric) unmeasured = {metric, 0};
  if (better) {
    best = BestResult{report.step, *value, metric};
  } else {
    ++(best ? best->stalled : unmeasured.validations);
  }
  return better;
}

OutputMetrics::OutputMetrics(PipelineRun& run) : run_(run) {}
OutputMetrics::~OutputMetrics() = default;

Scores OutputMetrics::add(EvaluationReport& report, int k) {
  const double start = steady_seconds();
  const AveragedWeights averaged(run_.network(), run_.runtime());
  const TrainingGraph& graph = run_.network().graph();
  if (!predictor_) {
    std::map<std::string, Shape> shapes;
    for (const GraphInput& input : graph.inputs) {
      const auto& dims = graph.graph[input.value].type.shape.dims();
      shapes[input.name] = Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
    }
    predictor_ = std::make_unique<Predictor>(run_.network().config().model,
                                             run_.network().config().pipeline.backend,
                                             run_.network().micro_batch(), shapes);
  }
  std::map<std::string, HostTensor> weights = run_.runtime().weights_of_others();
  // Process 0 knows; the others only need the value that selects the best model.
  Scores scores;
  if (run_.network().leads()) {
    for (const auto& [name, rule] : run_.network().model().rules) {
      if (HostTensor value = run_.runtime().read(name)) weights[name] = std::move(value);
    }
    predictor_->set_weights(weights);
    scores = score(*predictor_, *run_.network().evaluation_data(), run_.evaluated_samples(),
                   graph.loss, std::max(1, k));
  }
  for (std::optional<double>* metric : {&scores.f1, &scores.auc, &scores.miou, &scores.mae}) {
    const double known = as_process_0(run_.network().processes(), metric->value_or(NAN));
    if (!std::isnan(known)) *metric = known;
  }
  scores.top_k = as_process_0(run_.network().processes(), scores.top_k);
  add_scores(report, scores, k);
  report.seconds += steady_seconds() - start;
  return scores;
}

}  // namespace pipetrain
