// Options of a run: checkpoints, where results go, what is printed.
#include <algorithm>

#include "cli/options/option_table.h"
#include "train/saving.h"

namespace pipetrain {

void describe_checkpoints(Table& table, Options& options) {
  table.group = "Checkpoints";
  table.numbers = Numbers::kNone;
  OptionSpec& resume = table.add("--resume", "",
                                 "go on from a checkpoint: the newest of the run; auto: start "
                                 "afresh where there is none; PATH: this one",
                                 "train");
  resume.optional_value = "auto|PATH";
  resume.path = PathUse::kRead;
  resume.in_short_help = true;
  resume.set = [&options](const std::string& v) {
    options.resume = v == "true" ? "latest" : v == "false" ? "" : v;
  };
  resume.get = [&options] { return options.resume; };
  Table resume_settings;
  resume_settings.numbers = table.numbers;
  resume_settings
      .flag("--resume-weights-only", options.resume_weights_only,
            "a new run that begins with the weights", "train")
      .key = "weights-only";
  Table::nest(resume, std::move(resume_settings));
  OptionSpec& every =
      table.add("--save-every", "N|Nep|Nmin|never",
                "steps, epochs or time between checkpoints; with --data after an epoch, once a "
                "minute at most, and at the end",
                "train");
  every.aliases = {"--save-interval", "--save-steps"};
  every.set = [&options](const std::string& v) {
    SaveEvery::parse(v);
    options.save_every = v;
  };
  every.get = [&options] { return options.save_every; };
  OptionSpec& keep =
      table.add("--keep", "N|all", "checkpoints, the newest ones; the best stays too", "train");
  keep.aliases = {"--keep-last"};
  keep.set = [&options](const std::string& v) {
    options.keep =
        v == "all"
            ? 0
            : static_cast<int>(std::min<std::int64_t>(1 << 30, parse_integer("--keep", v, 2)));
  };
  keep.get = [&options] { return options.keep == 0 ? "all" : fmt::format("{}", options.keep); };
  table.choice("--save", options.save, {"best", "last"},
               "which model --output and RUN/trained.onnx are where there is validation; the other "
               "one is RUN/last.onnx or RUN/best.onnx",
               "train");
  table.choice("--on-checkpoint-error", options.on_checkpoint_error, {"warn", "fail"},
               "when one cannot be written; warn: the third in a row ends the run", "train");
  OptionSpec& time = table.add("--max-time", "TIME", "save and end after 90, 30min, 2h", "train")
                         .decides(Numbers::kUnrecorded);
  time.set = [&options](const std::string& v) {
    parse_duration("--max-time", v);
    options.max_time = v;
  };
  time.get = [&options] { return options.max_time; };
  table.path("--status-file", options.status_file, PathUse::kWrite, "FILE",
             "where the run stands, as JSON, replaced once a second", "train");
  table.path("--from", options.from, PathUse::kRead, "CHECKPOINT",
             "a checkpoint, or a run's folder: its newest one, also while it trains; of data make "
             "bytes: a text or a folder of texts",
             "export data");
}

void describe_output(Table& table, Options& options) {
  table.group = "Output";
  table.numbers = Numbers::kNone;
  table
      .path("--output", options.output, PathUse::kWrite, "FILE|-",
            "trained model; RUN/trained.onnx",
            "train plan profile tune new schedule doctor export report predict data")
      .aliases = {"-o"};
  table.specs.back().in_short_help = true;
  table.path("--run-dir", options.run_dir, PathUse::kWrite, "DIR",
             "folder of the run; runs/<model>-<date>-<time>", "train");
  table.flag("--overwrite", options.overwrite, "allow files that exist to be replaced",
             "train new export data");
  table.integer("--log-every", options.log_every, 1, "steps between two lines", "train").aliases = {
      "--log-interval"};
  table.path("--metrics", options.metrics, PathUse::kWrite, "FILE|-",
             "JSON Lines; RUN/events.jsonl", "train");
  table.flag("--json", options.json, "print one JSON document",
             "inspect profile plan simulate eval verify tune schedule trace doctor");
  table.flag("--tensorboard", options.tensorboard, "also write RUN/tb for TensorBoard", "train");
  OptionSpec& trace = table.path("--trace", options.trace, PathUse::kWrite, "FILE",
                                 "a timeline of some steps, for ui.perfetto.dev", "train");
  Table trace_settings;
  trace_settings.numbers = table.numbers;
  trace_settings
      .text("--trace-steps", options.trace_steps, "A-B", "which; the first three warm ones",
            "train")
      .key = "steps";
  Table::nest(trace, std::move(trace_settings));
}

void describe_general(Table& table, Options& options) {
  table.group = "General";
  table.numbers = Numbers::kNone;
  OptionSpec& config =
      table.add("--config", "FILE|-",
                "options from a file, by their names without dashes; the command line wins", "*");
  config.aliases = {"-c"};
  config.environment = "PIPETRAIN_CONFIG";
  config.path = PathUse::kRead;
  config.repeatable = true;
  config.set = [&options](const std::string& v) { options.configs.push_back(v); };
  config.get = [&options] { return fmt::format("{}", fmt::join(options.configs, ",")); };
  OptionSpec& printed =
      table.add("--print-config", "", "print such a file for these options and end", "*");
  printed.optional_value = "all";
  printed.set = [&options](const std::string& v) {
    if (v != "true") check_choice("--print-config", v, {"all"});
    options.print_config = v == "all" ? "all" : "given";
  };
  printed.get = [&options] { return options.print_config; };
  table.flag("--dry-run", options.dry_run, "plan and check, do not train", "train").aliases = {
      "-n"};
  table.specs.back().in_short_help = true;
  table.flag("--quiet", options.quiet, "errors only", "*").aliases = {"-q"};
  table.flag("--verbose", options.verbose, "more messages", "*").aliases = {"-v"};
  table.choice("--color", options.color, {"auto", "always", "never"},
               "auto: on a terminal without NO_COLOR", "schedule");
  table.flag("--man", options.man, "the manual page, as roff", "help");
  table.flag("--markdown", options.markdown, "the reference of all commands, as Markdown", "help");
  table.flag("--help", options.help, "this", "*").aliases = {"-h"};
  table.flag("--version", options.version, "print the version", "*");
}

}  // namespace pipetrain
