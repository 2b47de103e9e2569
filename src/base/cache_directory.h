// The directory of files that any run can recreate: kernel timings, compiled kernels, the user's
// key.
#pragma once

#include <filesystem>

namespace pipetrain {

/// $PIPETRAIN_CACHE_DIR, else $XDG_CACHE_HOME/pipetrain, else ~/.cache/pipetrain; empty if none is
/// set.
std::filesystem::path default_cache_directory();

}  // namespace pipetrain
