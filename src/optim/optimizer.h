// Optimizers: their settings, and how many numbers per parameter they remember. The arithmetic is
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

/// The formulas are PyTorch's, so that a recipe carries over unchanged; PyTorch has no LAMB, LARS
/// and Lion, which are the papers' (update.h). Fields that do not name a kind are not read by it.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double momentum = 0;  // SGD, RMSprop, LARS
  double dampening =
      0;  // SGD: the gradient enters the momentum buffer times 1 - dampening, but whole at step 1
  bool nesterov = false;  // SGD
  bool centered = false;  // RMSprop: divide by the deviation; not together with momentum
  double beta1 = 0.9;     // Adam, AdamW, LAMB; Lion: share of the mean in the direction
  double beta2 = 0.999;   // Adam, AdamW, LAMB; Lion: decay of the mean
  double alpha = 0.99;    // RMSprop: decay of the mean square
  double epsilon = 1e-8;  // Adam, AdamW, RMSprop, Adagrad, LAMB
  // Added to the gradient (L2). AdamW, LAMB and Lion move the parameter by it instead.
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

/// Whether the decay moves the parameter and not its gradient: AdamW, LAMB, Lion. These leave norms
/// and biases alone by default.
bool has_decoupled_decay(OptimizerKind kind);

/// The command line's defaults, PyTorch's or the papers' but for SGD, which has momentum 0.9.
OptimizerSettings default_settings(OptimizerKind kind);
/// 1e-2 for SGD, RMSprop and Adagrad, 1e-3 for Adam, AdamW and LAMB, 1e-4 for Lion and 1 for LARS,
/// whose trust coefficient makes it small.
double default_learning_rate(OptimizerKind kind);

/// Refuses values outside the range where the formulas mean anything; an Error (kUsage) naming the
/// flag.
void validate(const OptimizerSettings& settings);

/// How many numbers the optimizer remembers for each parameter: 0, 1 or 2.
int state_slots(const OptimizerSettings& settings);
/// The same with the moving average.
int kept_slots(const OptimizerSettings& settings);

/// "sgd", "adam", "adamw", "rmsprop", "adagrad", "lamb", "lars", "lion".
std::string_view name_of(OptimizerKind kind);
/// The kind of that name; an Error (kUsage) listing all of them.
OptimizerKind optimizer_named(std::string_view name);
/// What state slot `slot` is called in a checkpoint: "momentum", "mean", "mean_square",
/// "sum_of_squares".
std::string_view state_name(const OptimizerSettings& settings, int slot);

}  // namespace pipetrain
