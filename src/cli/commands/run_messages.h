// What a run says to people when it begins and when it ends; steps are Progress's.
#pragma once

#include <filesystem>
#include <string>

#include "cli/options/options.h"
#include "cli/options/resume_command_line.h"
#include "cli/output/step_recorder.h"
#include "cli/output/time_shares.h"
#include "train/trainer.h"

namespace pipetrain {

/// Model, data, loss, batch, devices and plan.
void introduce(const Options& options, const Session& session);
/// What a run goes on from, and what it does otherwise than before.
void introduce_resume(const Options& options, const Session& session, const FoundCheckpoint& found);
/// What the stages have taken; the session has started.
void tell_memory(const Session& session);

/// The command that goes on with a run.
std::string resume_words(const std::filesystem::path& folder);
/// Where the trained model is.
void tell_saved(const Options& options, const std::string& output,
                const std::filesystem::path& folder);
/// All of a run that has ended by itself. `output`: where the trained model is.
void tell_end(const Options& options, const Session& session, const TrainingSummary& summary,
              const TimeAccount& account, const StepRecorder& recorder, const std::string& output,
              const std::filesystem::path& folder);

}  // namespace pipetrain
