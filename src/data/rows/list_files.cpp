// Lists the files of a path, a glob or a directory.
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/rows/readers.h"

namespace pipetrain {

std::vector<std::string> list_files(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path place(path);
  std::error_code error;
  if (fs::is_regular_file(place, error) || path == "-") return {path};
  const bool directory = fs::is_directory(place, error);
  const bool glob =
      !directory && place.filename().string().find_first_of("*?[") != std::string::npos;
  if (!directory && !glob) return {path};
  fs::path folder = directory ? place : place.parent_path();
  if (folder.empty()) folder = ".";
  const std::string pattern = glob ? place.filename().string() : "*";
  std::vector<std::string> out;
  fs::directory_iterator entries(folder, error);
  PT_CHECK(!error, kData, "cannot read the directory \"{}\": {}", printable(folder.string()),
           error.message());
  const fs::path here = fs::weakly_canonical(folder, error);
  for (const auto& entry : entries) {
    // A link to a neighbour would bring the same content twice.
    if (entry.is_symlink(error) &&
        fs::weakly_canonical(entry.path(), error).parent_path() == here) {
      continue;
    }
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(error) && fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0) {
      out.push_back((folder == "." && !directory ? fs::path(name) : entry.path()).string());
    }
  }
  PT_CHECK(!out.empty() || directory, kData, "no file matches \"{}\"", printable(path));
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace pipetrain
