#include "cli/options/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "cli/options/optimizer_help.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

/// A point or length of the run: "500" steps, "30%" of the run, "30ep" or "64000sa".
struct RunLength {
  double value = 0;
  enum class Unit { kSteps, kShare, kEpochs, kSamples } unit = Unit::kSteps;
};

RunLength parse_length(const std::string& option, const std::string& text) {
  RunLength out;
  std::string digits = text;
  const auto ends = [&](std::string_view suffix, RunLength::Unit unit) {
    if (!digits.ends_with(suffix)) return;
    digits.resize(digits.size() - suffix.size());
    out.unit = unit;
  };
  ends("%", RunLength::Unit::kShare);
  ends("ep", RunLength::Unit::kEpochs);
  ends("sa", RunLength::Unit::kSamples);
  const double scale = digits.ends_with('k') ? 1e3 : digits.ends_with('M') ? 1e6 : 1;
  if (scale > 1) digits.pop_back();
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  value *= scale;
  PT_CHECK(!digits.empty() && error == std::errc() && end == digits.data() + digits.size() &&
               std::isfinite(value) && value >= 0,
           kUsage,
           "{} takes steps, percentages, epochs or samples (500, 30%, 30ep, 64000sa), not \"{}\"",
           option, printable(text));
  PT_CHECK(out.unit != RunLength::Unit::kSteps || value == std::floor(value), kUsage,
           "{} takes whole steps, not \"{}\"", option, printable(text));
  out.value = out.unit == RunLength::Unit::kShare ? value / 100 : value;
  return out;
}

/// As steps or a share of the run. Epochs of a run in epochs are a share of it.
Milestone milestone_of(const std::string& option, const std::string& text,
                       const OptimizationConfig& optimization) {
  const RunLength length = parse_length(option, text);
  switch (length.unit) {
    case RunLength::Unit::kSteps:
      return {length.value, /*is_share=*/false};
    case RunLength::Unit::kShare:
      return {length.value, /*is_share=*/true};
    case RunLength::Unit::kSamples:
      return {std::round(length.value / static_cast<double>(optimization.batch_size)), false};
    case RunLength::Unit::kEpochs:
      break;
  }
  PT_CHECK(optimization.max_steps < 0 && optimization.epochs > 0, kUsage,
           "{} in epochs needs --epochs; give steps or percentages with --max-steps", option);
  return {length.value / static_cast<double>(optimization.epochs), /*is_share=*/true};
}

void set_rate_step(Options& options) {
  if (options.lr_step.empty()) return;
  OptimizationConfig& optimization = options.run.optimization;
  const RunLength length = parse_length("--lr-step", options.lr_step);
  PT_CHECK(length.unit != RunLength::Unit::kShare && length.value > 0, kUsage,
           "--lr-step takes steps, epochs or samples (500, 30ep, 64000sa), not \"{}\"",
           printable(options.lr_step));
  constexpr double kMost = 1e15;  // steps that a double still counts
  PT_CHECK(length.value < kMost, kUsage, "--lr-step takes less than {:g}, not {}", kMost,
           printable(options.lr_step));
  if (length.unit == RunLength::Unit::kEpochs) {
    optimization.rate_every_epochs = length.value;
    optimization.learning_rate.every_steps = 1;
  } else if (length.unit == RunLength::Unit::kSamples) {
    optimization.learning_rate.every_steps = std::max<std::int64_t>(
        1, std::llround(length.value / static_cast<double>(optimization.batch_size)));
  } else {
    optimization.learning_rate.every_steps = static_cast<std::int64_t>(length.value);
  }
}

void set_milestones(Options& options) {
  OptimizationConfig& optimization = options.run.optimization;
  for (const std::string& text : options.milestones) {
    optimization.learning_rate.milestones.push_back(
        milestone_of("--lr-milestones", text, optimization));
    PT_CHECK(optimization.learning_rate.milestones.back().value > 0, kUsage,
             "--lr-milestones must be after the start of the run, not at \"{}\"", printable(text));
  }
}

}  // namespace

void check_values(const Options& options) {
  const OptimizationConfig& optimization = options.run.optimization;
  const OptimizerRow& row = row_of(optimizer_named(options.optimizer));
  PT_CHECK((row.reads_centered || !optimization.optimizer.centered) &&
               (row.alpha || options.alpha.empty()),
           kUsage, "--alpha and --centered apply to --optimizer {}, not {}",
           names_of_readers(&OptimizerRow::reads_centered), options.optimizer);
  PT_CHECK(
      options.milestones.empty() || optimization.learning_rate.kind == LearningRateKind::kMultistep,
      kUsage, "--lr-milestones applies to --lr-schedule multistep, not {}",
      name_of(optimization.learning_rate.kind));
}

void resolve_values(Options& options) {
  RunConfig& run = options.run;
  const OptimizerKind kind = optimizer_named(options.optimizer);
  const bool nesterov = run.optimization.optimizer.nesterov;
  const bool centered = run.optimization.optimizer.centered;
  const double average_decay = run.optimization.optimizer.average_decay;
  run.optimization.optimizer = default_settings(kind);
  run.optimization.optimizer.nesterov = nesterov;
  run.optimization.optimizer.centered = centered;
  run.optimization.optimizer.average_decay = average_decay;
  const auto number = [](const std::string& text, double& field) {
    if (!text.empty()) std::from_chars(text.data(), text.data() + text.size(), field);
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
  validate(settings);
  set_milestones(options);
  set_rate_step(options);
  if (!options.warmup.empty()) {
    const Milestone end = milestone_of("--warmup", options.warmup, run.optimization);
    run.optimization.warmup = end.value;
    run.optimization.warmup_is_fraction = end.is_share;
  }
}

std::vector<std::string> unused_settings(const Options& options) {
  using Kind = LearningRateKind;
  const LearningRateSettings& rate = options.run.optimization.learning_rate;
  const LearningRateSettings by_default;
  const OptimizerSettings& optimizer = options.run.optimization.optimizer;
  const OptimizerRow& row = row_of(optimizer.kind);
  std::vector<std::string> out;
  const auto check = [&](bool is_given, bool is_used, const char* option, const char* whose,
                         std::string_view name) {
    if (is_given && !is_used)
      out.push_back(fmt::format("{} is not used by {} {}", option, whose, name));
  };
  const auto check_rate = [&](bool is_given, const char* option,
                              std::initializer_list<Kind> readers) {
    check(is_given, std::ranges::count(readers, rate.kind) > 0, option, "--lr-schedule",
          name_of(rate.kind));
  };
  check(rate.minimum != by_default.minimum, rate.kind != Kind::kConstant, "--min-lr",
        "--lr-schedule", name_of(rate.kind));
  check_rate(rate.gamma != by_default.gamma, "--lr-gamma",
             {Kind::kStep, Kind::kMultistep, Kind::kExponential});
  check_rate(!options.lr_step.empty(), "--lr-step", {Kind::kStep, Kind::kExponential});
  check_rate(rate.power != by_default.power, "--lr-power", {Kind::kPolynomial});
  check_rate(rate.decay_fraction != by_default.decay_fraction, "--lr-decay-fraction", {Kind::kWsd});
  const auto check_optimizer = [&](bool is_given, bool is_used, const char* option) {
    check(is_given, is_used, option, "--optimizer", row.name);
  };
  check_optimizer(!options.momentum.empty(), row.momentum.has_value(), "--momentum");
  check_optimizer(!options.beta1.empty(), row.beta1.has_value(), "--beta1");
  check_optimizer(!options.beta2.empty(), row.beta2.has_value(), "--beta2");
  check_optimizer(!options.epsilon.empty(), row.epsilon.has_value(), "--eps");
  check_optimizer(optimizer.nesterov, row.reads_nesterov, "--nesterov");
  const PipelineConfig& pipeline = options.run.pipeline;
  const PipelineConfig usual;
  const ScheduleDescription* schedule = find_schedule(pipeline.schedule);
  const auto check_schedule = [&](bool is_given, bool is_used, const char* option) {
    check(is_given, is_used, option, "--schedule", printable(pipeline.schedule));
  };
  check_schedule(pipeline.chunks != usual.chunks,
                 schedule && schedule->placement == Placement::kLoop, "--virtual-stages");
  check_schedule(pipeline.memory_units != usual.memory_units, schedule && schedule->takes_memory,
                 "--memory-units");
  check_schedule(pipeline.warm_up_tolerance != usual.warm_up_tolerance,
                 schedule && schedule->balances_warm_up, "--warm-up-tolerance");
  const ReplicaUpdates& updates = pipeline.replica_updates;
  check(updates.staleness >= 0, updates.mode == ReplicaMode::kAsync, "--staleness",
        "--replica-mode", updates.waits() ? "sync" : "backup");
  if (!options.trace_steps.empty() && options.trace.empty())
    out.push_back("--trace-steps has no effect without --trace FILE");
  return out;
}

}  // namespace pipetrain
