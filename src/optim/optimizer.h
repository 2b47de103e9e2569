// Optimizers: their settings and properties, from optimizer_table.h. The arithmetic is in update.h.
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

/// Settings of a single parameter.
struct ParameterRates {
  double learning_rate_scale = 1;
  std::optional<double> weight_decay = {};
  friend bool operator==(const ParameterRates&, const ParameterRates&) = default;
};

/// The formulas are PyTorch's, so that settings carry over unchanged; optimizers that PyTorch lacks
/// follow their papers (element_rules.h). The table says which fields an optimizer reads; it
/// ignores the others.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double momentum = 0;
  /// The gradient is scaled by 1 - dampening when it is added to the momentum buffer, except in
  /// step 1.
  double dampening = 0;
  bool nesterov = false;
  bool centered = false;  // divide by the deviation from the mean; not together with momentum
  double beta1 = 0.9;     // decay of the mean; Lion: weight of the mean in the direction
  double beta2 = 0.999;   // decay of the mean square; Lion: of the mean
  double alpha = 0.99;    // decay of RMSprop's mean square
  double epsilon = 1e-8;
  /// Added to the gradient (L2), or applied to the parameter if the optimizer's decay is decoupled.
  double weight_decay = 0;
  /// Decay of an exponential moving average (EMA) of the parameters; 0: none. As in PyTorch's
  /// AveragedModel, the first update is copied.
  double average_decay = 0;
  std::map<std::string, ParameterRates> own = {};  // by parameter name
};

/// The settings of one parameter, without `own`, and the factor of its learning rate.
struct SettingsOfParameter {
  OptimizerSettings settings;
  double learning_rate_scale = 1;
};
SettingsOfParameter settings_of(const OptimizerSettings& settings, const std::string& parameter);

/// Whether the decay is applied to the parameter and not to its gradient. It then excludes norms
/// and biases by default.
bool has_decoupled_decay(OptimizerKind kind);

/// The defaults of the command line: PyTorch's or the papers', except for SGD, which has momentum
/// 0.9.
OptimizerSettings default_settings(OptimizerKind kind);
double default_learning_rate(OptimizerKind kind);

/// Validates the ranges of all values; Error (kUsage) naming the flag.
void validate(const OptimizerSettings& settings);

/// Number of optimizer states per parameter: 0, 1 or 2.
int state_slots(const OptimizerSettings& settings);
/// The same, including the moving average.
int kept_slots(const OptimizerSettings& settings);

/// The name of its row: "adamw".
std::string_view name_of(OptimizerKind kind);
/// The kind of that name; Error (kUsage) listing all of them.
OptimizerKind optimizer_named(std::string_view name);
/// The name of state slot `slot` in a checkpoint: "mean_square".
std::string_view state_name(const OptimizerSettings& settings, int slot);

}  // namespace pipetrain
