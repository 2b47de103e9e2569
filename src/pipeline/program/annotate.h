// Fills in what follows from the order of a program alone: weight versions, activation slots,
// receive buffers.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Sets version and slot of every instruction, and slots_per_stage, versions_per_stage and
/// slots_per_edge, by one linear scan over each device's list (lowest free slot first). The lists
/// must be complete and well-formed; the checker says whether they are.
void annotate(Program& program);

/// Returns per stage the largest number of updates that lie between the weights a micro-batch's
/// gradient was taken at and the weights it is applied to: 0 unless the rule is asynchronous; once
/// the pipeline is full, p-1-s for `pipedream`, p-1 with vertical sync, 1 for `pipedream-2bw`.
std::vector<int> staleness(const Program& program);

/// Returns whether a stage takes over BatchNorm's running statistics after each forward: where it
/// updates for every micro-batch alone. Otherwise they are merged up to its update.
bool applies_statistics_at_once(const Program& program, int stage);

/// Returns [stage][group]: the version that the micro-batches of each update read, group by group.
std::vector<std::vector<int>> versions_of_groups(const Program& program);

}  // namespace pipetrain
