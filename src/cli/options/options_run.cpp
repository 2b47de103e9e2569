// Options of a run: checkpoints, where results go, what is printed.
#include <algorithm>

#include "cli/options/option_table.h"
#include "train/saving.h"

namespace pipetrain {

namespace {

/// What happens at errors that need not end the run. The parts keep the groups of their topics.
void describe_errors(Table& table, Options& options) {
  OptionSpec& errors = table.add("--on-error", "KEY=VALUE,…",
                                 "what to do about errors that need not end a run", kDataCommands);
  errors.repeatable = true;
  Table kinds;
  kinds.group = "Data";
  kinds
      .choice_of<BadSample>("--on-bad-sample", options.run.data.bind.on_bad_sample,
                            {{"error", BadSample::kError}, {"skip", BadSample::kSkip}},
                            "stop at an invalid sample, or skip it", kDataCommands)
      .affects(ResultEffect::kContent)
      .key = "bad-sample";
  kinds.group = "Optimization";
  kinds
      .choice_of<OnNonfinite>(
          "--on-nan", options.run.optimization.on_nonfinite,
          {{"stop", OnNonfinite::kStop},
           {"skip", OnNonfinite::kSkip},
           {"ignore", OnNonfinite::kIgnore}},
          "what to do when the loss is not finite; skip: skip steps whose gradients are not finite",
          kPlanCommands)
      .affects(ResultEffect::kUnrecorded)
      .key = "nan";
  kinds.group = "Checkpoints";
  kinds
      .choice("--on-checkpoint-error", options.on_checkpoint_error, {"warn", "fail"},
              "when a checkpoint cannot be written; warn: continue, but stop after the third "
              "failure in a row",
              "train")
      .affects(ResultEffect::kNone)
      .key = "checkpoint";
  Table::nest(errors, std::move(kinds));
}

/// Errors, restarts, and checks of what the machine computes.
void describe_faults(Table& table, Options& options) {
  describe_errors(table, options);
  table.integer("--restarts", options.restarts, 0,
                "restart training after a crash, a kill or a stall, from a copy of the newest step "
                "in memory; stop after N restarts in a row without progress; 0: no restarts",
                "train");
  table.integer("--verify-every", options.verify_every, 0,
                "compute every Nth step twice and stop if a bit differs; 0: never", "train");
}

}  // namespace

void describe_checkpoints(Table& table, Options& options) {
  table.group = "Checkpoints";
  table.effect = ResultEffect::kNone;
  OptionSpec& resume =
      table.add("--resume", "",
                "resume from the newest checkpoint of --run-dir, or of runs/latest; "
                "auto: start a new run if there is none; PATH: resume from this one",
                "train");
  resume.optional_value = "auto|PATH";
  resume.path = PathUse::kRead;
  resume.in_short_help = true;
  resume.set = [&options](const std::string& v) {
    options.resume = v == "true" ? "latest" : v == "false" ? "" : v;
  };
  resume.get = [&options] { return options.resume; };
  Table resume_settings;
  resume_settings.effect = table.effect;
  resume_settings
      .flag("--resume-weights-only", options.resume_weights_only,
            "start a new run from the weights", "train")
      .key = "weights-only";
  Table::nest(resume, std::move(resume_settings));
  OptionSpec& every = table.add("--save-every", "N|Nep|Nmin|never",
                                "steps, epochs or time between checkpoints; default with --data: "
                                "after each epoch, at most once a minute, and at the end",
                                "train");
  every.aliases = {"--save-interval", "--save-steps"};
  every.set = [&options](const std::string& v) {
    SaveEvery::parse(v);
    options.save_every = v;
  };
  every.get = [&options] { return options.save_every; };
  Table every_settings;
  every_settings.group = table.group;
  every_settings.effect = table.effect;
  OptionSpec& keep = every_settings.add(
      "--keep", "N|all", "number of newest checkpoints to keep, from 2, besides the best", "train");
  keep.aliases = {"--keep-last"};
  keep.key = "keep";
  keep.set = [&options](const std::string& v) {
    options.keep =
        v == "all"
            ? 0
            : static_cast<int>(std::min<std::int64_t>(1 << 30, parse_integer("--keep", v, 2)));
  };
  keep.get = [&options] { return options.keep == 0 ? "all" : fmt::format("{}", options.keep); };
  Table::nest(every, std::move(every_settings));
  OptionSpec& time =
      table.add("--max-time", "TIME", "save and stop after this time: 90, 30min, 2h", "train")
          .affects(ResultEffect::kUnrecorded);
  time.set = [&options](const std::string& v) {
    parse_duration("--max-time", v);
    options.max_time = v;
  };
  time.get = [&options] { return options.max_time; };
  table.path("--status-file", options.status_file, PathUse::kWrite, "FILE",
             "write the progress as JSON, once a second", "train");
  describe_faults(table, options);
  table
      .path("--from", options.from, PathUse::kRead, "CHECKPOINT",
            "a checkpoint, or a run folder: its newest checkpoint, even while it trains",
            "export data")
      .means("data", "for make bytes: a text file, or a folder of text files");
}

void describe_output(Table& table, Options& options) {
  table.group = "Output";
  table.effect = ResultEffect::kNone;
  table
      .path("--output", options.output, PathUse::kWrite, "FILE|-",
            "trained model; default: RUN/trained.onnx",
            "train plan profile tune new schedule doctor export report predict data")
      .means("plan", "the plan, as JSON")
      .means("profile", "the profile, as JSON")
      .means("tune", "the configuration; default: <model>.tuned.toml")
      .means("new", "the model; default: NAME.onnx")
      .means("schedule", "the schedule, as text")
      .means("doctor", "where --measure writes; default: the file that the planner reads")
      .means("export", "the model")
      .means("report", "the page; default: RUN/report.html, of several runs comparison.html")
      .means("predict", "the outputs; default: standard output")
      .means("data", "the data set, as npz, CSV or tokens")
      .aliases = {"-o"};
  table.specs.back().in_short_help = true;
  table
      .path("--run-dir", options.run_dir, PathUse::kWrite, "DIR",
            "run folder; default: runs/<model>-<date>-<time>", "train")
      .aliases = {"--output-dir"};
  table.flag("--overwrite", options.overwrite,
             "replace existing files; train: also delete the checkpoints in --run-dir",
             "train new export data");
  table
      .automatic("--log-every", options.log_every,
                 "steps between log lines; auto: one a second at most, fewer in long runs", "train")
      .aliases = {"--log-interval"};
  table.path("--metrics", options.metrics, PathUse::kWrite, "FILE|-",
             "metrics as JSON Lines; default: RUN/events.jsonl, which report reads", "train");
  table.flag("--json", options.json, "print JSON",
             "inspect profile plan simulate eval verify tune schedule trace doctor generate");
  OptionSpec& log_to =
      table.list("--log-to", options.log_to, "tensorboard[:DIR]|mlflow:DIR",
                 "also log to TensorBoard (RUN/tb), or to an MLflow file store", "train");
  log_to.words = {"tensorboard", "mlflow:mlruns"};
  log_to.aliases = {"--log-dir"};
  log_to.path = PathUse::kWrite;
  log_to.set = [&options](const std::string& v) {
    if (v == "none") return options.log_to.clear();
    PT_CHECK(v == "tensorboard" || (v.starts_with("tensorboard:") && v.size() > 12) ||
                 (v.starts_with("mlflow:") && v.size() > 7),
             kUsage, "--log-to takes tensorboard or mlflow:DIR, not \"{}\"", printable(v));
    if (std::ranges::count(options.log_to, v) == 0) options.log_to.push_back(v);
  };
  OptionSpec& trace = table.path("--trace", options.trace, PathUse::kWrite, "FILE",
                                 "write a timeline of some steps, for ui.perfetto.dev", "train");
  trace.completes({}, {"json"});
  Table trace_settings;
  trace_settings.effect = table.effect;
  trace_settings
      .text("--trace-steps", options.trace_steps, "A-B",
            "steps to trace; default: three after warm-up; of an asynchronous schedule always "
            "the first epoch",
            "train")
      .key = "steps";
  Table::nest(trace, std::move(trace_settings));
}

void describe_general(Table& table, Options& options) {
  table.group = "General";
  table.effect = ResultEffect::kNone;
  OptionSpec& config = table.add("--config", "FILE|-",
                                 "read options from a file, where they are named without the "
                                 "leading dashes (batch-size = 64); "
                                 "the command line wins",
                                 "*");
  config.aliases = {"-c"};
  config.environment = "PIPETRAIN_CONFIG";
  config.path = PathUse::kRead;
  config.completes({}, {"toml", "json"});
  config.repeatable = true;
  config.set = [&options](const std::string& v) { options.configs.push_back(v); };
  config.get = [&options] { return fmt::format("{}", fmt::join(options.configs, ",")); };
  OptionSpec& printed =
      table.add("--print-config", "", "print these options as a configuration file and exit", "*");
  printed.optional_value = "all";
  printed.set = [&options](const std::string& v) {
    if (v != "true") check_choice("--print-config", v, {"all"});
    options.print_config = v == "all" ? "all" : "given";
  };
  printed.get = [&options] { return options.print_config; };
  table.flag("--dry-run", options.dry_run, "plan and check, do not train", "train").aliases = {
      "-n"};
  table.specs.back().in_short_help = true;
  table.flag("--quiet", options.quiet, "print errors only", "*").aliases = {"-q"};
  table.flag("--verbose", options.verbose, "print more messages", "*").aliases = {"-v"};
  table.choice("--color", options.color, {"auto", "always", "never"},
               "colored output; auto: on a terminal, unless NO_COLOR is set", "schedule");
  table.flag("--man", options.man, "print the manual page (roff)", "help");
  table.flag("--markdown", options.markdown, "print the reference of all commands as Markdown",
             "help");
  table.flag("--help", options.help, "print this help", "*").aliases = {"-h"};
  table.flag("--version", options.version, "print the version", "*");
}

}  // namespace pipetrain
