// Options of the optimization: how long, by which optimizer, with which learning rate.
#include "cli/options/optimizer_help.h"
#include "cli/options/option_table.h"
#include "train/metrics.h"
#include "train/saving.h"

namespace pipetrain {

namespace {

using Record = std::vector<Assignment>;

Record in_force(std::string name, double value) {
  return {{std::move(name), fmt::format("{}", value)}};
}

/// "conv*=0.1,fc*=10"
std::string rates_text(const std::vector<std::pair<std::string, double>>& rates,
                       const char* between) {
  std::vector<std::string> all;
  for (const auto& [glob, value] : rates) all.push_back(fmt::format("{}={}", glob, value));
  return fmt::format("{}", fmt::join(all, between));
}

std::string milestones_of(const LearningRateSettings& rate) {
  std::vector<std::string> all;
  for (const Milestone& milestone : rate.milestones)
    all.push_back(fmt::format("{}{}", milestone.value, milestone.is_share ? " of the run" : ""));
  return fmt::format("{}", fmt::join(all, ","));
}

void describe_optimizer(OptionSpec& optimizer, Options& options) {
  Table inner;
  OptimizerSettings& settings = options.run.optimization.optimizer;
  inner
      .late_real("--momentum", options.momentum,
                 "momentum; default: " + defaults_of(&OptimizerRow::momentum), kOptimizerCommands)
      .recorded_as([&settings] { return in_force("momentum", settings.momentum); });
  inner
      .flag("--nesterov", settings.nesterov,
            fmt::format("Nesterov momentum ({})", names_of_readers(&OptimizerRow::reads_nesterov)),
            kOptimizerCommands)
      .affects(ResultEffect::kRecorded);
  inner
      .late_real("--beta1", options.beta1,
                 "decay of the running mean of gradients, for lion the weight of that mean in the "
                 "step; default: " +
                     defaults_of(&OptimizerRow::beta1),
                 kOptimizerCommands)
      .recorded_as([&settings] { return in_force("beta1", settings.beta1); });
  inner
      .late_real(
          "--beta2", options.beta2,
          "decay of the running mean of squared gradients, for lion of gradients; default: " +
              defaults_of(&OptimizerRow::beta2),
          kOptimizerCommands)
      .recorded_as([&settings] { return in_force("beta2", settings.beta2); });
  inner
      .late_real("--eps", options.epsilon,
                 "added to the root that the step is divided by; default: " +
                     defaults_of(&OptimizerRow::epsilon),
                 kOptimizerCommands)
      .recorded_as([&settings] { return in_force("eps", settings.epsilon); });
  inner
      .late_real("--alpha", options.alpha,
                 "decay of the running mean of squared gradients; default: " +
                     defaults_of(&OptimizerRow::alpha),
                 kOptimizerCommands)
      .recorded_as([&settings] { return in_force("alpha", settings.alpha); });
  inner
      .flag("--centered", settings.centered,
            fmt::format("divide by an estimate of the standard deviation ({}); not with momentum",
                        names_of_readers(&OptimizerRow::reads_centered)),
            kOptimizerCommands)
      .affects(ResultEffect::kRecorded);
  for (OptionSpec& part : inner.specs) part.of_value = true;
  Table::nest(optimizer, std::move(inner));
}

void describe_rate_curve(OptionSpec& schedule, Options& options) {
  Table inner;
  OptimizationConfig& optimization = options.run.optimization;
  LearningRateSettings& rate = optimization.learning_rate;
  bool& by_time = optimization.rate_by_time;
  inner
      .choice_of<bool>("--lr-over", by_time, {{"steps", false}, {"time", true}},
                       "what the schedule spans: the steps of the run, or --max-time",
                       kTrainCommands)
      .recorded_as([&by_time] {
        return by_time ? Record{{"lr-over", "time"}} : Record{};
      })
      .key = "over";
  inner.real("--min-lr", rate.minimum, "minimum learning rate", kTrainCommands)
      .affects(ResultEffect::kRecorded)
      .key = "min";
  inner
      .real("--lr-gamma", rate.gamma, "decay factor of step, multistep, exponential",
            kTrainCommands)
      .affects(ResultEffect::kRecorded)
      .key = "gamma";
  inner
      .text("--lr-step", options.lr_step, "N|Nep|Nsa",
            "of step and exponential: steps, epochs or samples between decays", kTrainCommands)
      .recorded_as([&optimization] {
        const bool by_epochs = optimization.rate_every_epochs > 0;
        return Record{{"lr-step", by_epochs
                                      ? fmt::format("{} epochs", optimization.rate_every_epochs)
                                      : fmt::format("{}", optimization.learning_rate.every_steps)}};
      })
      .key = "every";
  inner
      .list("--lr-milestones", options.milestones, "N|P%|Nep|Nsa,…", "of multistep: when to decay",
            kTrainCommands)
      .recorded_as([&rate] {
        return Record{{"lr-milestones", milestones_of(rate)}};
      })
      .key = "at";
  inner.real("--lr-power", rate.power, "exponent of polynomial", kTrainCommands)
      .affects(ResultEffect::kRecorded)
      .key = "power";
  inner
      .real("--lr-decay-fraction", rate.decay_fraction,
            "of wsd: fraction of the run in the decay phase", kTrainCommands)
      .affects(ResultEffect::kRecorded)
      .key = "fall";
  for (OptionSpec& part : inner.specs) part.of_value = part.key != "over" && part.key != "min";
  Table::nest(schedule, std::move(inner));
}

/// What applies to some tensors, or to each of them.
void describe_tensors(Table& table, Options& options) {
  OptimizationConfig& optimization = options.run.optimization;
  OptionSpec& scale =
      table.add("--lr-scale", "GLOB=X", "learning rate factor of matching tensors", kTrainCommands)
          .recorded_as([&optimization] {
            return Record{{"lr-scale", rates_text(optimization.rate_scales, ",")}};
          });
  scale.repeatable = true;
  scale.set = [&optimization](const std::string& v) {
    const auto [glob, value] = split_pair("--lr-scale", v);
    optimization.rate_scales.emplace_back(glob, parse_real("--lr-scale", value));
    PT_CHECK(optimization.rate_scales.back().second >= 0, kUsage,
             "--lr-scale must not be negative, not {}; to keep tensors unchanged, use --freeze",
             printable(value));
  };
  scale.get = [&optimization] { return rates_text(optimization.rate_scales, " "); };
  OptionSpec& decay =
      table
          .add("--weight-decay", "X|GLOB=X",
               fmt::format("weight decay; default: {}; {} do not decay biases and norms (*=0.01: "
                           "decay all tensors); GLOB=X: of matching tensors",
                           defaults_of(&OptimizerRow::weight_decay), names_with_decoupled_decay()),
               kTrainCommands)
          .recorded_as([&optimization] {
            return Record{{"weight-decay", fmt::format("{}", optimization.optimizer.weight_decay)},
                          {"weight-decay of tensors", rates_text(optimization.decays, ",")}};
          });
  decay.repeatable = true;
  decay.set = [&options, &optimization](const std::string& v) {
    if (v.find('=') == std::string::npos) {
      options.weight_decay = fmt::format("{}", parse_real("--weight-decay", v));
      return;
    }
    const auto [glob, value] = split_pair("--weight-decay", v);
    const double factor = parse_real("--weight-decay", value);
    PT_CHECK(factor >= 0, kUsage, "--weight-decay must not be negative, not {}", printable(v));
    optimization.decays.emplace_back(glob, factor);
  };
  decay.get = [&options, &optimization] {
    const std::string tensors = rates_text(optimization.decays, " ");
    return options.weight_decay + (options.weight_decay.empty() || tensors.empty() ? "" : " ") +
           tensors;
  };
  OptionSpec& average = table
                            .real("--ema", optimization.optimizer.average_decay,
                                  "decay of an exponential moving average of the weights, which is "
                                  "validated and exported; 0: off",
                                  kTrainCommands)
                            .affects(ResultEffect::kRecorded);
  average.set = [&optimization](const std::string& v) {
    const double value = parse_real("--ema", v);
    PT_CHECK(value >= 0 && value < 1, kUsage, "--ema takes a decay from 0 to below 1, not {}",
             printable(v));
    optimization.optimizer.average_decay = value;
  };
}

void describe_validation(Table& table, OptimizationConfig& optimization, std::string& save) {
  OptionSpec& validate =
      table.add("--val-every", "N|Nep|never", "steps or epochs between validations", "train")
          .affects(ResultEffect::kNone);
  validate.aliases = {"--eval-every"};
  validate.set = [&optimization](const std::string& v) {
    const SaveEvery every = SaveEvery::parse(v, "--val-every");
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
  OptionSpec& best = table
                         .add("--best-metric", "loss|accuracy|perplexity|r2|mae|f1|auc|miou|topK",
                              "validation metric that selects the best model", "train")
                         .affects(ResultEffect::kNone);
  best.set = [&optimization](const std::string& v) { optimization.best_metric = metric_named(v); };
  best.get = [&optimization] { return optimization.best_metric; };
  Table best_settings;
  best_settings.group = table.group;
  OptionSpec& patience =
      best_settings
          .integer("--patience", optimization.patience, 0,
                   "early stopping: validations without improvement before the run ends; 0: never",
                   "train")
          .affects(ResultEffect::kNone);
  patience.aliases = {"--early-stopping"};
  patience.key = "patience";
  best_settings
      .choice("--save", save, {"best", "last"},
              "which model is written with validation; the other one is RUN/last.onnx or "
              "RUN/best.onnx",
              "train")
      .affects(ResultEffect::kNone)
      .key = "save";
  Table::nest(best, std::move(best_settings));
}

/// How many steps there are, and of how many samples.
void describe_steps(Table& table, OptimizationConfig& optimization) {
  table
      .integer("--epochs", optimization.epochs, 0,
               "passes over the training data; without --data: 100 steps", "train")
      .affects(ResultEffect::kDerived)
      .in_short_help = true;
  table.integer("--max-steps", optimization.max_steps, 0, "steps, instead of --epochs", "train")
      .affects(ResultEffect::kDerived)
      .aliases = {"--max-iters"};
  OptionSpec& batch =
      table.integer("--batch-size", optimization.batch_size, 1, "samples per step", kRunCommands)
          .affects(ResultEffect::kDerived);
  batch.aliases = {"-b", "--global-batch-size"};
  batch.in_short_help = true;
  Table batch_settings;
  batch_settings
      .flag("--drop-last", optimization.drop_last,
            "drop the last batch of an epoch if it is smaller", kPlanCommands)
      .affects(ResultEffect::kDerived);
  Table::nest(batch, std::move(batch_settings));
}

}  // namespace

void describe_optimization(Table& table, Options& options) {
  table.group = "Optimization";
  OptimizationConfig& optimization = options.run.optimization;
  describe_steps(table, optimization);
  OptionSpec& optimizer = table
                              .choice("--optimizer", options.optimizer, optimizer_names(),
                                      optimizer_help(), kOptimizerCommands)
                              .affects(ResultEffect::kDerived);
  optimizer.in_short_help = true;
  describe_optimizer(optimizer, options);
  table
      .late_real("--lr", options.lr,
                 "learning rate; find: print where the loss falls fastest, and train nothing; "
                 "default: " +
                     defaults_of(&OptimizerRow::learning_rate),
                 kTrainCommands)
      .recorded_as([&optimization] { return in_force("lr", optimization.learning_rate.peak); })
      .aliases = {"--learning-rate"};
  OptionSpec& rate = table.specs.back();
  rate.value = "X|find";
  rate.in_short_help = true;
  rate.set = [&options](const std::string& v) {
    if (v == "find") {
      options.lr = v;
      return;
    }
    const double peak = parse_real("--lr", v);
    PT_CHECK(peak >= 0, kUsage, "--lr must not be negative, not {}", printable(v));
    options.lr = fmt::format("{}", peak);
  };
  describe_tensors(table, options);
  OptionSpec& schedule =
      table
          .add("--lr-schedule", fmt::format("{}", fmt::join(learning_rate_names(), "|")),
               "learning rate schedule over the whole run", kTrainCommands)
          .affects(ResultEffect::kRecorded);
  schedule.aliases = {"--lr-scheduler"};
  schedule.set = [&optimization](const std::string& v) {
    const std::string name = long_learning_rate_name(v);
    check_choice("--lr-schedule", name, learning_rate_names());
    optimization.learning_rate.kind = learning_rate_named(name);
  };
  schedule.get = [&optimization] { return std::string(name_of(optimization.learning_rate.kind)); };
  describe_rate_curve(schedule, options);
  table
      .text("--warmup", options.warmup, "N|P%|Nep|Nsa",
            "learning rate warm-up: steps, percentage of the run, epochs or samples",
            kTrainCommands)
      .recorded_as([&optimization] {
        return Record{
            {"warmup", fmt::format("{}{}", optimization.warmup,
                                   optimization.warmup_is_fraction ? " of the run" : " steps")}};
      })
      .aliases = {"--warmup-steps"};
  OptionSpec& clip = table
                         .real("--clip-norm", optimization.clip_norm,
                               "clip gradients to this global norm; 0: off", kTrainCommands)
                         .affects(ResultEffect::kRecorded);
  clip.aliases = {"--max-grad-norm", "--grad-clip"};
  clip.set = [&optimization](const std::string& v) {
    optimization.clip_norm = parse_real("--clip-norm", v);
    PT_CHECK(optimization.clip_norm >= 0, kUsage, "--clip-norm must not be negative, not {}",
             printable(v));
  };
  table
      .integer("--seed", optimization.seed, 0,
               "seed of sample order, dropout masks, validation split and initial weights",
               "train profile plan simulate verify new data generate")
      .affects(ResultEffect::kRecorded)
      .means("new", "seed of the weights")
      .means("generate", "seed of the tokens that are chosen at random")
      .means("data", "seed of the samples of data make, and of --val-split")
      .means("simulate", "seed of --jitter")
      .means("profile plan verify", "seed of synthetic samples and dropout masks")
      .in_short_help = true;
  describe_validation(table, optimization, options.save);
}

}  // namespace pipetrain
