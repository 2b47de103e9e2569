#include "train/finite_check.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

namespace pipetrain {

void FiniteCheck::check(const StepReport& report) {
  const PlannedNetwork& network = run_.network();
  const OnNonfinite what = network.config().optimization.on_nonfinite;
  if (what == OnNonfinite::kIgnore) return;
  if (what == OnNonfinite::kSkip) {
    if (!report.skipped || std::exchange(told_skipped_, true)) return;
    const std::string where = described(run_.runtime().first_nonfinite());
    if (network.leads()) log_warning("train", "step {} is skipped{}", report.step, where);
    return;
  }
  if (report.skipped) return check_scale(report);
  if (std::isfinite(report.loss)) return;
  // The weights of asynchronous stages still change.
  const std::string where = described(network.asynchronous() ? run_.runtime().found_nonfinite()
                                                             : run_.runtime().first_nonfinite());
  PT_FAIL(kDiverged, "loss is not finite at step {}{}\n  try: a smaller {} than {}, or {} 1{}",
          report.step, where, setting("lr"), given_rate(), setting("clip-norm"), last_checkpoint());
}

void FiniteCheck::check_scale(const StepReport& report) const {
  if (*report.loss_scale > run_.network().loss_scaling().least) return;
  PT_FAIL(kDiverged,
          "gradients are not finite at step {} in float16, even with a loss scale of {}{}\n"
          "  try: {} bf16, a smaller {} than {}, or {} 1{}",
          report.step, *report.loss_scale, described(run_.runtime().first_nonfinite()),
          setting("precision"), setting("lr"), given_rate(), setting("clip-norm"),
          last_checkpoint());
}

double FiniteCheck::given_rate() const {
  return run_.network().config().optimization.learning_rate.peak;
}

std::string FiniteCheck::described(const std::optional<NonfiniteValue>& found) const {
  if (!found) return {};
  std::string text = ": " + to_text(*found);
  if (found->sample < 0 || !found->place) return text;
  const std::size_t sample =
      sampler_.batch_indices(found->place->step)[static_cast<std::size_t>(found->sample)];
  return text + fmt::format(" (sample {} of the data, counted from 0)",
                            run_.network().data().train->place_of(sample));
}

std::string FiniteCheck::last_checkpoint() const {
  const std::filesystem::path good = saving_.last_written();
  return good.empty() ? std::string() : fmt::format("\n  last checkpoint: {}", good.string());
}

}  // namespace pipetrain
