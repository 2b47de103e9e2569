// --resume: which checkpoint a command line means, and what it takes over from there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "train/checkpoint.h"
#include "train/planned_network.h"

namespace pipetrain {

/// The folder below which runs have theirs: PIPETRAIN_RUNS_DIR, or "runs".
std::filesystem::path folder_of_runs();

/// The checkpoint to go on from, for --resume, --resume=auto and --resume=PATH; empty: start
/// afresh. Says which newer ones are damaged. Error (kUsage) when there is none and it has to be.
std::optional<FoundCheckpoint> checkpoint_to_resume(const Options& options);

/// Where a resumed run goes on: --run-dir, or the folder of the checkpoint's run where it is the
/// newest there; empty: in a new folder. Error (kUsage) when something in the folder is a link.
std::filesystem::path folder_to_resume(const Options& options, const FoundCheckpoint& found);

/// Takes over the settings of a checkpoint that the command line and the environment leave open,
/// and says which. Error (kData) for a setting that no run saves: nothing that says where to write
/// comes from a checkpoint. Error (kUsage) where a checkpoint that is not the user's own names
/// files outside of its run's folder that the command would read.
void take_over(const FoundCheckpoint& found, const std::string& command, Options& options);

/// What a checkpoint is to remember of the command line.
std::vector<Setting> settings_to_keep(const Options& options, const PlannedNetwork& network);

/// The model that a checkpoint names, with the same errors; empty when it names none.
std::string model_of(const FoundCheckpoint& found, const std::string& command);

}  // namespace pipetrain
