#include "optim/loss_scale.h"

#include <algorithm>
#include <limits>

namespace pipetrain {

LossScaling adapting_loss_scale() {
  LossScaling scaling;
  scaling.initial = 65536;
  scaling.skips = scaling.adapts = true;
  return scaling;
}

LossScale after_step(const LossScale& scale, const LossScaling& scaling, bool finite) {
  LossScale next = scale;
  if (!scaling.skips) return next;
  if (!finite) ++next.skipped;
  if (!scaling.adapts) return next;
  if (!finite) {
    next.value = std::min(scale.value, std::max(scale.value * scaling.backoff, scaling.least));
    next.finite_steps = 0;
  } else if (++next.finite_steps >= scaling.interval) {
    const double grown = scale.value * scaling.growth;
    if (grown <= static_cast<double>(std::numeric_limits<float>::max())) next.value = grown;
    next.finite_steps = 0;
  }
  return next;
}

}  // namespace pipetrain
