// Derives weight versions, activation slots and receive buffers from the order of a program.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Sets version and slot of every instruction, and slots_per_stage, versions_per_stage and
/// slots_per_edge, by one linear scan over each device's list (lowest free slot first). The lists
/// must be complete and well-formed, which check() verifies.
void annotate(Program& program);

/// Returns per stage the largest number of updates that lie between the weights a micro-batch's
/// gradient was taken at and the weights it is applied to: 0 unless the rule is asynchronous; once
/// the pipeline is full, p-1-s for `pipedream`, p-1 with vertical sync, 1 for `pipedream-2bw`.
std::vector<int> staleness(const Program& program);

/// Whether a stage applies BatchNorm's running statistics after each forward: where it updates
/// after every micro-batch. Otherwise they are merged until its update.
bool applies_statistics_at_once(const Program& program, int stage);

/// Returns [stage][group]: the version that the micro-batches of each update read, group by group.
std::vector<std::vector<int>> versions_of_groups(const Program& program);

}  // namespace pipetrain
