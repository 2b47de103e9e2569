// Options whose default or unit depends on other options.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"

namespace pipetrain {

/// Resolves what depends on several options: the optimizer's settings, points of the run. Error
/// (kUsage) naming the option.
void resolve_values(Options& options);

/// The settings that the optimizer or the learning-rate schedule does not use: "--lr-power is not
/// used by --lr-schedule cosine".
std::vector<std::string> unused_settings(const Options& options);

}  // namespace pipetrain
