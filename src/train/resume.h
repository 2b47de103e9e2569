// Between a session and its checkpoints: what is kept, whether a session can go on from it, and
// putting it back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipeline/program/program_cut.h"
#include "pipeline/stage/stage_content.h"
#include "train/checkpoint.h"
#include "train/session.h"

namespace pipetrain {

/// What a planned session is. `settings`: the options that were given. `numbers`: settings that
/// decide what is trained, by name, in force; what the session makes of others is added here.
RunRecord describe_run(const Session& session, std::vector<Setting> settings,
                       const std::vector<Setting>& numbers);

/// Where a run stands. round_start and round_batches are those of an asynchronous round that has
/// not drained, otherwise `step` and 0. `contents`: of every stage.
Checkpoint make_checkpoint(const Session& session, const RunRecord& run, std::int64_t step,
                           std::int64_t round_start, std::int64_t round_batches,
                           const std::vector<StageContent>& contents);

/// Compares a session that has been planned with a checkpoint; `numbers` as for describe_run().
/// Returns one sentence for each number that changes. Error (kUsage, kData) when it is another
/// model or optimizer or other data.
std::vector<std::string> compare_run(const Session& session, const Checkpoint& checkpoint,
                                     const std::vector<Setting>& numbers);

/// Whether the session can take up the mini-batches that were in flight: the same stages, schedule
/// and round.
bool continues_in_flight(const Session& session, const Checkpoint& checkpoint);

/// The step at which the session's first round begins: what start() is to be given.
std::int64_t first_round(const Session& session, const Checkpoint& checkpoint);

/// Puts a checkpoint into a started session. Returns where its asynchronous round goes on, if
/// mini-batches are in flight.
std::optional<ProgramCut> restore(Session& session, const Checkpoint& checkpoint);

/// Puts the weights and running statistics alone into a started session.
void restore_weights(Session& session, const Checkpoint& checkpoint);

}  // namespace pipetrain
