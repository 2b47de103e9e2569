// Writes the trained model; if that fails, saves it elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/options/options.h"
#include "train/export.h"
#include "train/trainer.h"

namespace pipetrain {

/// What a checkpoint and its run's folder say of the training.
TrainingDescription training_of(const FoundCheckpoint& found);

/// Error (kUsage) where --adapter cannot be written, or would replace the model.
void check_adapter(const Options& options);
/// Error (kUsage) where `output` would replace the model by one with other weights below its
/// adapters, or with other tensors: checkpoints of the run are of the model as it is.
void check_replaced_model(const LoadedModel& model, const std::string& output);
/// Both for a run, and where its own folder is to have another model at the path of its output, or
/// a model at that of its adapters.
void check_models(const Options& options, const PlannedNetwork& network, const std::string& output,
                  const std::filesystem::path& folder);

/// Whether a run that ended with this checkpoint has written what the options ask for since: its
/// model (the best or the last one, as --save says now and has said then) and its adapters.
/// `folder`: of the run.
bool has_written_all(const Options& options, const FoundCheckpoint& found,
                     const std::string& output, const std::filesystem::path& folder);

/// Which models of a run have been written.
struct WrittenModels {
  std::string output;              // the trained model; "-": to standard output
  std::int64_t step = 0;           // after how many steps
  std::string other;               // the last one or the best one, beside it; empty: none
  std::optional<BestResult> best;  // of runs with validation
  std::int64_t last_step = 0;
};

/// The best so far, in words: "loss 0.25 at step 8"; `value` as in validations.
std::string words_on(const BestResult& best);

/// Writes the trained model to `path`, or to standard output: with validation the best one or the
/// last one, as --save says, and the other one to the run's folder. If that fails, it is kept as
/// `spare` in the run's folder, or as a checkpoint where the model's own files have changed. Error
/// (kResource, kModel) that names what was kept, kDiverged for a weight that the last update has
/// made infinite or NaN.
WrittenModels write_trained_model(const Options& options, PipelineRun& run, const std::string& path,
                                  const std::string& spare, const SaveSettings& save,
                                  const TrainingSummary& summary);

}  // namespace pipetrain
