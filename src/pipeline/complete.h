// Completes what a generator or a user wrote: from forwards and backwards to a whole round.
#pragma once

#include "pipeline/program.h"

namespace pipetrain {

/// Adds to compute-only lists what follows from the program's other fields, and annotates: a
/// recompute before the first backward of each unit on stages that recompute, the sum over the
/// replicas of a stage, the gradient sync and the updates. Where the rule is kSync these end the
/// round, for all stages in order; else reduce and update follow the last gradient of each group.
void complete(Program& program);

}  // namespace pipetrain
