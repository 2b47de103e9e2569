#include "optim/optimizer.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::array<std::pair<OptimizerKind, std::string_view>, 8> kOptimizerNames{{
    {OptimizerKind::kAdamW, "adamw"},
    {OptimizerKind::kAdam, "adam"},
    {OptimizerKind::kSgd, "sgd"},
    {OptimizerKind::kRmsProp, "rmsprop"},
    {OptimizerKind::kAdagrad, "adagrad"},
    {OptimizerKind::kLamb, "lamb"},
    {OptimizerKind::kLars, "lars"},
    {OptimizerKind::kLion, "lion"},
}};

void check_range(double value, double low, double high, std::string_view flag) {
  PT_CHECK(std::isfinite(value) && value >= low && value < high, kUsage,
           "{} must be at least {} and less than {}, got {}", flag, low, high, value);
}

void check_not_negative(double value, std::string_view flag) {
  PT_CHECK(std::isfinite(value) && value >= 0, kUsage, "{} must not be negative, got {}", flag,
           value);
}

}  // namespace

OptimizerSettings default_settings(OptimizerKind kind) {
  OptimizerSettings settings;
  settings.kind = kind;
  switch (kind) {
    case OptimizerKind::kSgd:
      settings.momentum = 0.9;
      break;
    case OptimizerKind::kAdamW:
      settings.weight_decay = 0.01;
      break;
    case OptimizerKind::kAdagrad:
      settings.epsilon = 1e-10;
      break;
    case OptimizerKind::kLamb:
      settings.weight_decay = 0.01;
      settings.epsilon = 1e-6;
      break;
    case OptimizerKind::kLars:
      settings.momentum = 0.9;
      settings.weight_decay = 5e-4;
      break;
    case OptimizerKind::kLion:
      settings.beta2 = 0.99;
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kRmsProp:
      break;
  }
  return settings;
}

double default_learning_rate(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kRmsProp:
    case OptimizerKind::kAdagrad:
      return 1e-2;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
    case OptimizerKind::kLamb:
      return 1e-3;
    case OptimizerKind::kLars:
      return 1;
    case OptimizerKind::kLion:
      return 1e-4;
  }
  PT_FAIL(kInternal, "unknown optimizer {}", static_cast<int>(kind));
}

void validate(const OptimizerSettings& settings) {
  check_not_negative(settings.momentum, "--momentum");
  check_not_negative(settings.weight_decay, "--weight-decay");
  check_not_negative(settings.epsilon, "--eps");
  check_range(settings.beta1, 0, 1, "--beta1");
  check_range(settings.beta2, 0, 1, "--beta2");
  check_range(settings.alpha, 0, 1, "--alpha");
  PT_CHECK(!settings.nesterov || settings.kind != OptimizerKind::kSgd ||
               (settings.momentum > 0 && settings.dampening == 0),
           kUsage, "--nesterov needs --momentum above 0 and no dampening");
  PT_CHECK(!settings.centered || settings.kind != OptimizerKind::kRmsProp || settings.momentum == 0,
           kUsage, "--centered does not go with --momentum; leave one of them out");
}

int state_slots(const OptimizerSettings& settings) {
  const int momentum = settings.momentum != 0 ? 1 : 0;
  switch (settings.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kLars:
      return momentum;
    case OptimizerKind::kRmsProp:
      return settings.centered ? 2 : 1 + momentum;
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kLion:
      return 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
    case OptimizerKind::kLamb:
      return 2;
  }
  PT_FAIL(kInternal, "unknown optimizer {}", static_cast<int>(settings.kind));
}

std::string_view name_of(OptimizerKind kind) {
  for (const auto& [value, name] : kOptimizerNames) {
    if (value == kind) return name;
  }
  PT_FAIL(kInternal, "unknown optimizer {}", static_cast<int>(kind));
}

OptimizerKind optimizer_named(std::string_view name) {
  std::string known;
  for (const auto& [value, text] : kOptimizerNames) {
    if (text == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  PT_FAIL(kUsage, "unknown optimizer \"{}\"; --optimizer is one of {}", printable(name), known);
}

std::string_view state_name(const OptimizerSettings& settings, int slot) {
  PT_CHECK(slot >= 0 && slot < state_slots(settings), kInternal, "{} has no state slot {}",
           name_of(settings.kind), slot);
  switch (settings.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kLars:
      return "momentum";
    case OptimizerKind::kRmsProp:
      return slot == 0 ? "mean_square" : settings.centered ? "mean" : "momentum";
    case OptimizerKind::kAdagrad:
      return "sum_of_squares";
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
    case OptimizerKind::kLamb:
    case OptimizerKind::kLion:
      break;
  }
  return slot == 0 ? "mean" : "mean_square";
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

bool has_decoupled_decay(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW || kind == OptimizerKind::kLamb ||
         kind == OptimizerKind::kLion;
}

int kept_slots(const OptimizerSettings& settings) {
  return state_slots(settings) + (settings.average_decay > 0 ? 1 : 0);
}

}  // namespace pipetrain
