#include "cli/output/step_recorder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kWarmSteps = 4;  // the first ones warm up memory and caches
constexpr std::size_t kMostExplained = 8;

std::int64_t step_number(std::string_view text, const std::string& all) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  PT_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 1, kUsage,
           "--trace-steps takes steps such as 10-12, not \"{}\"", printable(all));
  return value;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> traced_steps(const PlannedNetwork& network,
                                                   const std::string& steps) {
  const std::size_t dash = steps.find('-');
  const std::int64_t first = step_number(std::string_view(steps).substr(0, dash), steps);
  const std::int64_t last = dash == std::string::npos
                                ? first
                                : step_number(std::string_view(steps).substr(dash + 1), steps);
  PT_CHECK(first <= last, kUsage, "--trace-steps {}: the first step comes after the last", steps);
  PT_CHECK(!network.asynchronous(), kUsage,
           "--trace-steps: {} is asynchronous, and its first epoch is traced as a whole; leave it "
           "out",
           network.config().pipeline.schedule);
  return {first, last};
}

StepRecorder::StepRecorder(const PlannedNetwork& network, const std::string& run,
                           const std::string& path, const std::string& steps,
                           std::int64_t steps_before)
    : network_(network),
      steps_before_(steps_before),
      predicted_seconds_(network.predicted_step_seconds()),
      is_estimate_(network.profile().is_estimate) {
  if (path.empty()) return;
  first_ =
      std::min(steps_before + kWarmSteps + 1, std::max<std::int64_t>(1, network.total_steps()));
  last_ = first_ + 2;
  if (!steps.empty()) std::tie(first_, last_) = traced_steps(network, steps);
  TraceLabels labels;
  labels.title = std::filesystem::path(network.config().model.path).filename().string();
  labels.run = run;
  for (const StagePlan& stage : network.plan().stages)
    labels.bytes_per_micro_batch.push_back(static_cast<std::int64_t>(stage.saved_bytes));
  writer_ = std::make_unique<TraceWriter>(path, labels);
}

void StepRecorder::round(std::int64_t step, const Program& program, const RoundResult& result) {
  const bool as_predicted = program == network_.predicted_program();
  const std::int64_t done = step - steps_before_;
  if (as_predicted && done > std::min(kWarmSteps, (network_.total_steps() - steps_before_) / 2) &&
      differences_.size() < kMostExplained) {
    const std::vector<BucketEvent> buckets = network_.predicted_buckets();
    differences_.push_back(
        explain(program, network_.predicted_events(), result.events, 0, {buckets, result.buckets}));
    differences_.back().measured_bubble -=
        result.stolen_seconds / (static_cast<double>(result.events.size()) * result.seconds);
  }
  // An asynchronous round has many steps and is recorded as a whole. A resumed run begins with the
  // rest of one, which cannot be read back as a schedule.
  const bool wanted = network_.asynchronous() ? written_seconds_ == 0 && step > steps_before_
                                              : step >= first_ && step <= last_;
  if (!writer_ || !wanted) return;
  if (written_seconds_ == 0) {
    writer_->add_step(TraceSide::kPredicted, network_.predicted_program(),
                      network_.predicted_events(), 0, step, network_.predicted_buckets());
  }
  writer_->add_step(TraceSide::kMeasured, program, result.events, written_seconds_, step,
                    result.buckets);
  written_seconds_ += result.seconds;
}

void StepRecorder::finish() {
  if (writer_ && written_seconds_ > 0) {
    writer_->end();
  } else if (writer_ && network_.asynchronous()) {
    log_warning("trace", "no trace was written: no epoch was run from its beginning to its end");
  } else if (writer_) {
    log_warning("trace", "no trace was written: none of the steps {} to {} was run", first_, last_);
  }
  writer_.reset();
}

std::string StepRecorder::explanation() const {
  if (differences_.empty()) return {};
  std::string text = difference_text(mean_of(differences_), 3);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace pipetrain
