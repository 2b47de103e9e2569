#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/statistics.h"
#include "train/batch_source.h"

namespace pipetrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Training {
 public:
  Training(Session& session, TrainingObserver& observer)
      : session_(session),
        observer_(observer),
        settings_(session.config().optimization),
        schedule_(settings_.learning_rate),
        sampler_(session.data().train->size(),
                 {static_cast<std::size_t>(settings_.batch_size), settings_.seed, settings_.shuffle,
                  settings_.drop_last}),
        loader_(session.data().train, sampler_, 0,
                static_cast<std::uint64_t>(session.total_steps())) {
    const double warmup = settings_.warmup_is_fraction
                              ? settings_.warmup * static_cast<double>(session.total_steps())
                              : settings_.warmup;
    schedule_.warmup_steps = static_cast<std::int64_t>(std::llround(warmup));
    if (session.total_steps() > 0) validate(schedule_, session.total_steps());
  }

  TrainingSummary run() {
    const double start = now();
    std::int64_t step = 0;
    while (step < session_.total_steps()) {
      if (session_.asynchronous()) {
        const std::int64_t count =
            std::min(session_.batches_per_epoch() - step % session_.batches_per_epoch(),
                     session_.total_steps() - step);
        stream(step, count);
        step += count;
      } else {
        synchronous_step(step++);
      }
      const bool epoch_ends =
          step % session_.batches_per_epoch() == 0 || step == session_.total_steps();
      if (epoch_ends && session_.evaluation_data()) {
        summary_.last_evaluation = evaluate(session_, step, epoch_of(step));
        observer_.on_evaluation(*summary_.last_evaluation);
      }
    }
    summary_.steps = step;
    summary_.seconds = now() - start;
    if (!step_seconds_.empty()) {
      summary_.first_step_seconds = step_seconds_.front();
      // The first steps warm caches and page in memory.
      const std::size_t skip =
          std::min<std::size_t>(step_seconds_.size() - 1, step_seconds_.size() > 8 ? 4 : 1);
      summary_.steady_step_seconds =
          median({step_seconds_.begin() + static_cast<std::ptrdiff_t>(skip), step_seconds_.end()});
    }
    if (!bubbles_.empty()) {
      const std::size_t skip =
          std::min<std::size_t>(bubbles_.size() - 1, bubbles_.size() > 8 ? 4 : 1);
      summary_.steady_bubble =
          median({bubbles_.begin() + static_cast<std::ptrdiff_t>(skip), bubbles_.end()});
    }
    return summary_;
  }

 private:
  double epoch_of(std::int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(session_.batches_per_epoch());
  }
  double learning_rate_at(std::int64_t step) const {
    return learning_rate(schedule_, step + 1, session_.total_steps());
  }

  std::optional<double> accuracy(double correct, std::int64_t counted) const {
    if (!session_.graph().loss.correct) return {};
    return correct / static_cast<double>(counted);
  }

  void synchronous_step(std::int64_t step) {
    const double start = now();
    const double waited = loader_.waited_seconds();
    const Batch* batch = loader_.next();
    PT_CHECK(batch != nullptr, kInternal, "the data end before the run");
    const auto samples = static_cast<std::int64_t>(batch->samples);
    const double rate = learning_rate_at(step);
    units_.set(batch->columns, samples, static_cast<std::uint64_t>(step), rate);
    const Program& program = session_.program(session_.units_of(samples));
    const RoundResult result = session_.runtime().run(program, units_);
    observer_.on_round(step + 1, program, result);
    StepReport report;
    report.step = step + 1;
    report.total_steps = session_.total_steps();
    report.epoch = epoch_of(step + 1);
    report.loss = units_.loss();
    report.accuracy = accuracy(units_.correct(), units_.counted());
    if (settings_.clip_norm > 0) report.gradient_norm = result.gradient_norm;
    report.learning_rate = rate;
    report.seconds = now() - start;
    report.data_seconds = loader_.waited_seconds() - waited;
    report.samples_per_second = static_cast<double>(samples) / report.seconds;
    set_utilisation(report, result);
    step_seconds_.push_back(result.seconds);
    bubbles_.push_back(*report.bubble);
    observer_.on_step(report);
    check_finite(report);
  }

  static void set_utilisation(StepReport& report, const RoundResult& result) {
    double busy = 0;
    for (const double seconds : result.busy_seconds) {
      busy += seconds;
      report.stage_busy.push_back(seconds / result.seconds);
    }
    report.bubble = 1 - busy / (static_cast<double>(result.busy_seconds.size()) * result.seconds);
  }

  /// Mini-batches without a drain between them, to the end of the epoch.
  void stream(std::int64_t first, std::int64_t count) {
    double last = now();
    const auto on_done = [&](const StreamUnits::Done& done) {
      StepReport report;
      report.step = static_cast<std::int64_t>(done.step) + 1;
      report.total_steps = session_.total_steps();
      report.epoch = epoch_of(report.step);
      report.loss = done.loss;
      report.accuracy = accuracy(done.correct, done.counted);
      report.learning_rate = learning_rate_at(static_cast<std::int64_t>(done.step));
      report.seconds = now() - last;
      last = now();
      report.samples_per_second = static_cast<double>(done.samples) / report.seconds;
      step_seconds_.push_back(report.seconds);
      observer_.on_step(report);
      check_finite(report);
    };
    StreamUnits units(
        session_, loader_, static_cast<std::uint64_t>(first),
        static_cast<int>(session_.micro_batches()), session_.batches_in_flight(),
        [&](std::uint64_t step) { return learning_rate_at(static_cast<std::int64_t>(step)); },
        on_done);
    const Program& program = session_.program(session_.round_units(count));
    const RoundResult result = session_.runtime().run(program, units);
    observer_.on_round(first + 1, program, result);
    StepReport utilisation;
    set_utilisation(utilisation, result);
    bubbles_.push_back(*utilisation.bubble);
  }

  void check_finite(const StepReport& report) const {
    if (std::isfinite(report.loss) || !settings_.stop_on_nonfinite) return;
    const std::string where =
        session_.asynchronous() ? std::string() : session_.runtime().first_nonfinite();
    PT_FAIL(kDiverged,
            "loss is not finite at step {}{}\n  try: a smaller --lr than {}, or --clip-norm 1",
            report.step, where.empty() ? "" : fmt::format(" (first bad tensor: {})", where),
            report.learning_rate);
  }

  Session& session_;
  TrainingObserver& observer_;
  const OptimizationConfig& settings_;
  LearningRateSettings schedule_;
  Sampler sampler_;
  Loader loader_;
  BatchUnits units_{session_, /*evaluation=*/false};
  TrainingSummary summary_;
  std::vector<double> step_seconds_, bubbles_;
};

}  // namespace

EvaluationReport evaluate(Session& session, std::int64_t step, double epoch) {
  const double start = now();
  const Dataset& dataset = *session.evaluation_data();
  const std::int64_t total = session.evaluated_samples();
  BatchUnits units(session, /*evaluation=*/true);
  std::vector<std::size_t> indices;
  std::vector<HostTensor> memory;
  std::vector<Tensor> columns;
  double loss_sum = 0, correct = 0;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < total;) {
    const Program& program = session.evaluation_program(total - first);
    const std::int64_t samples = std::min(total - first, program.units * session.micro_batch());
    indices.resize(static_cast<std::size_t>(samples));
    std::iota(indices.begin(), indices.end(), static_cast<std::size_t>(first));
    memory.clear();
    columns.clear();
    for (const Column& column : dataset.columns()) {
      memory.emplace_back(column.batch_type(indices.size()));
      columns.push_back(memory.back().view());
    }
    gather_batch(dataset, indices, columns);
    units.set(columns, samples, static_cast<std::uint64_t>(step), 0);
    session.runtime().run(program, units);
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
  if (loss.kind == LossKind::kCausalLm) report.perplexity = std::exp(report.loss);
  report.seconds = now() - start;
  return report;
}

TrainingSummary train(Session& session, TrainingObserver& observer) {
  return Training(session, observer).run();
}

}  // namespace pipetrain
