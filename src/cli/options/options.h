// What the command line can say, as plain data. Every option stands once, in describe_options()
// (option_table.cpp): the parser, the help, the manual page, the completions, the keys of the
// configuration file and the record of the run all come from there.
#pragma once

#include <functional>
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
  // Flags whose default depends on others, resolved by resolve().
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
  int log_every = 10;
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
  std::string from;  // export: a checkpoint
  // Other commands
  bool show_params = false, show_chain = false, show_graph = false;
  std::string assertion;    // eval --assert 'accuracy>=0.97'
  std::string plan_output;  // plan/profile: where to write
  std::string schedules = "gpipe,1f1b,pipedream";
  bool schedule_given = false;
  std::string svg, dot;  // plan, schedule: pictures to write
  std::string trace, trace_steps;
  std::string follow, confusion, to;  // eval, predict
  int top_k = 0;
  std::string init = "keep";
  std::int64_t num_classes = 0;
  bool tensorboard = false;
  // plan of a profile of PipeDream's
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
  // new
  int image = 0, channels = 0, classes = 0, width = 0, depth = 0, heads = 0, vocab = 0, context = 0;
  std::string weights = "auto";
  int samples = 0;                     // data make
  std::vector<std::string> arguments;  // what is not a flag
  std::vector<std::string> configs;    // --config: files, the later ones win
  std::string print_config;            // empty: no; "given" or "all"
  std::string color = "auto";
  bool man = false, markdown = false;  // help: as which document
  /// Options and values as they were set, in order: by configuration files, the environment and
  /// this command line; and in all, with those of a checkpoint.
  std::vector<Assignment> given, settings;
};

/// Whether an option's value names a file or a folder, and what becomes of it.
enum class PathUse { kNone, kRead, kWrite };

/// What the numbers that a run trains have to do with an option, and so whether a run that goes on
/// may be given another value.
enum class Numbers : unsigned char {
  kUnsaid,      // nobody has thought about it: a test refuses such an option of train
  kNone,        // none depends on it, or what it did is in the checkpoint
  kRecorded,    // they depend on it: checkpoints record it, and going on with another one is said
  kOfRun,       // they depend on what the run makes of it (resume.cpp), which is recorded itself
  kOfContent,   // it says what the model or the data are, whose contents are compared
  kUnrecorded,  // they depend on it, but nothing says so where it changes
};

/// One option: how it is named, parsed and printed.
struct OptionSpec {
  std::string name;                  // "--batch-size"
  std::vector<std::string> aliases;  // "-b", "--global-batch-size"
  std::string group;                 // "Model", "Data", …
  std::string value;                 // "N"; empty: a switch
  std::string help;
  std::string commands;  // "train plan", or "*"
  bool in_short_help = false;
  std::function<void(const std::string&)> set;
  std::function<std::string()> get;  // what it is now: the default before parsing
  PathUse path = PathUse::kNone;
  std::function<bool(const std::string&)> names_file;  // of a value that may also be a name
  bool repeatable = false;
  std::string optional_value;  // of a switch: what may stand after "="
  std::string environment;     // the variable that says it where the command line does not
  /// Options that are of interest together with this one only: settings behind a colon of its
  /// value, "--optimizer sgd:momentum=0.9", where `key` names them. "--momentum 0.9" means the
  /// same.
  std::vector<OptionSpec> parts;
  std::string key;
  Numbers numbers = Numbers::kUnsaid;
  /// What a checkpoint records of it, by name; none: its name and get().
  std::function<std::vector<Assignment>()> record;

  OptionSpec& decides(Numbers what) {
    numbers = what;
    return *this;
  }
  /// Recorded under names and texts of its own: of what is in force where get() is what was given.
  OptionSpec& recorded_as(std::function<std::vector<Assignment>()> all) {
    numbers = Numbers::kRecorded;
    record = std::move(all);
    return *this;
  }

  bool is_switch() const { return value.empty(); }
  /// The fixed words that a value may be, as its notation says: "synthetic" in "PATH|synthetic".
  std::vector<std::string> words() const;
  /// A value in two: the option's own, and what stands behind its colon, the colon included.
  std::pair<std::string, std::string> split_value(const std::string& text) const;
  bool applies_to(const std::string& command) const;
};

std::vector<OptionSpec> describe_options(Options& options);

/// A subcommand.
struct CommandSpec {
  std::string name;
  std::string arguments;  // what it takes besides options: "MODEL"
  std::string summary;
  int (*run)(Options&) = nullptr;
  bool computes = false;  // runs the CPU's kernels, or asks them what they can do
};
const std::vector<CommandSpec>& commands();

/// Parses the arguments of one command: command line before environment before configuration files.
/// Error (kUsage) with the nearest name for what is unknown.
Options parse_options(const std::string& command, const std::vector<std::string>& arguments);

/// The options that settings (names and values) make. Those that the command does not have are
/// left out.
Options options_of(const std::string& command, const std::vector<Assignment>& settings);

/// All that options say of the numbers that are trained, in force, as checkpoints record it.
std::vector<Assignment> recorded_numbers(const Options& options);

/// Settings of two layers: what the upper one sets as a whole is dropped from the lower one.
std::vector<Assignment> overlay(const std::vector<Assignment>& below,
                                const std::vector<Assignment>& above);

/// What setting an option, or a part of one, is written as.
Assignment setting_of(const OptionSpec& spec, const OptionSpec* part, const std::string& value);

/// Every name that a command takes: options, their parts, aliases, "--no-…".
std::vector<std::string> names_of_options(const std::vector<OptionSpec>& specs,
                                          const std::string& command);

/// The known name nearest to a mistyped one; empty when nothing is near.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace pipetrain
