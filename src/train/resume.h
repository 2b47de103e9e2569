// Creates checkpoints of a run, checks whether a run can resume from one, and restores it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipeline/program/program_cut.h"
#include "pipeline/stage/stage_content.h"
#include "train/checkpoint.h"
#include "train/pipeline_run.h"

namespace pipetrain {

/// The identity of a planned run. `settings`: the given options. `numbers`: settings that affect
/// the results, by name, resolved; those derived by the network are added here.
RunRecord describe_run(const PlannedNetwork& network, std::vector<Setting> settings,
                       const std::vector<Setting>& numbers);

/// The state of a run. round_start and round_batches are those of an asynchronous round that has
/// not drained, otherwise `step` and 0. `contents`: of every stage.
Checkpoint make_checkpoint(const PipelineRun& run, const RunRecord& record, std::int64_t step,
                           std::int64_t round_start, std::int64_t round_batches,
                           const std::vector<StageContent>& contents);

/// Compares a planned run with a checkpoint; `numbers` as for describe_run(). Returns one sentence
/// for each number that changes. Error (kUsage, kData) when it is another model or optimizer or
/// other data.
std::vector<std::string> compare_run(const PlannedNetwork& network, const Checkpoint& checkpoint,
                                     const std::vector<Setting>& numbers);

/// Whether the run can take up the mini-batches that were in flight: the same stages, schedule
/// and round.
bool continues_in_flight(const PlannedNetwork& network, const Checkpoint& checkpoint);

/// The step at which the first round begins: what PipelineRun is to be given.
std::int64_t first_round(const PlannedNetwork& network, const Checkpoint& checkpoint);

/// Error (kUsage) where a run would not go on with the trained tensors of a checkpoint: it leaves
/// some of them out, or trains others. `checkpoint`: of all stages.
void check_same_tensors(const PlannedNetwork& network, const Checkpoint& checkpoint);

/// The errors of restore_weights(), before anything is made.
void check_some_weights(const PlannedNetwork& network, const Checkpoint& checkpoint);

/// Restores a checkpoint. Returns where its asynchronous round continues, if mini-batches are in
/// flight.
std::optional<ProgramCut> restore(PipelineRun& run, const Checkpoint& checkpoint);

/// Restores only weights and running statistics: those that the checkpoint has with the same name
/// and type. Says which others the network has. Error (kUsage) if there are no such tensors.
void restore_weights(PipelineRun& run, const Checkpoint& checkpoint);

}  // namespace pipetrain
