// Options of the optimization: how long, by which optimizer, with which learning rate.
#include "cli/option_table.h"

namespace pipetrain {

namespace {

void describe_optimizer(OptionSpec& optimizer, Options& options) {
  Table inner;
  OptimizerSettings& settings = options.run.optimization.optimizer;
  inner.late_real("--momentum", options.momentum, "of sgd, lars 0.9, of rmsprop 0", kTrainCommands);
  inner.flag("--nesterov", settings.nesterov, "of sgd", kTrainCommands);
  inner.late_real("--beta1", options.beta1, "of adam, adamw, lamb, lion; 0.9", kTrainCommands);
  inner.late_real("--beta2", options.beta2, "of adam, adamw, lamb 0.999, lion 0.99",
                  kTrainCommands);
  inner.late_real("--eps", options.epsilon,
                  "of adam, adamw, rmsprop 1e-8, adagrad 1e-10, lamb 1e-6", kTrainCommands);
  inner.late_real("--alpha", options.alpha, "of rmsprop: decay of the mean square; 0.99",
                  kTrainCommands);
  inner.flag("--centered", settings.centered, "of rmsprop: divide by the deviation from the mean",
             kTrainCommands);
  Table::nest(optimizer, std::move(inner));
}

void describe_rate_curve(OptionSpec& schedule, Options& options) {
  Table inner;
  LearningRateSettings& rate = options.run.optimization.learning_rate;
  inner.real("--min-lr", rate.minimum, "learning rate that it never falls below", kTrainCommands)
      .key = "min";
  inner.real("--lr-gamma", rate.gamma, "factor of step, multistep, exponential", kTrainCommands)
      .key = "gamma";
  inner
      .integer("--lr-step", rate.every_steps, 1, "of step and exponential: steps for one factor",
               kTrainCommands)
      .key = "every";
  inner
      .list("--lr-milestones", options.milestones, "N|P%|Nep,…",
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
  OptionSpec& optimizer = table.choice(
      "--optimizer", options.optimizer,
      {"adamw", "adam", "sgd", "rmsprop", "adagrad", "lamb", "lars", "lion"},
      "formulas and defaults are PyTorch's; lamb, lars, lion: the papers'", kTrainCommands);
  optimizer.in_short_help = true;
  describe_optimizer(optimizer, options);
  table
      .late_real("--lr", options.lr,
                 "learning rate; adam, adamw, lamb 1e-3, lion 1e-4, lars 1, else 1e-2",
                 kTrainCommands)
      .aliases = {"--learning-rate"};
  table.specs.back().in_short_help = true;
  table.late_real("--weight-decay", options.weight_decay, "adamw, lamb 0.01, lars 5e-4, else 0",
                  kTrainCommands);
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
      .text("--warmup", options.warmup, "N|P%|Nep",
            "of the learning rate: steps, share of the run, epochs", kTrainCommands)
      .aliases = {"--warmup-steps"};
  table
      .real("--clip-norm", optimization.clip_norm, "largest global gradient norm; 0: off",
            kTrainCommands)
      .aliases = {"--max-grad-norm", "--grad-clip"};
  table
      .integer("--seed", optimization.seed, 0, "of order, masks, held-out samples and new weights",
               "train profile plan simulate eval verify new data")
      .in_short_help = true;
  table.choice_of<bool>("--on-nan", optimization.stop_on_nonfinite,
                        {{"stop", true}, {"ignore", false}},
                        "what to do when the loss is not finite", kTrainCommands);
}

}  // namespace pipetrain
