#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/setting.h"
#include "optim/optimizer_table.h"

namespace pipetrain {
namespace {

/// Properties of a row's rule, from its type.
struct RuleFacts {
  int states = -1;
  bool normalised = false;
};

template <template <class> class... Rules>
constexpr auto facts_of(RuleList<Rules...>) {
  return std::array{RuleFacts{states_of<Rules<float>>(), is_normalised<Rules<float>>()}...};
}
constexpr auto kRuleFacts = facts_of(ElementRules{});

constexpr bool rows_are_complete() {
  for (const OptimizerRow& row : kOptimizerRows) {
    if (row.name.empty() || row.help.empty() || row.learning_rate <= 0) return false;
    if ((row.reads_nesterov || row.reads_dampening) && !row.momentum) return false;
    int same = 0;
    for (const OptimizerRow& other : kOptimizerRows)
      same += other.kind == row.kind || other.name == row.name ? 1 : 0;
    if (same != 1) return false;
  }
  return true;
}
static_assert(rows_are_complete(), "a row lacks its name, help or rate, or says what another does");

constexpr bool variants_are_their_rules() {
  for (const OptimizerRow& row : kOptimizerRows) {
    bool ended = false;
    for (const OptimizerVariant& variant : row.variants) {
      if (variant.rule < 0) continue;
      if (ended || variant.state_count() != kRuleFacts[variant.rule].states) return false;
      if (variant.applies == RuleApplies::kWithMomentum && !row.momentum) return false;
      if (variant.applies == RuleApplies::kCentered && !row.reads_centered) return false;
      ended = variant.applies == RuleApplies::kAlways;
    }
    if (!ended) return false;
  }
  return true;
}
static_assert(variants_are_their_rules(),
              "a row names other states than its rule has, or its last rule does not always apply");

void check_range(double value, double low, double high, const std::string& name) {
  PT_CHECK(std::isfinite(value) && value >= low && value < high, kUsage,
           "{} must be at least {} and less than {}, got {}", name, low, high, value);
}

void check_not_negative(double value, const std::string& name) {
  PT_CHECK(std::isfinite(value) && value >= 0, kUsage, "{} must not be negative, got {}", name,
           value);
}

bool applies(RuleApplies condition, const OptimizerSettings& settings) {
  switch (condition) {
    case RuleApplies::kWithMomentum:
      return settings.momentum != 0;
    case RuleApplies::kCentered:
      return settings.centered;
    case RuleApplies::kAlways:
      break;
  }
  return true;
}

}  // namespace

const OptimizerRow& row_of(OptimizerKind kind) {
  const auto* const found = std::ranges::find(kOptimizerRows, kind, &OptimizerRow::kind);
  PT_CHECK(found != kOptimizerRows.end(), kInternal, "unknown optimizer {}",
           static_cast<int>(kind));
  return *found;
}

const OptimizerVariant& variant_of(const OptimizerSettings& settings) {
  return *std::ranges::find_if(row_of(settings.kind).variants, [&](const OptimizerVariant& one) {
    return applies(one.applies, settings);
  });
}

bool looks_at_norms(const OptimizerSettings& settings) {
  return kRuleFacts[static_cast<std::size_t>(variant_of(settings).rule)].normalised;
}

RuleInput rule_input(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
                     double gradient_scale) {
  const bool decoupled = has_decoupled_decay(settings.kind);
  return {.learning_rate = learning_rate,
          .gradient_scale = gradient_scale,
          .step = step,
          .decay = decoupled ? 0 : settings.weight_decay,
          .decoupled_decay = decoupled ? settings.weight_decay : 0,
          .momentum = settings.momentum,
          .dampening = settings.dampening,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .alpha = settings.alpha,
          .epsilon = settings.epsilon,
          .nesterov = settings.nesterov};
}

OptimizerSettings default_settings(OptimizerKind kind) {
  const OptimizerRow& row = row_of(kind);
  OptimizerSettings settings;
  settings.kind = kind;
  settings.weight_decay = row.weight_decay;
  settings.momentum = row.momentum.value_or(settings.momentum);
  settings.beta1 = row.beta1.value_or(settings.beta1);
  settings.beta2 = row.beta2.value_or(settings.beta2);
  settings.alpha = row.alpha.value_or(settings.alpha);
  settings.epsilon = row.epsilon.value_or(settings.epsilon);
  return settings;
}

double default_learning_rate(OptimizerKind kind) { return row_of(kind).learning_rate; }

void validate(const OptimizerSettings& settings) {
  const OptimizerRow& row = row_of(settings.kind);
  check_not_negative(settings.momentum, setting("momentum"));
  check_not_negative(settings.weight_decay, setting("weight-decay"));
  check_not_negative(settings.epsilon, setting("eps"));
  check_range(settings.beta1, 0, 1, setting("beta1"));
  check_range(settings.beta2, 0, 1, setting("beta2"));
  check_range(settings.alpha, 0, 1, setting("alpha"));
  PT_CHECK(!settings.nesterov || !row.reads_nesterov ||
               (settings.momentum > 0 && settings.dampening == 0),
           kUsage, "{} needs {} above 0 and no dampening", setting("nesterov"),
           setting("momentum"));
  PT_CHECK(!settings.centered || !row.reads_centered || settings.momentum == 0, kUsage,
           "{} does not go with {}; leave one of them out", setting("centered"),
           setting("momentum"));
}

int state_slots(const OptimizerSettings& settings) { return variant_of(settings).state_count(); }

std::string_view name_of(OptimizerKind kind) { return row_of(kind).name; }

OptimizerKind optimizer_named(std::string_view name) {
  std::string known;
  for (const OptimizerRow& row : kOptimizerRows) {
    if (row.name == name) return row.kind;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  PT_FAIL(kUsage, "unknown optimizer \"{}\"; {} is one of {}", printable(name),
          setting("optimizer"), known);
}

std::string_view state_name(const OptimizerSettings& settings, int slot) {
  const OptimizerVariant& variant = variant_of(settings);
  PT_CHECK(slot >= 0 && slot < variant.state_count(), kInternal, "{} has no state slot {}",
           name_of(settings.kind), slot);
  return variant.states[static_cast<std::size_t>(slot)];
}

SettingsOfParameter settings_of(const OptimizerSettings& settings, const std::string& parameter) {
  SettingsOfParameter out{settings};
  out.settings.own.clear();
  const auto found = settings.own.find(parameter);
  if (found == settings.own.end()) return out;
  out.learning_rate_scale = found->second.learning_rate_scale;
  out.settings.weight_decay = found->second.weight_decay.value_or(settings.weight_decay);
  return out;
}

bool has_decoupled_decay(OptimizerKind kind) { return row_of(kind).decay == Decay::kDecoupled; }

int kept_slots(const OptimizerSettings& settings) {
  return state_slots(settings) + (settings.average_decay > 0 ? 1 : 0);
}

}  // namespace pipetrain
