// Loss scaling: gradients that float16 would round to zero are computed of a loss that is
// multiplied with a large number, and divided by it again in float before the update.
#pragma once

#include <cstdint>

namespace pipetrain {

/// How the scale goes on. The rules are PyTorch's torch.amp.GradScaler's (its growth_factor,
/// backoff_factor and growth_interval), which has no least scale.
struct LossScaling {
  double initial = 1;
  /// Steps with gradients that are not finite are left out; else every step is made.
  bool skips = false;
  /// And they lower the scale; else it stays as it is. Needs `skips`.
  bool adapts = false;
  double growth = 2;     // after `interval` steps with finite gradients in a row
  double backoff = 0.5;  // after a step that was left out
  std::int64_t interval = 2000;
  double least = 1;  // where gradients are too large, it is not the scale that makes them so
};

/// GradScaler's own settings: 65536 at first.
LossScaling adapting_loss_scale();

/// Where it stands after some steps.
struct LossScale {
  double value = 1;
  std::int64_t finite_steps = 0;  // in a row, since `value` changed
  std::int64_t skipped = 0;       // steps that were left out so far
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// The scale of the next step. `finite`: whether all gradients of this one were; if not, and
/// such steps are skipped, it must be left out.
LossScale after_step(const LossScale& scale, const LossScaling& scaling, bool finite);

}  // namespace pipetrain
