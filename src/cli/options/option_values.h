// What options mean together: values whose default or unit depends on other options.
#pragma once

#include "cli/options/options.h"

namespace pipetrain {

/// Fills in what depends on several options: the optimizer's numbers, points of the run. Error
/// (kUsage) naming the option.
void resolve_values(Options& options);

}  // namespace pipetrain
