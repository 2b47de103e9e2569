// Loss scaling: the loss is multiplied by a large factor, so that float16 does not round small
// gradients to zero; gradients are divided by it in float before the update.
#pragma once

#include <cstdint>

namespace pipetrain {

/// How the scale changes, as in PyTorch's torch.amp.GradScaler (growth_factor, backoff_factor and
/// growth_interval), which has no minimum scale.
struct LossScaling {
  double initial = 1;
  /// Skip steps with non-finite gradients; otherwise make every step.
  bool skips = false;
  /// Skipped steps also lower the scale. Needs `skips`.
  bool adapts = false;
  double growth = 2;     // after `interval` steps with finite gradients in a row
  double backoff = 0.5;  // after a skipped step
  std::int64_t interval = 2000;
  double least = 1;  // if gradients overflow at this scale, the scale is not the cause
};

/// GradScaler's defaults, with an initial scale of 65536.
LossScaling adapting_loss_scale();

/// The state of the scale.
struct LossScale {
  double value = 1;
  std::int64_t finite_steps = 0;  // in a row, since `value` changed
  std::int64_t skipped = 0;       // skipped steps so far
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// The scale of the next step. `finite`: whether all gradients of this step were finite; if not,
/// and `skips`, the caller must skip the step.
LossScale after_step(const LossScale& scale, const LossScaling& scaling, bool finite);

}  // namespace pipetrain
