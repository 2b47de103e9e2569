// Cleanup of temporary files of killed processes.
#pragma once

#include <filesystem>
#include <string_view>

namespace pipetrain {

/// The process in the name of an AtomicFile's temporary file, .NAME.PROCESS-COUNT.tmp; 0 for other
/// names.
int process_of_temporary(std::string_view name);

/// Removes temporary files of AtomicFiles of this path whose processes no longer run on this
/// machine.
void delete_stale_temporaries(const std::filesystem::path& path);

}  // namespace pipetrain
