// What killed processes leave behind.
#pragma once

#include <filesystem>

namespace pipetrain {

/// Removes what AtomicFiles of this path have left whose processes, on this machine, are no more.
void delete_stale_temporaries(const std::filesystem::path& path);

}  // namespace pipetrain
