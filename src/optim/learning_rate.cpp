#include "optim/learning_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::array<std::pair<LearningRateKind, std::string_view>, 4> kNames{{
    {LearningRateKind::kConstant, "constant"},
    {LearningRateKind::kCosine, "cosine"},
    {LearningRateKind::kLinear, "linear"},
    {LearningRateKind::kStep, "step"},
}};

bool needs_total(LearningRateKind kind) {
  return kind == LearningRateKind::kCosine || kind == LearningRateKind::kLinear;
}

}  // namespace

void validate(const LearningRateSettings& settings, std::int64_t total) {
  PT_CHECK(std::isfinite(settings.peak) && settings.peak >= 0, kUsage,
           "--lr must not be negative, got {}", settings.peak);
  PT_CHECK(settings.minimum >= 0 && settings.minimum <= settings.peak, kUsage,
           "--min-lr must lie between 0 and --lr ({}), got {}", settings.peak, settings.minimum);
  PT_CHECK(settings.warmup_steps >= 0, kUsage, "--warmup must not be negative, got {}",
           settings.warmup_steps);
  PT_CHECK(!needs_total(settings.kind) || total > 0, kUsage,
           "--lr-schedule {} needs to know the number of steps; give --epochs or --max-steps, or "
           "use --lr-schedule constant",
           name_of(settings.kind));
  PT_CHECK(!needs_total(settings.kind) || settings.warmup_steps < total, kUsage,
           "--warmup takes {} steps, but the run has only {}", settings.warmup_steps, total);
  PT_CHECK(settings.kind != LearningRateKind::kStep ||
               (settings.every_steps > 0 && settings.gamma > 0 && settings.gamma <= 1),
           kUsage,
           "--lr-schedule step needs a number of steps above 0 and a factor in (0, 1], got {} and "
           "{}",
           settings.every_steps, settings.gamma);
}

double learning_rate(const LearningRateSettings& settings, std::int64_t step, std::int64_t total) {
  const std::int64_t warmup = settings.warmup_steps;
  if (step <= warmup) {
    return settings.peak * static_cast<double>(step) / static_cast<double>(warmup + 1);
  }
  const std::int64_t length = std::max<std::int64_t>(total - warmup, 1);
  const double x =
      std::min(1.0, static_cast<double>(step - 1 - warmup) / static_cast<double>(length));
  const double span = settings.peak - settings.minimum;
  switch (settings.kind) {
    case LearningRateKind::kConstant:
      return settings.peak;
    case LearningRateKind::kCosine:
      return settings.minimum + span * 0.5 * (1 + std::cos(std::numbers::pi * x));
    case LearningRateKind::kLinear:
      return settings.minimum + span * (1 - x);
    case LearningRateKind::kStep: {
      const std::int64_t drops = settings.every_steps > 0 ? (step - 1) / settings.every_steps : 0;
      return std::max(settings.minimum,
                      settings.peak * std::pow(settings.gamma, static_cast<double>(drops)));
    }
  }
  PT_FAIL(kInternal, "unknown learning-rate schedule {}", static_cast<int>(settings.kind));
}

std::string_view name_of(LearningRateKind kind) {
  for (const auto& [value, name] : kNames) {
    if (value == kind) return name;
  }
  PT_FAIL(kInternal, "unknown learning-rate schedule {}", static_cast<int>(kind));
}

LearningRateKind learning_rate_named(std::string_view name) {
  std::string known;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  PT_FAIL(kUsage, "unknown learning-rate schedule \"{}\"; --lr-schedule is one of {}",
          printable(name), known);
}

}  // namespace pipetrain
