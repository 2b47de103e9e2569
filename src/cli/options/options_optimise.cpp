// Options of the optimization: how long, by which optimizer, with which learning rate.
#include "cli/options/option_table.h"
#include "cli/options/optimizer_help.h"
#include "train/metrics.h"
#include "train/saving.h"

namespace pipetrain {

namespace {

void describe_optimizer(OptionSpec& optimizer, Options& options) {
  Table inner;
  OptimizerSettings& settings = options.run.optimization.optimizer;
  inner.late_real("--momentum", options.momentum, readers_of(&OptimizerRow::momentum),
                  kTrainCommands);
  inner.flag("--nesterov", settings.nesterov, readers_of(&OptimizerRow::reads_nesterov),
             kTrainCommands);
  inner.late_real("--beta1", options.beta1, readers_of(&OptimizerRow::beta1), kTrainCommands);
  inner.late_real("--beta2", options.beta2, readers_of(&OptimizerRow::beta2), kTrainCommands);
  inner.late_real("--eps", options.epsilon, readers_of(&OptimizerRow::epsilon), kTrainCommands);
  inner.late_real("--alpha", options.alpha,
                  readers_of(&OptimizerRow::alpha, "decay of the mean square"), kTrainCommands);
  inner.flag("--centered", settings.centered,
             readers_of(&OptimizerRow::reads_centered) + ": divide by the deviation from the mean",
             kTrainCommands);
  Table::nest(optimizer, std::move(inner));
}

void describe_rate_curve(OptionSpec& schedule, Options& options) {
  Table inner;
  LearningRateSettings& rate = options.run.optimization.learning_rate;
  inner
      .choice_of<bool>("--lr-over", options.run.optimization.rate_by_time,
                       {{"steps", false}, {"time", true}},
                       "what the curve spans: the steps of the run, or --max-time", kTrainCommands)
      .key = "over";
  inner.real("--min-lr", rate.minimum, "learning rate that it never falls below", kTrainCommands)
      .key = "min";
  inner.real("--lr-gamma", rate.gamma, "factor of step, multistep, exponential", kTrainCommands)
      .key = "gamma";
  inner
      .text("--lr-step", options.lr_step, "N|Nep|Nsa",
            "of step and exponential: steps, epochs or samples for one factor", kTrainCommands)
      .key = "every";
  inner
      .list("--lr-milestones", options.milestones, "N|P%|Nep|Nsa,…",
            "of multistep: when to apply the factor", kTrainCommands)
      .key = "at";
  inner.real("--lr-power", rate.power, "of polynomial", kTrainCommands).key = "power";
  inner
      .real("--lr-decay-fraction", rate.decay_fraction,
            "of wsd: share of the run in which it falls", kTrainCommands)
      .key = "fall";
  Table::nest(schedule, std::move(inner));
}

}  // namespace

void describe_optimization(Table& table, Options& options) {
  table.group = "Optimise";
  OptimizationConfig& optimization = options.run.optimization;
  table.integer("--epochs", optimization.epochs, 0, "passes over the training data", "train")
      .in_short_help = true;
  table.integer("--max-steps", optimization.max_steps, 0, "updates, instead of --epochs", "train")
      .aliases = {"--max-iters"};
  table.integer("--batch-size", optimization.batch_size, 1, "samples per update", kRunCommands)
      .aliases = {"-b", "--global-batch-size"};
  table.specs.back().in_short_help = true;
  OptionSpec& optimizer = table.choice("--optimizer", options.optimizer, optimizer_names(),
                                       optimizer_help(), kTrainCommands);
  optimizer.in_short_help = true;
  describe_optimizer(optimizer, options);
  table
      .late_real("--lr", options.lr, "learning rate; " + defaults_of(&OptimizerRow::learning_rate),
                 kTrainCommands)
      .aliases = {"--learning-rate"};
  table.specs.back().in_short_help = true;
  const auto rate_text = [](const std::vector<std::pair<std::string, double>>& rates) {
    std::vector<std::string> all;
    for (const auto& [glob, value] : rates) all.push_back(fmt::format("{}={}", glob, value));
    return fmt::format("{}", fmt::join(all, " "));
  };
  OptionSpec& scale = table.add("--lr-scale", "GLOB=X",
                                "factor of the learning rate of matching tensors", kTrainCommands);
  scale.repeatable = true;
  scale.set = [&optimization](const std::string& v) {
    const auto [glob, value] = split_pair("--lr-scale", v);
    optimization.rate_scales.emplace_back(glob, parse_real("--lr-scale", value));
    PT_CHECK(optimization.rate_scales.back().second >= 0, kUsage,
             "--lr-scale must not be negative, not {}; to leave tensors alone: --freeze",
             printable(value));
  };
  scale.get = [&optimization, rate_text] { return rate_text(optimization.rate_scales); };
  OptionSpec& decay = table.add(
      "--weight-decay", "X|GLOB=X",
      fmt::format("{}; {} leave biases and norms alone (*=0.01: all tensors); of matching tensors",
                  defaults_of(&OptimizerRow::weight_decay), names_with_decoupled_decay()),
      kTrainCommands);
  decay.repeatable = true;
  decay.set = [&options, &optimization](const std::string& v) {
    if (v.find('=') == std::string::npos) {
      options.weight_decay = fmt::format("{}", parse_real("--weight-decay", v));
      return;
    }
    const auto [glob, value] = split_pair("--weight-decay", v);
    optimization.decays.emplace_back(glob, parse_real("--weight-decay", value));
  };
  decay.get = [&options, &optimization, rate_text] {
    const std::string tensors = rate_text(optimization.decays);
    return options.weight_decay + (options.weight_decay.empty() || tensors.empty() ? "" : " ") +
           tensors;
  };
  OptionSpec& average =
      table.real("--ema", optimization.optimizer.average_decay,
                 "decay of a moving average of the weights, which is evaluated and written; 0: off",
                 kTrainCommands);
  average.set = [&optimization](const std::string& v) {
    const double value = parse_real("--ema", v);
    PT_CHECK(value >= 0 && value < 1, kUsage, "--ema takes a decay from 0 to below 1, not {}",
             printable(v));
    optimization.optimizer.average_decay = value;
  };
  OptionSpec& schedule = table.add("--lr-schedule",
                                   "constant|cosine|linear|step|multistep|exponential|polynomial|"
                                   "inverse-sqrt|wsd|onecycle",
                                   "of the learning rate over the whole run", kTrainCommands);
  schedule.aliases = {"--lr-scheduler"};
  schedule.set = [&optimization](const std::string& v) {
    optimization.learning_rate.kind = learning_rate_named(v);
  };
  schedule.get = [&optimization] { return std::string(name_of(optimization.learning_rate.kind)); };
  describe_rate_curve(schedule, options);
  table
      .text("--warmup", options.warmup, "N|P%|Nep|Nsa",
            "of the learning rate: steps, share of the run, epochs, samples", kTrainCommands)
      .aliases = {"--warmup-steps"};
  table
      .real("--clip-norm", optimization.clip_norm, "largest global gradient norm; 0: off",
            kTrainCommands)
      .aliases = {"--max-grad-norm", "--grad-clip"};
  table
      .integer("--seed", optimization.seed, 0, "of order, masks, held-out samples and new weights",
               "train profile plan simulate eval verify new data")
      .in_short_help = true;
  OptionSpec& validate =
      table.add("--val-every", "N|Nep|never", "steps or epochs between validations", "train");
  validate.aliases = {"--eval-every"};
  validate.set = [&optimization](const std::string& v) {
    const SaveEvery every = SaveEvery::parse(v);
    PT_CHECK(every.unit != SaveEvery::Unit::kSeconds, kUsage,
             "--val-every takes steps or epochs (500, 2ep, never), not {}", printable(v));
    optimization.evaluate_every = every.unit == SaveEvery::Unit::kNever ? 0 : every.value;
    optimization.evaluate_by_steps = every.unit == SaveEvery::Unit::kSteps;
  };
  validate.get = [&optimization] {
    return optimization.evaluate_every == 0
               ? std::string("never")
               : fmt::format("{}{}", optimization.evaluate_every,
                             optimization.evaluate_by_steps ? "" : "ep");
  };
  table
      .integer("--patience", optimization.patience, 0,
               "validations without a better one that end the run; 0: never", "train")
      .aliases = {"--early-stopping"};
  OptionSpec& best = table.add("--best-metric", "loss|accuracy|perplexity|r2|topK",
                               "of validations: which model is the best", "train");
  best.set = [&optimization](const std::string& v) { optimization.best_metric = metric_named(v); };
  best.get = [&optimization] { return optimization.best_metric; };
  table.choice_of<OnNonfinite>("--on-nan", optimization.on_nonfinite,
                               {{"stop", OnNonfinite::kStop},
                                {"skip", OnNonfinite::kSkip},
                                {"ignore", OnNonfinite::kIgnore}},
                               "what to do when the loss is not finite; skip: leave out steps of "
                               "which some gradient is not",
                               kTrainCommands);
}

}  // namespace pipetrain
