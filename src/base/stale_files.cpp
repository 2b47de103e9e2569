#include "base/stale_files.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>
#include <vector>

namespace pipetrain {

int process_of_temporary(std::string_view name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with('.') || !name.ends_with(kEnd)) return 0;
  name.remove_suffix(kEnd.size());
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot < 2) return 0;  // without NAME
  const char* const end = name.data() + name.size();
  int process = 0;
  const auto [dash, wrong] = std::from_chars(name.data() + dot + 1, end, process);
  if (wrong != std::errc() || process <= 0 || dash == end || *dash != '-') return 0;
  unsigned count = 0;
  const auto [rest, wrong_too] = std::from_chars(dash + 1, end, count);
  return wrong_too == std::errc() && rest == end ? process : 0;
}

void delete_stale_temporaries(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const std::string prefix = "." + path.filename().string().substr(0, 200) + ".";
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<fs::path> stale;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    // Without another dot before that of ".tmp", which would be one of a longer NAME.
    if (!name.starts_with(prefix) || name.find('.', prefix.size()) != name.rfind('.')) continue;
    const int process = process_of_temporary(name);
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) stale.push_back(i->path());
  }
  for (const fs::path& file : stale) fs::remove(file, error);
}

}  // namespace pipetrain
