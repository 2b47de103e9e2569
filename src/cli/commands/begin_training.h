// How training begins in each process: with what state, and what processes other than 0 do.
#pragma once

#include <filesystem>
#include <optional>

#include "cli/commands/supervise.h"
#include "cli/options/options.h"
#include "pipeline/program/program_cut.h"
#include "train/commits.h"
#include "train/pipeline_run.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace pipetrain {

/// What a run starts from, as the command line and the checkpoint say.
struct Start {
  Supervision* supervision = nullptr;  // null: nobody restarts the run
  std::optional<FoundCheckpoint> found;
  std::string model;                 // as given; with --num-classes a copy of it is trained
  bool is_saved = false;             // found on the disk, not in memory after a failure
  bool goes_on = false;              // with the whole checkpoint, not only its weights
  std::filesystem::path resumed;     // the folder of the resumed run
  std::filesystem::path output;      // where it has written its model before
  std::optional<CommitName> commit;  // that it resumes from

  const FoundCheckpoint* checkpoint() const { return found ? &*found : nullptr; }
};

/// Seconds that --max-time leaves to this process; 0: no limit. Where the learning rate spans the
/// limit, this is the whole limit, against which those of the checkpoint count, too.
double most_seconds(const Options& options);
/// What is left of them where the learning rate spans the limit; most_seconds() otherwise.
double seconds_left(const Options& options, const FoundCheckpoint* found);

/// Error (kUsage) where the output that the loss reads has another number of classes than
/// --num-classes gives: a run that goes on keeps its last layer, and that of another output may
/// have been replaced.
void check_new_head(const Options& options, const PlannedNetwork& network, const Start& start);

/// Whether a run's folder has the checkpoint that the run starts from.
bool has_checkpoint(const std::filesystem::path& folder, const Start& start);

/// Whether a run goes on in its own folder, not in that of another run or a new one.
bool goes_on_in(const std::filesystem::path& folder, const Start& start);

/// --overwrite deletes the checkpoints of the run that it replaces. Error (kUsage) where the new
/// run starts from one of them, or where they are behind a symbolic link.
void check_overwrite(const Options& options, const Start& start);

/// A run that goes on from a checkpoint of its folder gives up those of more steps. Error (kUsage)
/// where it cannot.
void check_going_back(const Options& options, const Start& start);

/// What training refuses when it begins is refused before anything of an earlier run is replaced,
/// and in a dry run. Error (kUsage) for options that do not suit the network, or a checkpoint none
/// of whose weights do; (kData) for validation data that are too few, or without a label that
/// counts.
void check_training(const Options& options, const PlannedNetwork& network, const Start& start);

/// Before the first step of a run in a folder: the checkpoints and models of a run that it replaces
/// are deleted, and those of steps that it takes again count as given up. Otherwise a restart would
/// take them up.
void leave_earlier_run(const std::filesystem::path& folder, const Options& options,
                       const Start& start);

/// The step at which the first round of a run begins.
std::int64_t first_step(const Options& options, const PlannedNetwork& network,
                        const FoundCheckpoint* found);

/// Has a checkpoint hold the weights of the run's best model if the run goes on in another `folder`
/// (empty: a new one), where no checkpoint has them.
void take_best_model(FoundCheckpoint& found, const std::filesystem::path& folder);

/// Writes the initial weights that --init asks for into a run.
void initialize(const Options& options, PipelineRun& run);

/// Restores the state that a run begins with.
void begin_with(const Options& options, PipelineRun& run, const FoundCheckpoint* found,
                TrainingOptions& training, std::optional<ProgramCut>& cut);

/// Under `launch`, has the run keep its state in the memory of the hosts.
void begin_commits(const PipelineRun& run, const Start& start, TrainingOptions& training,
                   std::optional<Commits>& commits);

/// The run of processes other than 0: they train their stages or replicas; process 0 writes files
/// and logs. Returns the exit code.
int follow(const Options& options, PlannedNetwork& network, const Start& start, Signals& signals);

}  // namespace pipetrain
