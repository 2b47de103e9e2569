#include "cli/commands/run_outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "cli/commands/commands.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Whether the run makes a folder, since it is --run-dir or above that.
bool is_made_by_run(const fs::path& folder, const Options& options) {
  if (options.run_dir.empty()) return false;
  std::error_code error, other_error;
  const fs::path outer = fs::weakly_canonical(folder, error);
  const fs::path inner = fs::weakly_canonical(fs::absolute(options.run_dir), other_error);
  const auto [rest, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return !error && !other_error && (rest == outer.end() || rest->empty());
}

void check_file(const Options& options, const char* option, const std::string& file) {
  std::error_code unknown;
  if (file.empty() || file == "-" || fs::exists(file, unknown)) return;
  const fs::path folder = fs::absolute(file).parent_path();
  if (!is_made_by_run(folder, options)) check_folder_of(file, option);
}

/// Of a folder that is made with those above it.
void check_folder(const std::string& option, const fs::path& folder) {
  if (folder.empty()) return;
  fs::path there = fs::absolute(folder).lexically_normal();
  std::error_code unknown;
  while (!fs::exists(there, unknown) && there.has_relative_path()) there = there.parent_path();
  const int failure = !fs::is_directory(there, unknown)           ? ENOTDIR
                      : ::access(there.c_str(), W_OK | X_OK) != 0 ? errno
                                                                  : 0;
  PT_CHECK(failure == 0, kResource, "{}: cannot create the folder \"{}\": {}", option,
           printable(folder.string()), std::strerror(failure));
}

}  // namespace

fs::path folder_in_log_to(const Options& options, const std::string& name) {
  for (const std::string& place : options.log_to) {
    if (place.starts_with(name + ":")) return place.substr(name.size() + 1);
  }
  return {};
}

void check_run_outputs(const Options& options) {
  check_file(options, "--metrics", options.metrics);
  check_file(options, "--trace", options.trace);
  for (const char* name : {"tensorboard", "mlflow"})
    check_folder(fmt::format("--log-to {}", name), folder_in_log_to(options, name));
}

}  // namespace pipetrain
