// Completes a program of forwards and backwards with recomputes, reduces, syncs and updates.
#pragma once

#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// Adds to compute-only lists what follows from the program's other fields, and annotates: a
/// recompute before the first backward of each micro-batch on stages that recompute, the sum over
/// the replicas of a stage, the gradient sync and the updates. Where the rule is kSync these end
/// the round, for all stages in order; else reduce and update follow the last gradient of each
/// group.
void complete(Program& program);

/// Changes which stages of a program without transfers recompute. For schedules from files, which
/// know no memory limits.
void set_recompute(Program& program, const std::vector<bool>& recompute);

/// Adds a gradient sync to a synchronous program that has none, with all updates after it, and
/// annotates.
void add_gradient_sync(Program& program);

}  // namespace pipetrain
