// Where files lie that any run may make again: times of kernels, compiled kernels, the user's key.
#pragma once

#include <filesystem>

namespace pipetrain {

/// $PIPETRAIN_CACHE_DIR, else $XDG_CACHE_HOME/pipetrain, else ~/.cache/pipetrain; empty when there
/// is none of these.
std::filesystem::path default_cache_directory();

}  // namespace pipetrain
