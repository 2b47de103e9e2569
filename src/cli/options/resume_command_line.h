// --resume: finds the checkpoint to resume from, and applies its settings.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "train/checkpoint.h"
#include "train/planned_network.h"

namespace pipetrain {

/// The folder of the run that a checkpoint belongs to; a checkpoint that lies alone is all there is
/// of its run.
std::filesystem::path run_of(const std::filesystem::path& checkpoint);

/// The folder below which runs have theirs: PIPETRAIN_RUNS_DIR, or "runs".
std::filesystem::path folder_of_runs();

/// The checkpoint to resume from, for --resume, --resume=auto and --resume=PATH; empty: start a new
/// run. Warns of newer ones that are damaged. Error (kUsage) when there is none but one is
/// required.
std::optional<FoundCheckpoint> checkpoint_to_resume(const Options& options);

/// The folder of a resumed run: --run-dir, or the folder of the checkpoint's run where it is the
/// newest there; empty: in a new folder. Error (kUsage) when something in the folder is a link.
std::filesystem::path folder_to_resume(const Options& options, const FoundCheckpoint& found);

/// Applies the settings of a checkpoint that the command line and the environment leave open, and
/// logs them. Error (kData) for a setting that no run saves: nothing that says where to write comes
/// from a checkpoint. Error (kUsage) where a checkpoint that is not the user's own names files
/// outside of its run's folder that the command would read. Where the options ask for the same
/// devices and schedule as before, given again or not, the replicas stay that the planner has
/// chosen, and the cuts of asynchronous schedules.
void take_over(const FoundCheckpoint& found, const std::string& command, Options& options);

/// Options with those of a checkpoint, without a word and without looking at the paths.
Options completed_by(const FoundCheckpoint& found, Options options);

/// The devices of each stage of a checkpoint's run; empty where it does not say.
std::vector<int> devices_of_stages(const Checkpoint& checkpoint);

/// Applies what the user's own checkpoint records of where results go and the command line leaves
/// open, and logs it: of a run that is resumed in its own folder, `resumed`. Returns where the run
/// has written its model before; empty: into its folder.
std::filesystem::path take_outputs(const FoundCheckpoint& found,
                                   const std::filesystem::path& resumed, Options& options);

/// What a checkpoint records of where results go.
std::vector<Setting> outputs_to_keep(const Options& options);

/// What a checkpoint records of the command line.
std::vector<Setting> settings_to_keep(const Options& options, const PlannedNetwork& network);

/// The model that a checkpoint names, with the same errors; empty when it names none.
std::string model_of(const FoundCheckpoint& found, const std::string& command);

}  // namespace pipetrain
