// Between a run and its checkpoints: what is kept, whether a run can go on from it, and
// putting it back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pipeline/program/program_cut.h"
#include "pipeline/stage/stage_content.h"
#include "train/checkpoint.h"
#include "train/pipeline_run.h"

namespace pipetrain {

/// What a planned run is. `settings`: the options that were given. `numbers`: settings that decide
/// what is trained, by name, in force; what the network makes of others is added here.
RunRecord describe_run(const PlannedNetwork& network, std::vector<Setting> settings,
                       const std::vector<Setting>& numbers);

/// Where a run stands. round_start and round_batches are those of an asynchronous round that has
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

/// Puts a checkpoint into a run. Returns where its asynchronous round goes on, if
/// mini-batches are in flight.
std::optional<ProgramCut> restore(PipelineRun& run, const Checkpoint& checkpoint);

/// Puts the weights and running statistics alone into a run.
void restore_weights(PipelineRun& run, const Checkpoint& checkpoint);

}  // namespace pipetrain
