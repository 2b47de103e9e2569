// The values of all options, as plain data. Every option is defined once, in describe_options()
// (option_table.cpp), which the parser, the help, the manual page, the completions, configuration
// files and checkpoints all use.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/config.h"

namespace pipetrain {

/// An option's own name and a value for it. A value that begins with a colon sets parts only.
using Assignment = std::pair<std::string, std::string>;

struct Options {
  RunConfig run;
  // Options whose defaults depend on others, set by resolve().
  std::string device = "auto";
  int gpus = 0;
  std::string optimizer = "adamw";
  std::string lr, lr_step, weight_decay, momentum, warmup, beta1, beta2, epsilon, alpha;
  std::vector<std::string> milestones;
  // Output
  std::string output;  // empty: RUN/trained.onnx; "-": standard output
  std::string run_dir;
  bool overwrite = false;
  std::string metrics;  // empty: RUN/events.jsonl; "-": standard output
  int log_every = 0;    // 0: by the clock
  bool json = false;
  bool dry_run = false;
  bool quiet = false, verbose = false;
  bool help = false, version = false;
  // Checkpoints
  std::string resume;  // empty: no; "latest", "auto" or a path
  bool resume_weights_only = false;
  std::string save_every;  // empty: every epoch of real data
  int keep = 3;
  std::string save = "best";  // which model is written where there is validation
  std::string on_checkpoint_error = "warn";
  std::string max_time, status_file;
  int restarts = 0;      // in a row without progress; 0: training is not restarted
  int verify_every = 0;  // steps; 0: never
  std::string from;      // export: a checkpoint
  // Other commands
  bool show_params = false, show_chain = false, show_layers = false, show_graph = false;
  std::string against;    // verify: the folder of a run
  std::string replay;     // verify: a run or a checkpoint
  std::string assertion;  // eval --assert 'accuracy>=0.97'
  std::string schedules = "gpipe,1f1b,pipedream";
  bool schedule_given = false;
  std::string svg, dot;  // plan, schedule: figures to write
  std::string trace, trace_steps;
  std::string follow, confusion, to;  // eval, predict
  int top_k = 0;
  std::string prompt;  // generate
  double temperature = -1, top_p = 1;
  std::int64_t max_tokens = 100;
  bool details = false;
  std::string init = "keep";
  std::int64_t num_classes = 0;
  std::string adapter;              // where to write the adapters of --lora
  std::vector<std::string> log_to;  // "tensorboard", "mlflow:DIR"
  // plan --pipedream-profile
  std::string pipedream_profile, compat, activation_compression;
  double bandwidth = 1e9;
  bool fewer_machines = false;
  // schedule, trace, report, doctor
  std::string times, latency, costs, csv, curves;
  int causes = 5;
  std::string budget = "60s";  // tune
  bool allow_numeric = false;
  double jitter = 0.05;
  bool measure = false;
  // launch
  std::string hosts, discover, commit_every = "auto";
  int least_hosts = 1, most_hosts = 0, max_restarts = 3;
  // new
  int image = 0, channels = 0, classes = 0, width = 0, depth = 0, heads = 0, vocab = 0, context = 0;
  std::string weights = "auto";
  int samples = 0;                     // data make
  std::vector<std::string> arguments;  // positional
  std::vector<std::string> configs;    // --config: files, the later ones win
  std::string print_config;            // empty: no; "given" or "all"
  std::string color = "auto";
  bool man = false, markdown = false;  // help: as which document
  /// Options and values as they were set, in order: by configuration files, the environment and
  /// this command line; and in all, with those of a checkpoint.
  std::vector<Assignment> given, settings;
};

/// Whether an option's value is a path, and whether it is read or written.
enum class PathUse { kNone, kRead, kWrite };

/// How an option affects the results of training, and so whether it may change on resume.
enum class ResultEffect : unsigned char {
  kUnclassified,  // not decided yet: a test refuses such an option of train
  kNone,          // no effect, or its effect is in the checkpoint
  kRecorded,      // checkpoints record it, and a change on resume is reported
  kDerived,       // the value that the run derives from it (resume.cpp) is recorded instead
  kContent,       // selects the model or the data, whose contents are compared
  kUnrecorded,    // it has an effect, but a change on resume is not reported
};

/// One option: how it is named, parsed and printed.
struct OptionSpec {
  std::string name;                  // "--batch-size"
  std::vector<std::string> aliases;  // "-b", "--global-batch-size"
  std::string group;                 // "Model", "Data", …
  std::string value;                 // "N"; empty: a switch
  std::string help;
  /// What it means to some commands where `help` does not fit: {"eval predict", "data"}.
  std::vector<std::pair<std::string, std::string>> help_of_commands;
  std::string commands;  // "train plan", or "*"
  bool in_short_help = false;
  std::function<void(const std::string&)> set;
  std::function<std::string()> get;  // what it is now: the default before parsing
  PathUse path = PathUse::kNone;
  std::function<bool(const std::string&)> names_file;  // of a value that may also be a name
  bool repeatable = false;
  /// For completion: words that a value may be besides keywords(), and how files' names may end.
  std::vector<std::string> words = {}, endings = {};
  std::string optional_value;  // of a switch: what may follow "="
  std::string environment;     // the variable that sets it if the command line does not
  /// Options that only apply together with this one: settings after a colon in its value,
  /// "--optimizer sgd:momentum=0.9", where `key` names them. "--momentum 0.9" means the same.
  std::vector<OptionSpec> parts;
  std::string key;        // of one with parts: a name for its own value, if it has one
  bool of_value = false;  // of a part: it makes sense with the value it was given for, no other
  ResultEffect effect = ResultEffect::kUnclassified;
  /// What a checkpoint records of it, by name; none: its name and get().
  std::function<std::vector<Assignment>()> record;

  OptionSpec& affects(ResultEffect what) {
    effect = what;
    return *this;
  }
  /// Recorded under other names and values: the resolved ones, where get() returns the given ones.
  OptionSpec& recorded_as(std::function<std::vector<Assignment>()> all) {
    effect = ResultEffect::kRecorded;
    record = std::move(all);
    return *this;
  }

  /// What it means to other commands than most.
  OptionSpec& means(std::string for_commands, std::string text) {
    help_of_commands.emplace_back(std::move(for_commands), std::move(text));
    return *this;
  }
  OptionSpec& completes(std::vector<std::string> with_words,
                        std::vector<std::string> with_endings = {}) {
    words = std::move(with_words);
    endings = std::move(with_endings);
    return *this;
  }

  bool is_switch() const { return value.empty(); }
  const std::string& help_for(const std::string& command) const;
  /// The keywords that a value may be, by its notation: "synthetic" in "PATH|synthetic".
  std::vector<std::string> keywords() const;
  /// A value in two parts: the option's own, and its settings from the colon on.
  std::pair<std::string, std::string> split_value(const std::string& text) const;
  bool applies_to(const std::string& command) const;
};

std::vector<OptionSpec> describe_options(Options& options);

/// The option of a setting that the code below names: "--lr" for "lr".
std::string option_that_sets(std::string_view setting);

/// A subcommand.
struct CommandSpec {
  std::string name;
  std::string arguments;  // what it takes besides options: "MODEL"
  std::string summary;
  int (*run)(Options&) = nullptr;
  bool computes = false;  // runs the CPU's kernels, or asks them what they can do
  /// For completion: words that arguments may be, and how files end; "*": all, "/": folders, "": no
  /// files.
  std::vector<std::string> words = {};
  std::string ending = {};
};
const std::vector<CommandSpec>& commands();

/// Error (kUsage) for an output of a command that is a folder and not a file, that another option
/// writes too, or that is one of its inputs, which would be lost. Outputs that only replace a file
/// with --overwrite may be inputs.
void check_outputs(const std::string& command, const Options& options);

/// Parses the arguments of one command: command line before environment before configuration files.
/// Error (kUsage) with the nearest name for what is unknown.
Options parse_options(const std::string& command, const std::vector<std::string>& arguments);

/// The options for settings (names and values), without those that the command does not have.
Options options_of(const std::string& command, const std::vector<Assignment>& settings);

/// The resolved settings that affect the results, as checkpoints record them.
std::vector<Assignment> recorded_settings(const Options& options);

/// Takes what a value replaces out of the settings before it, as between layers: an earlier value
/// with what is written in it, and the parts that both set.
void discard_replaced(const std::vector<OptionSpec>& specs, const Assignment& now,
                      std::vector<Assignment>& settings);

/// The settings of a lower layer without the lists in their values that the upper one sets by
/// themselves: "multistep:at=30%" below ":at=50%" is "multistep".
std::vector<Assignment> without_replaced_lists(std::vector<Assignment> below,
                                               const std::vector<Assignment>& above);

/// Settings of two layers: what the upper one sets is dropped from the lower one, and so is what
/// cannot hold beside it: the options' rivals, parts that belong to another value, what
/// without_replaced_lists() drops, and the schedule and recomputation below a plan, which has its
/// own.
std::vector<Assignment> overlay(const std::vector<Assignment>& below,
                                const std::vector<Assignment>& above);

/// Whether one of these options is set that excludes `name`, as --epochs excludes --max-steps.
/// `values`: by the options' names, without parts.
bool is_ruled_out(const std::string& name, const std::map<std::string, std::string>& values);

/// What setting an option, or a part of one, is written as: ":KEY=VALUE" sets a part.
Assignment setting_of(const OptionSpec& spec, const OptionSpec* part, const std::string& value);
bool sets_whole(const std::string& value);

/// Whether the word behind a switch that may have a path is that path: "--resume runs/latest". A
/// model and another option are not.
bool takes_next(const OptionSpec& spec, const std::string& word);

/// Every name that a command takes: options, their parts, aliases, "--no-…".
std::vector<std::string> names_of_options(const std::vector<OptionSpec>& specs,
                                          const std::string& command);

/// The known name nearest to a mistyped one; empty when nothing is near.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace pipetrain
