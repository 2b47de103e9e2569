// Optimizers: their settings, and what the rows of optimizer_table.h say of them. The arithmetic is
// in update.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace pipetrain {

enum class OptimizerKind : std::uint8_t {
  kSgd,
  kAdam,
  kAdamW,
  kRmsProp,
  kAdagrad,
  kLamb,
  kLars,
  kLion
};

/// What one parameter has of its own.
struct ParameterRates {
  double learning_rate_scale = 1;
  std::optional<double> weight_decay = {};
  friend bool operator==(const ParameterRates&, const ParameterRates&) = default;
};

/// The formulas are PyTorch's, so that a recipe carries over unchanged; what PyTorch lacks is as in
/// its paper (element_rules.h). Which fields an optimizer reads, its row says; it ignores the
/// others.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double momentum = 0;
  /// The gradient enters the momentum buffer times 1 - dampening, but whole at step 1.
  double dampening = 0;
  bool nesterov = false;
  bool centered = false;  // divide by the deviation from the mean; not together with momentum
  double beta1 = 0.9;     // decay of the mean; Lion: share of the mean in the direction
  double beta2 = 0.999;   // decay of the mean square; Lion: of the mean
  double alpha = 0.99;    // decay of RMSprop's mean square
  double epsilon = 1e-8;
  /// Added to the gradient (L2), or moves the parameter where the row says that it is decoupled.
  double weight_decay = 0;
  /// Decay of an exponential moving average of the parameters, kept beside them; 0: none. As
  /// PyTorch's AveragedModel: the first update is copied.
  double average_decay = 0;
  std::map<std::string, ParameterRates> own = {};  // by name, of parameters that have some
};

/// The settings of one parameter, without `own`, and what its learning rate is multiplied with.
struct SettingsOfParameter {
  OptimizerSettings settings;
  double learning_rate_scale = 1;
};
SettingsOfParameter settings_of(const OptimizerSettings& settings, const std::string& parameter);

/// Whether the decay moves the parameter and not its gradient. It then leaves norms and biases
/// alone by default.
bool has_decoupled_decay(OptimizerKind kind);

/// The command line's defaults, PyTorch's or the papers' but for SGD, which has momentum 0.9.
OptimizerSettings default_settings(OptimizerKind kind);
double default_learning_rate(OptimizerKind kind);

/// Refuses values outside the range where the formulas mean anything; an Error (kUsage) naming the
/// flag.
void validate(const OptimizerSettings& settings);

/// How many numbers the optimizer remembers for each parameter: 0, 1 or 2.
int state_slots(const OptimizerSettings& settings);
/// The same with the moving average.
int kept_slots(const OptimizerSettings& settings);

/// The name of its row: "adamw".
std::string_view name_of(OptimizerKind kind);
/// The kind of that name; an Error (kUsage) listing all of them.
OptimizerKind optimizer_named(std::string_view name);
/// What state slot `slot` is called in a checkpoint: "mean_square".
std::string_view state_name(const OptimizerSettings& settings, int slot);

}  // namespace pipetrain
