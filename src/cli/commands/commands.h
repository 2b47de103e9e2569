// The subcommands. Each gets parsed options, prints its result to stdout and messages to stderr,
// and returns the exit code.
#pragma once

#include "cli/options/options.h"
#include "train/auto_schedule.h"

namespace pipetrain {

class PlannedNetwork;

class ProcessGroup;

int train_command(Options& options);
int inspect_command(Options& options);
int profile_command(Options& options);
int plan_command(Options& options);
int simulate_command(Options& options);
int eval_command(Options& options);
int predict_command(Options& options);
int generate_command(Options& options);
int export_command(Options& options);
int verify_command(Options& options);
int tune_command(Options& options);
int show_schedule_command(Options& options);
int compare_traces_command(Options& options);
int report_run_command(Options& options);
int new_command(Options& options);
int data_command(Options& options);
int doctor_command(Options& options);
int launch_command(Options& options);
int completion_command(Options& options);
int help_command(Options& options);

/// Chooses the devices of the stages, also by a plan, which may set the schedule and micro-batches
/// that the command line leaves open. Error (kResource) if they are missing, with commands that
/// would work. `processes`: of the run, each with the GPUs of its own machine; null: a single
/// process.
void resolve_device(Options& options, const std::string& command,
                    ProcessGroup* processes = nullptr);
/// The same for a command that only runs a model forward, on CPU cores, with as many threads as are
/// asked for.
void resolve_forward(Options& options, const std::string& command);
/// The devices that --plan or a schedule's file says, else those of --gpus; 0: nothing says it.
int devices_of_files(Options options);
/// Takes the model from --model or from the first argument; refuses further arguments.
void resolve_model(Options& options, const std::string& command);
/// Sets the options that the command line leaves open, within the scope, to the best in simulation,
/// and returns what was found. Error (kResource) when nothing fits.
FoundSchedules choose_schedule(Options& options, const SearchScope& scope);
/// Logs the choice, its number of micro-batches and what a step of it takes.
void log_choice(const Options& options, std::int64_t micro_batches, double step_seconds);
/// The same with what the search says of it.
void log_choice(const Options& options, const FoundSchedules& found);
/// What was found within so many devices, the best first, with the numbers of `network` for the one
/// that was chosen and planned.
std::string candidates_table(const FoundSchedules& found, const PlannedNetwork& network,
                             int devices);
/// Writes the model with the new head of --num-classes to `to`, which becomes the model of the run.
void replace_classifier(Options& options, const std::string& to);
/// Error for an output whose folder does not exist (kUsage) or is not writable (kResource). Pipes
/// and devices are written in place, whatever their folder.
void check_folder_of(const std::string& output, const char* option);
/// Sets the level of messages.
void resolve_verbosity(const Options& options);

}  // namespace pipetrain
