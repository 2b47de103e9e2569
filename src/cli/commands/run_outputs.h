// What a run writes beside its folder and its model: metrics, traces, logs of other programs.
#pragma once

#include <filesystem>
#include <string>

#include "cli/options/options.h"

namespace pipetrain {

/// The folder that --log-to NAME:DIR names; empty: none.
std::filesystem::path folder_in_log_to(const Options& options, const std::string& name);

/// Error where --metrics, --trace or --log-to could not be written: (kUsage) for a file in a folder
/// that does not exist and that the run does not make, (kResource) where something may not be
/// written or made. Makes nothing.
void check_run_outputs(const Options& options);

}  // namespace pipetrain
