// The table of optimizers, one row each: name, defaults, settings, states and rules. All other code
// that depends on the optimizer reads this table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "optim/element_rules.h"
#include "optim/optimizer.h"

namespace pipetrain {

/// The settings that select a different rule.
enum class RuleApplies : std::uint8_t { kAlways, kWithMomentum, kCentered };

/// One rule of an optimizer, and the names of its states in a checkpoint.
struct OptimizerVariant {
  RuleApplies applies = RuleApplies::kAlways;
  int rule = -1;  // index in ElementRules
  std::array<const char*, 2> states = {};

  constexpr int state_count() const {
    int count = 0;
    for (const char* state : states) count += state ? 1 : 0;
    return count;
  }
};

/// The index of a rule in ElementRules.
template <template <class> class Rule>
inline constexpr int kRule = place_in<Rule>(ElementRules{});

enum class Origin : std::uint8_t { kPyTorch, kPaper };
/// Coupled decay is added to the gradient (L2). Decoupled decay is applied to the parameter, and
/// excludes norms and biases by default.
enum class Decay : std::uint8_t { kCoupled, kDecoupled };

/// Values are the defaults of the command line; settings that the optimizer does not read have
/// none.
struct OptimizerRow {
  OptimizerKind kind;
  std::string_view name;
  std::string_view help;
  Origin origin;  // of formulas and defaults
  double learning_rate;
  Decay decay = Decay::kCoupled;
  double weight_decay = 0;
  std::optional<double> momentum = {}, beta1 = {}, beta2 = {}, alpha = {}, epsilon = {};
  bool reads_nesterov = false, reads_dampening = false, reads_centered = false;
  /// The first that applies is used; the last one always applies.
  std::array<OptimizerVariant, 3> variants;
};

inline constexpr std::array kOptimizerRows = {
    OptimizerRow{.kind = OptimizerKind::kAdamW,
                 .name = "adamw",
                 .help = "Adam with decoupled decay",
                 .origin = Origin::kPyTorch,
                 .learning_rate = 1e-3,
                 .decay = Decay::kDecoupled,
                 .weight_decay = 0.01,
                 .beta1 = 0.9,
                 .beta2 = 0.999,
                 .epsilon = 1e-8,
                 .variants = {{{.rule = kRule<AdamRule>, .states = {"mean", "mean_square"}}}}},
    OptimizerRow{.kind = OptimizerKind::kAdam,
                 .name = "adam",
                 .help = "mean gradient over the root of its mean square",
                 .origin = Origin::kPyTorch,
                 .learning_rate = 1e-3,
                 .beta1 = 0.9,
                 .beta2 = 0.999,
                 .epsilon = 1e-8,
                 .variants = {{{.rule = kRule<AdamRule>, .states = {"mean", "mean_square"}}}}},
    OptimizerRow{.kind = OptimizerKind::kSgd,
                 .name = "sgd",
                 .help = "gradient with momentum",
                 .origin = Origin::kPyTorch,
                 .learning_rate = 1e-2,
                 .momentum = 0.9,
                 .reads_nesterov = true,
                 .reads_dampening = true,
                 .variants = {{{.applies = RuleApplies::kWithMomentum,
                                .rule = kRule<MomentumRule>,
                                .states = {"momentum"}},
                               {.rule = kRule<SgdRule>}}}},
    OptimizerRow{.kind = OptimizerKind::kRmsProp,
                 .name = "rmsprop",
                 .help = "gradient over the root of its mean square",
                 .origin = Origin::kPyTorch,
                 .learning_rate = 1e-2,
                 .momentum = 0.0,
                 .alpha = 0.99,
                 .epsilon = 1e-8,
                 .reads_centered = true,
                 .variants = {{{.applies = RuleApplies::kCentered,
                                .rule = kRule<CenteredRmsPropRule>,
                                .states = {"mean_square", "mean"}},
                               {.applies = RuleApplies::kWithMomentum,
                                .rule = kRule<RmsPropMomentumRule>,
                                .states = {"mean_square", "momentum"}},
                               {.rule = kRule<RmsPropRule>, .states = {"mean_square"}}}}},
    OptimizerRow{.kind = OptimizerKind::kAdagrad,
                 .name = "adagrad",
                 .help = "gradient over the root of its sum of squares",
                 .origin = Origin::kPyTorch,
                 .learning_rate = 1e-2,
                 .epsilon = 1e-10,
                 .variants = {{{.rule = kRule<AdagradRule>, .states = {"sum_of_squares"}}}}},
    OptimizerRow{.kind = OptimizerKind::kLamb,
                 .name = "lamb",
                 .help = "Adam's step, scaled by the tensor's norm",
                 .origin = Origin::kPaper,
                 .learning_rate = 1e-3,
                 .decay = Decay::kDecoupled,
                 .weight_decay = 0.01,
                 .beta1 = 0.9,
                 .beta2 = 0.999,
                 .epsilon = 1e-6,
                 .variants = {{{.rule = kRule<LambRule>, .states = {"mean", "mean_square"}}}}},
    // The trust coefficient makes the rate small.
    OptimizerRow{.kind = OptimizerKind::kLars,
                 .name = "lars",
                 .help = "gradient scaled by the tensor's norm, with momentum",
                 .origin = Origin::kPaper,
                 .learning_rate = 1,
                 .weight_decay = 5e-4,
                 .momentum = 0.9,
                 .variants = {{{.applies = RuleApplies::kWithMomentum,
                                .rule = kRule<LarsMomentumRule>,
                                .states = {"momentum"}},
                               {.rule = kRule<LarsRule>}}}},
    OptimizerRow{.kind = OptimizerKind::kLion,
                 .name = "lion",
                 .help = "sign of the mean gradient",
                 .origin = Origin::kPaper,
                 .learning_rate = 1e-4,
                 .decay = Decay::kDecoupled,
                 .beta1 = 0.9,
                 .beta2 = 0.99,
                 .variants = {{{.rule = kRule<LionRule>, .states = {"mean"}}}}},
};

/// The row of an optimizer.
const OptimizerRow& row_of(OptimizerKind kind);
/// The rule for these settings.
const OptimizerVariant& variant_of(const OptimizerSettings& settings);
/// Whether the rule uses norms of the whole tensor.
bool looks_at_norms(const OptimizerSettings& settings);
/// The input of the rule for one step, which counts from 1.
RuleInput rule_input(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
                     double gradient_scale);

}  // namespace pipetrain
