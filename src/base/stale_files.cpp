#include "base/stale_files.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>
#include <vector>

namespace pipetrain {

void delete_stale_temporaries(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  // The names that AtomicFile gives: .NAME.PROCESS-COUNT.tmp
  const std::string prefix = "." + path.filename().string().substr(0, 200) + ".";
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".tmp")) continue;
    int process = 0;
    const char* const first = name.data() + prefix.size();
    const auto [rest, wrong] = std::from_chars(first, name.data() + name.size(), process);
    if (wrong != std::errc() || *rest != '-' || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) stale.push_back(i->path());
  }
  for (const fs::path& file : stale) fs::remove(file, error);
}

}  // namespace pipetrain
