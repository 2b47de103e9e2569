// Log messages at the start and the end of a run; Progress prints the steps.
#pragma once

#include <filesystem>
#include <string>

#include "cli/commands/trained_output.h"
#include "cli/options/options.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/step_recorder.h"
#include "cli/output/time_shares.h"
#include "train/commits.h"
#include "train/trainer.h"

namespace pipetrain {

/// Model, data, loss, batch, devices and plan.
void log_start(const Options& options, const PlannedNetwork& network);
/// The resumed checkpoint, and the settings that have changed since.
void log_resume(const Options& options, const PlannedNetwork& network,
                const FoundCheckpoint& found);
/// Notes on samples that a model's fixed batch leaves out of epochs and evaluations. `drops_last`:
/// the user leaves out those of the last batch of an epoch.
void log_left_out(const char* command, bool drops_last, const PlannedNetwork& network);
/// Notes on smaller micro-batches at the ends of batches.
void log_remainders(const PipelineRun& run);
/// Memory allocated by the stages.
void log_memory(const PipelineRun& run);
/// `seconds`: of the training.
void log_commits(const Commits& commits, double seconds);

/// The command that resumes a run.
std::string resume_command(const Options& options, const std::filesystem::path& folder);
/// Where the trained model is.
void log_saved(const WrittenModels& written, const std::filesystem::path& folder);
/// The summary of a run that was not interrupted. `output`: where the trained model is.
void log_end(const Options& options, const PlannedNetwork& network, const TrainingSummary& summary,
             const TimeAccount& account, const StepRecorder& recorder, const WrittenModels& written,
             const std::filesystem::path& folder);

}  // namespace pipetrain
