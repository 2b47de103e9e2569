// Options whose default or unit depends on other options.
#pragma once

#include "cli/options/options.h"

namespace pipetrain {

/// Resolves what depends on several options: the optimizer's settings, points of the run. Error
/// (kUsage) naming the option.
void resolve_values(Options& options);

}  // namespace pipetrain
