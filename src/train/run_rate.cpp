#include "train/run_rate.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kTicks = 1'000'000;  // steps of a learning rate that goes by time
constexpr double kMostSteps = 1e15;         // a number of steps that a double still counts

}  // namespace

RunRate::RunRate(const Network& network, double max_seconds, double seconds_before)
    : settings_(network.config().optimization),
      curve_(settings_.learning_rate),
      total_steps_(network.total_steps()),
      max_seconds_(max_seconds),
      seconds_before_(seconds_before) {
  const double warmup = settings_.warmup_is_fraction
                            ? settings_.warmup * static_cast<double>(total_steps_)
                            : settings_.warmup;
  PT_CHECK(warmup < kMostSteps, kUsage, "{} takes {:g} steps, but the run has only {}",
           setting("warmup"), warmup, total_steps_);
  if (settings_.rate_every_epochs > 0) {
    const double every =
        settings_.rate_every_epochs * static_cast<double>(network.batches_per_epoch());
    curve_.every_steps = std::max<std::int64_t>(1, std::llround(std::min(every, kMostSteps)));
  }
  curve_.warmup_steps = static_cast<std::int64_t>(std::llround(warmup));
  if (settings_.rate_by_time) set_by_time(network.asynchronous());
  if (total_steps_ > 0) validate(curve_, settings_.rate_by_time ? kTicks : total_steps_);
}

void RunRate::start() { start_ = steady_seconds(); }
double RunRate::seconds_since_start() const { return steady_seconds() - start_; }
double RunRate::seconds() const { return seconds_before_ + seconds_since_start(); }

double RunRate::at(std::int64_t step) const {
  if (!settings_.rate_by_time) return learning_rate(curve_, step + 1, total_steps_);
  const double share = std::min(1.0, seconds() / max_seconds_);
  const auto tick = static_cast<std::int64_t>(share * static_cast<double>(kTicks));
  return learning_rate(curve_, std::min(tick + 1, kTicks), kTicks);
}

void RunRate::set_by_time(bool asynchronous) {
  const LearningRateKind kind = curve_.kind;
  PT_CHECK(max_seconds_ > 0, kUsage, "{} time needs {}", setting("lr-over"), setting("max-time"));
  PT_CHECK(!asynchronous, kUsage,
           "{} time does not work with asynchronous schedules, whose stages would differ; "
           "use {} steps, or 1f1b or gpipe",
           setting("lr-over"), setting("lr-over"));
  PT_CHECK(kind != LearningRateKind::kStep && kind != LearningRateKind::kExponential, kUsage,
           "{} {} decays by steps, so {} time does not apply", setting("lr-schedule"),
           name_of(kind), setting("lr-over"));
  PT_CHECK(settings_.warmup == 0 || settings_.warmup_is_fraction, kUsage,
           "{} with {} time must be a percentage, such as 5%", setting("warmup"),
           setting("lr-over"));
  PT_CHECK(std::ranges::all_of(curve_.milestones, &Milestone::is_share), kUsage,
           "{} with {} time must be percentages, such as 50%", setting("lr-milestones"),
           setting("lr-over"));
  curve_.warmup_steps =
      static_cast<std::int64_t>(std::llround(settings_.warmup * static_cast<double>(kTicks)));
  // It decays by the length of its warm-up, and otherwise by steps.
  PT_CHECK(kind != LearningRateKind::kInverseSqrt || curve_.warmup_steps > 0, kUsage,
           "{} {} with {} time needs {}, such as 5%", setting("lr-schedule"), name_of(kind),
           setting("lr-over"), setting("warmup"));
}

}  // namespace pipetrain
