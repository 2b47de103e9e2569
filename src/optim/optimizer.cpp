#include "optim/optimizer.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::array<std::pair<OptimizerKind, std::string_view>, 4> kNames{{
    {OptimizerKind::kAdamW, "adamw"},
    {OptimizerKind::kAdam, "adam"},
    {OptimizerKind::kSgd, "sgd"},
    {OptimizerKind::kRmsProp, "rmsprop"},
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
  if (kind == OptimizerKind::kSgd) settings.momentum = 0.9;
  if (kind == OptimizerKind::kAdamW) settings.weight_decay = 0.01;
  return settings;
}

double default_learning_rate(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd || kind == OptimizerKind::kRmsProp ? 1e-2 : 1e-3;
}

void validate(const OptimizerSettings& settings) {
  check_not_negative(settings.momentum, "--momentum");
  check_not_negative(settings.weight_decay, "--weight-decay");
  check_not_negative(settings.epsilon, "--eps");
  check_range(settings.beta1, 0, 1, "--beta1");
  check_range(settings.beta2, 0, 1, "--beta2");
  check_range(settings.alpha, 0, 1, "the decay of rmsprop");
  PT_CHECK(!settings.nesterov || settings.kind != OptimizerKind::kSgd ||
               (settings.momentum > 0 && settings.dampening == 0),
           kUsage, "--nesterov needs --momentum above 0 and no dampening");
}

int state_slots(const OptimizerSettings& settings) {
  const int momentum = settings.momentum != 0 ? 1 : 0;
  switch (settings.kind) {
    case OptimizerKind::kSgd:
      return momentum;
    case OptimizerKind::kRmsProp:
      return 1 + momentum;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return 2;
  }
  PT_FAIL(kInternal, "unknown optimizer {}", static_cast<int>(settings.kind));
}

std::string_view name_of(OptimizerKind kind) {
  for (const auto& [value, name] : kNames) {
    if (value == kind) return name;
  }
  PT_FAIL(kInternal, "unknown optimizer {}", static_cast<int>(kind));
}

OptimizerKind optimizer_named(std::string_view name) {
  std::string known;
  for (const auto& [value, text] : kNames) {
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
      return "momentum";
    case OptimizerKind::kRmsProp:
      return slot == 0 ? "mean_square" : "momentum";
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      break;
  }
  return slot == 0 ? "mean" : "mean_square";
}

}  // namespace pipetrain
