#include "cli/option_values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace pipetrain {
namespace {

/// "500", "30%" or "30ep": steps, a share of the run, or epochs, which also become a share.
Milestone parse_milestone(const std::string& text, const OptimizationConfig& optimization) {
  std::string digits = text;
  const bool percent = digits.ends_with('%');
  const bool epochs = digits.ends_with("ep");
  if (percent) digits.pop_back();
  if (epochs) digits.resize(digits.size() - 2);
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  PT_CHECK(!digits.empty() && *end == 0 && std::isfinite(value) && value > 0, kUsage,
           "--lr-milestones takes steps, percentages or epochs (500, 30%, 30ep), not \"{}\"",
           printable(text));
  PT_CHECK(percent || epochs || value == std::floor(value), kUsage,
           "--lr-milestones takes whole steps, not \"{}\"", printable(text));
  PT_CHECK(!epochs || (optimization.max_steps < 0 && optimization.epochs > 0), kUsage,
           "--lr-milestones in epochs need --epochs; give steps or percentages with --max-steps");
  if (percent) return {value / 100, /*is_share=*/true};
  if (epochs) return {value / static_cast<double>(optimization.epochs), /*is_share=*/true};
  return {value, /*is_share=*/false};
}

void set_milestones(Options& options) {
  OptimizationConfig& optimization = options.run.optimization;
  PT_CHECK(
      options.milestones.empty() || optimization.learning_rate.kind == LearningRateKind::kMultistep,
      kUsage, "--lr-milestones belong to --lr-schedule multistep, not {}",
      name_of(optimization.learning_rate.kind));
  for (const std::string& text : options.milestones) {
    optimization.learning_rate.milestones.push_back(parse_milestone(text, optimization));
  }
}

}  // namespace

void resolve_values(Options& options) {
  RunConfig& run = options.run;
  const OptimizerKind kind = optimizer_named(options.optimizer);
  const bool nesterov = run.optimization.optimizer.nesterov;
  const bool centered = run.optimization.optimizer.centered;
  run.optimization.optimizer = default_settings(kind);
  run.optimization.optimizer.nesterov = nesterov;
  run.optimization.optimizer.centered = centered;
  const auto number = [](const std::string& text, double& field) {
    if (!text.empty()) field = std::stod(text);
  };
  OptimizerSettings& settings = run.optimization.optimizer;
  run.optimization.learning_rate.peak = default_learning_rate(kind);
  number(options.lr, run.optimization.learning_rate.peak);
  number(options.momentum, settings.momentum);
  number(options.weight_decay, settings.weight_decay);
  number(options.beta1, settings.beta1);
  number(options.beta2, settings.beta2);
  number(options.epsilon, settings.epsilon);
  number(options.alpha, settings.alpha);
  PT_CHECK(kind == OptimizerKind::kRmsProp || (!centered && options.alpha.empty()), kUsage,
           "--alpha and --centered belong to --optimizer rmsprop, not {}", options.optimizer);
  validate(settings);
  set_milestones(options);
  std::string warmup = options.warmup;
  if (!warmup.empty()) {
    const bool percent = warmup.back() == '%';
    const bool epochs = warmup.size() > 2 && warmup.compare(warmup.size() - 2, 2, "ep") == 0;
    if (percent) warmup.pop_back();
    if (epochs) warmup.resize(warmup.size() - 2);
    char* end = nullptr;
    const double value = std::strtod(warmup.c_str(), &end);
    PT_CHECK(end && *end == 0 && std::isfinite(value) && value >= 0, kUsage,
             "--warmup takes steps, a percentage or epochs (500, 5%, 1ep), not \"{}\"",
             printable(options.warmup));
    run.optimization.warmup =
        percent  ? value / 100
        : epochs ? value / static_cast<double>(std::max<std::int64_t>(1, run.optimization.epochs))
                 : value;
    run.optimization.warmup_is_fraction = percent || epochs;
  }
}

}  // namespace pipetrain
