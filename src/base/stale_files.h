// Cleanup of temporary files of killed processes.
#pragma once

#include <filesystem>

namespace pipetrain {

/// Removes temporary files of AtomicFiles of this path whose processes no longer run on this
/// machine.
void delete_stale_temporaries(const std::filesystem::path& path);

}  // namespace pipetrain
