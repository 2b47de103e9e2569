#include "optim/learning_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

constexpr std::array<std::pair<LearningRateKind, std::string_view>, 11> kScheduleNames{{
    {LearningRateKind::kConstant, "constant"},
    {LearningRateKind::kCosine, "cosine"},
    {LearningRateKind::kLinear, "linear"},
    {LearningRateKind::kStep, "step"},
    {LearningRateKind::kMultistep, "multistep"},
    {LearningRateKind::kExponential, "exponential"},
    {LearningRateKind::kPolynomial, "polynomial"},
    {LearningRateKind::kInverseSqrt, "inverse-sqrt"},
    {LearningRateKind::kWsd, "wsd"},
    {LearningRateKind::kOneCycle, "onecycle"},
    {LearningRateKind::kRange, "range"},
}};

constexpr std::array<std::pair<std::string_view, LearningRateKind>, 3> kShortNames{{
    {"exp", LearningRateKind::kExponential},
    {"poly", LearningRateKind::kPolynomial},
    {"inv-sqrt", LearningRateKind::kInverseSqrt},
}};

bool needs_total(const LearningRateSettings& settings) {
  switch (settings.kind) {
    case LearningRateKind::kCosine:
    case LearningRateKind::kLinear:
    case LearningRateKind::kPolynomial:
    case LearningRateKind::kWsd:
    case LearningRateKind::kOneCycle:
    case LearningRateKind::kRange:
      return true;
    case LearningRateKind::kMultistep:
      return std::any_of(settings.milestones.begin(), settings.milestones.end(),
                         [](const Milestone& milestone) { return milestone.is_share; });
    case LearningRateKind::kConstant:
    case LearningRateKind::kStep:
    case LearningRateKind::kExponential:
    case LearningRateKind::kInverseSqrt:
      break;
  }
  return false;
}

/// The number of updates before the milestone.
double steps_before(const Milestone& milestone, std::int64_t total) {
  return milestone.is_share ? std::round(milestone.value * static_cast<double>(total))
                            : milestone.value;
}

double wsd_decay_steps(const LearningRateSettings& settings, std::int64_t total) {
  return std::round(settings.decay_fraction * static_cast<double>(total));
}

double cosine_between(double from, double to, double x) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * x));
}

double one_cycle(const LearningRateSettings& settings, std::int64_t step, std::int64_t total) {
  const double start = settings.peak / 25;
  const double end = settings.minimum > 0 ? settings.minimum : start / 1e4;
  const double rise =
      settings.warmup_steps > 0 ? static_cast<double>(settings.warmup_steps) : 0.3 * total;
  const double top = rise - 1, last = static_cast<double>(total) - 1;
  const double at = std::min(static_cast<double>(step) - 1, last);
  if (top > 0 && at <= top) return cosine_between(start, settings.peak, at / top);
  return cosine_between(settings.peak, end, (at - top) / (last - top));
}

void validate_kind(const LearningRateSettings& settings, std::int64_t total) {
  const LearningRateKind kind = settings.kind;
  const bool every = kind == LearningRateKind::kStep || kind == LearningRateKind::kExponential;
  PT_CHECK(!every || settings.every_steps > 0, kUsage,
           "{} {} needs {}, the number of steps for one factor {}", setting("lr-schedule"),
           name_of(kind), setting("lr-step"), setting("lr-gamma"));
  PT_CHECK((!every && kind != LearningRateKind::kMultistep) ||
               (settings.gamma > 0 && settings.gamma <= 1),
           kUsage, "{} must be above 0 and at most 1, got {}", setting("lr-gamma"), settings.gamma);
  if (kind == LearningRateKind::kMultistep) {
    PT_CHECK(!settings.milestones.empty(), kUsage,
             "{} multistep needs {}, for example 3000,6000 or 30ep,60ep", setting("lr-schedule"),
             setting("lr-milestones"));
    double before = 0;
    for (const Milestone& milestone : settings.milestones) {
      const double steps = steps_before(milestone, total);
      PT_CHECK(std::isfinite(steps) && steps > before, kUsage,
               "{} must be positive and increasing, but step {} follows step {}",
               setting("lr-milestones"), steps, before);
      before = steps;
    }
  }
  if (kind == LearningRateKind::kPolynomial) {
    PT_CHECK(std::isfinite(settings.power) && settings.power > 0, kUsage,
             "{} must be above 0, got {}", setting("lr-power"), settings.power);
  }
  PT_CHECK(kind != LearningRateKind::kRange || settings.minimum > 0, kUsage,
           "{} range grows from {}, which must lie above 0", setting("lr-schedule"),
           setting("min-lr"));
  if (kind == LearningRateKind::kWsd) {
    PT_CHECK(settings.decay_fraction >= 0 && settings.decay_fraction <= 1, kUsage,
             "{} must be between 0 and 1, got {}", setting("lr-decay-fraction"),
             settings.decay_fraction);
    const double decay = wsd_decay_steps(settings, total);
    PT_CHECK(static_cast<double>(settings.warmup_steps) + decay <= static_cast<double>(total),
             kUsage, "{} takes {} steps and {} {}, but the run has only {}", setting("warmup"),
             settings.warmup_steps, setting("lr-decay-fraction"), decay, total);
  }
}

}  // namespace

void validate(const LearningRateSettings& settings, std::int64_t total) {
  PT_CHECK(std::isfinite(settings.peak) && settings.peak >= 0, kUsage,
           "{} must not be negative, got {}", setting("lr"), settings.peak);
  PT_CHECK(settings.minimum >= 0 && settings.minimum <= settings.peak, kUsage,
           "{} must be between 0 and {} ({}), got {}", setting("min-lr"), setting("lr"),
           settings.peak, settings.minimum);
  PT_CHECK(settings.warmup_steps >= 0, kUsage, "{} must not be negative, got {}", setting("warmup"),
           settings.warmup_steps);
  PT_CHECK(!needs_total(settings) || total > 0, kUsage,
           "{} {} needs to know the number of steps; give {} or {}, or "
           "use {} constant",
           setting("lr-schedule"), name_of(settings.kind), setting("epochs"), setting("max-steps"),
           setting("lr-schedule"));
  PT_CHECK(!needs_total(settings) || settings.warmup_steps < total, kUsage,
           "{} takes {} steps, but the run has only {}", setting("warmup"), settings.warmup_steps,
           total);
  validate_kind(settings, total);
}

double learning_rate(const LearningRateSettings& settings, std::int64_t step, std::int64_t total) {
  if (settings.kind == LearningRateKind::kOneCycle) return one_cycle(settings, step, total);
  const std::int64_t warmup = settings.warmup_steps;
  if (step <= warmup) {
    return settings.peak * static_cast<double>(step) / static_cast<double>(warmup + 1);
  }
  const std::int64_t length = std::max<std::int64_t>(total - warmup, 1);
  const auto done = static_cast<double>(step - 1);
  const double x =
      std::min(1.0, static_cast<double>(step - 1 - warmup) / static_cast<double>(length));
  const double span = settings.peak - settings.minimum;
  const auto decayed = [&settings](double factors) {
    return std::max(settings.minimum, settings.peak * std::pow(settings.gamma, factors));
  };
  switch (settings.kind) {
    case LearningRateKind::kConstant:
      return settings.peak;
    case LearningRateKind::kRange:
      return settings.minimum *
             std::pow(settings.peak / settings.minimum,
                      done / static_cast<double>(std::max<std::int64_t>(total - 1, 1)));
    case LearningRateKind::kCosine:
      return settings.minimum + span * 0.5 * (1 + std::cos(std::numbers::pi * x));
    case LearningRateKind::kLinear:
      return settings.minimum + span * (1 - x);
    case LearningRateKind::kPolynomial:
      return settings.minimum + span * std::pow(1 - x, settings.power);
    case LearningRateKind::kStep: {
      const std::int64_t drops = settings.every_steps > 0 ? (step - 1) / settings.every_steps : 0;
      return decayed(static_cast<double>(drops));
    }
    case LearningRateKind::kMultistep: {
      double drops = 0;
      for (const Milestone& milestone : settings.milestones) {
        if (steps_before(milestone, total) <= done) ++drops;
      }
      return decayed(drops);
    }
    case LearningRateKind::kExponential:
      return decayed((done - static_cast<double>(warmup)) /
                     static_cast<double>(std::max<std::int64_t>(settings.every_steps, 1)));
    case LearningRateKind::kInverseSqrt:
      return std::max(settings.minimum, settings.peak * std::sqrt(static_cast<double>(warmup + 1) /
                                                                  static_cast<double>(step)));
    case LearningRateKind::kWsd: {
      const double decay = wsd_decay_steps(settings, total);
      const double fallen = done - (static_cast<double>(total) - decay);
      if (fallen <= 0) return settings.peak;
      return settings.minimum + span * std::max(0.0, 1 - fallen / std::max(decay, 1.0));
    }
    case LearningRateKind::kOneCycle:
      break;
  }
  PT_FAIL(kInternal, "unknown learning-rate schedule {}", static_cast<int>(settings.kind));
}

std::string_view name_of(LearningRateKind kind) {
  for (const auto& [value, name] : kScheduleNames) {
    if (value == kind) return name;
  }
  PT_FAIL(kInternal, "unknown learning-rate schedule {}", static_cast<int>(kind));
}

std::vector<std::string> learning_rate_names() {
  std::vector<std::string> out;
  for (const auto& [kind, name] : kScheduleNames) {
    if (kind != LearningRateKind::kRange) out.emplace_back(name);
  }
  return out;
}

std::string long_learning_rate_name(const std::string& name) {
  for (const auto& [text, kind] : kShortNames) {
    if (text == name) return std::string(name_of(kind));
  }
  return name;
}

LearningRateKind learning_rate_named(std::string_view name) {
  const std::string full = long_learning_rate_name(std::string(name));
  std::string known;
  for (const auto& [value, text] : kScheduleNames) {
    if (text == full) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  PT_FAIL(kUsage, "unknown learning-rate schedule \"{}\"; {} is one of {}", printable(name),
          setting("lr-schedule"), known);
}

}  // namespace pipetrain
