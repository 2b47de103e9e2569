#include "train/step_times.h"

#include "pipeline/runtime/round.h"
#include "profile/estimate.h"
#include "train/trainer.h"

namespace pipetrain {

void StepTimes::ask_for_peak() {
  if (asked_ || !ask_) return;
  asked_ = true;
  peak_flops_ = ask_();
  if (peak_flops_ > 0) sample_flops_ = flops_of_sample(graph_);
}

void StepTimes::set_model_utilisation(StepReport& report) const {
  if (sample_flops_ <= 0 || peak_flops_ <= 0) return;
  report.utilisation = sample_flops_ * report.samples_per_second / peak_flops_;
}

void StepTimes::set_utilisation(StepReport& report, const RoundResult& result) {
  double busy = 0;
  for (const double seconds : result.busy_seconds) {
    busy += seconds;
    report.stage_busy.push_back(seconds / result.seconds);
  }
  report.bubble = 1 - busy / (static_cast<double>(result.busy_seconds.size()) * result.seconds);
}

void StepTimes::summarize(std::int64_t samples, TrainingSummary& summary) const {
  if (!seconds_.empty()) {
    summary.first_step_seconds = seconds_.first();
    summary.steady_step_seconds = seconds_.warm_median();
  }
  if (summary.steady_step_seconds > 0 && sample_flops_ > 0 && peak_flops_ > 0) {
    summary.steady_utilisation =
        sample_flops_ * static_cast<double>(samples) / summary.steady_step_seconds / peak_flops_;
  }
  if (!bubbles_.empty()) summary.steady_bubble = bubbles_.warm_median();
}

}  // namespace pipetrain
