// Options whose default or unit depends on other options.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"

namespace pipetrain {

/// Error (kUsage) for options of another optimizer or learning-rate schedule than the one that is
/// asked for. Where a run goes on, these come from its checkpoint.
void check_values(const Options& options);

/// Resolves what depends on several options: the optimizer's settings, points of the run. Error
/// (kUsage) naming the option.
void resolve_values(Options& options);

/// The settings that nothing uses with the others: "--lr-power is not used by --lr-schedule
/// cosine".
std::vector<std::string> unused_settings(const Options& options);

}  // namespace pipetrain
