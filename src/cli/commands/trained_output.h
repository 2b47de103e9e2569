// Writes the trained model; if that fails, saves it elsewhere.
#pragma once

#include <filesystem>
#include <string>

#include "cli/options/options.h"
#include "train/trainer.h"

namespace pipetrain {

/// Writes the trained model to `path`, or to standard output. Where that fails, it is kept as
/// `spare`, in the folder of the run; where the model's own files have changed, as a checkpoint.
/// Error (kResource, kModel) that names what was kept.
void write_trained_model(const Options& options, PipelineRun& run, const std::string& path,
                         const std::string& spare, const SaveSettings& save,
                         const TrainingSummary& summary);

}  // namespace pipetrain
