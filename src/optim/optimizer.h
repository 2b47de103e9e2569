// Optimizers: their settings, and how many numbers per parameter they remember. The arithmetic is
// in update.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace pipetrain {

enum class OptimizerKind : std::uint8_t { kSgd, kAdam, kAdamW, kRmsProp };

/// The formulas are PyTorch's, so that a recipe carries over unchanged. Fields that a kind does not
/// name are not read.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double momentum = 0;  // SGD, RMSprop
  double dampening =
      0;  // SGD: the gradient enters the momentum buffer times 1 - dampening, but whole at step 1
  bool nesterov = false;    // SGD
  double beta1 = 0.9;       // Adam, AdamW
  double beta2 = 0.999;     // Adam, AdamW
  double alpha = 0.99;      // RMSprop: decay of the mean square
  double epsilon = 1e-8;    // Adam, AdamW, RMSprop
  double weight_decay = 0;  // added to the gradient (L2); AdamW shrinks the parameter instead
};

/// The command line's defaults: SGD has momentum 0.9, AdamW has weight decay 0.01.
OptimizerSettings default_settings(OptimizerKind kind);
/// 1e-2 for SGD and RMSprop, 1e-3 for Adam and AdamW.
double default_learning_rate(OptimizerKind kind);

/// Refuses values outside the range where the formulas mean anything; an Error (kUsage) naming the
/// flag.
void validate(const OptimizerSettings& settings);

/// How many numbers the optimizer remembers for each parameter: 0, 1 or 2.
int state_slots(const OptimizerSettings& settings);

/// "sgd", "adam", "adamw", "rmsprop".
std::string_view name_of(OptimizerKind kind);
/// The kind of that name; an Error (kUsage) listing all of them.
OptimizerKind optimizer_named(std::string_view name);
/// What state slot `slot` is called in a checkpoint: "momentum", "mean", "mean_square".
std::string_view state_name(const OptimizerSettings& settings, int slot);

}  // namespace pipetrain
