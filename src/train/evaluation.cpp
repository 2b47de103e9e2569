#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "train/as_process_0.h"
#include "train/batch_source.h"
#include "train/predict.h"
#include "train/session.h"

namespace pipetrain {
namespace {

/// Puts the moving averages, where there are some, in the place of the weights for a while.
class Averaged {
 public:
  explicit Averaged(Session& session)
      : session_(session),
        averages_(session.config().optimization.optimizer.average_decay > 0 &&
                  session.total_steps() > 0) {
    if (averages_) session_.runtime().exchange_averages();
  }
  ~Averaged() {
    if (averages_) session_.runtime().exchange_averages();
  }
  Averaged(const Averaged&) = delete;
  Averaged& operator=(const Averaged&) = delete;

 private:
  Session& session_;
  bool averages_;
};

}  // namespace

EvaluationReport evaluate(Session& session, std::int64_t step, double epoch) {
  const double start = steady_seconds();
  const Averaged averaged(session);
  const bool regression = session.graph().loss.kind == LossKind::kSquaredError;
  Spread spread;
  const Dataset& dataset = *session.evaluation_data();
  const std::int64_t total = session.evaluated_samples();
  BatchUnits units(session, /*evaluation=*/true);
  std::vector<std::size_t> indices;
  BatchMemory memory(session.batch_memory());
  std::vector<Tensor> columns;
  double loss_sum = 0, correct = 0;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < total;) {
    const Program& program = session.evaluation_program(total - first);
    const std::int64_t samples = std::min(total - first, program.units * session.micro_batch());
    indices.resize(static_cast<std::size_t>(samples));
    std::iota(indices.begin(), indices.end(), static_cast<std::size_t>(first));
    columns.clear();
    for (const Column& column : dataset.columns())
      columns.push_back(memory.column(columns.size(), column.batch_type(indices.size())));
    gather_batch(dataset, indices, columns);
    units.set(columns, samples, static_cast<std::uint64_t>(step), 0);
    session.runtime().run(program, units);
    if (regression) spread.add(columns.back());
    loss_sum += units.loss() * static_cast<double>(units.counted());
    correct += units.correct();
    counted += units.counted();
    first += samples;
  }
  EvaluationReport report;
  report.step = step;
  report.epoch = epoch;
  report.samples = total;
  report.loss = loss_sum / static_cast<double>(counted);
  const Loss& loss = session.graph().loss;
  if (loss.correct) report.accuracy = correct / static_cast<double>(counted);
  if (regression && spread.total() > 0) report.r2 = 1 - loss_sum / spread.total();
  if (loss.kind == LossKind::kCausalLm) report.perplexity = std::exp(report.loss);
  report.seconds = steady_seconds() - start;
  return report;
}

TopK::TopK(Session& session) : session_(session) {}
TopK::~TopK() = default;

void TopK::add(EvaluationReport& report, int k) {
  const double start = steady_seconds();
  const Averaged averaged(session_);
  const TrainingGraph& graph = session_.graph();
  if (!predictor_) {
    std::map<std::string, Shape> shapes;
    for (const GraphInput& input : graph.inputs) {
      const auto& dims = graph.graph[input.value].type.shape.dims();
      shapes[input.name] = Shape(std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
    }
    predictor_ =
        std::make_unique<Predictor>(session_.config().model, session_.config().pipeline.backend,
                                    session_.micro_batch(), shapes);
  }
  std::map<std::string, HostTensor> weights;
  if (session_.processes()) {
    for (const StageContent& content : session_.runtime().contents())
      weights.insert(content.weights.begin(), content.weights.end());
  } else {
    for (const auto& [name, rule] : session_.model().rules) {
      if (HostTensor value = session_.runtime().read(name)) weights[name] = std::move(value);
    }
  }
  report.k = k;
  if (!session_.leads()) {
    report.top_k = as_process_0(session_.processes(), 0.0);
    return;
  }
  predictor_->set_weights(weights);
  const Confusion confusion = confuse(*predictor_, *session_.evaluation_data(), graph.loss.output,
                                      graph.loss.ignore_index, k);
  report.top_k = as_process_0(
      session_.processes(), static_cast<double>(confusion.in_top_k) /
                                static_cast<double>(std::max<std::int64_t>(1, confusion.counted)));
  report.seconds += steady_seconds() - start;
}

}  // namespace pipetrain
