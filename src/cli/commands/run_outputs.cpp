#include "cli/commands/run_outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/options/resume_command_line.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// Whether making one folder makes another, which is it or above it.
bool makes(const fs::path& made, const fs::path& folder) {
  if (made.empty()) return false;
  std::error_code error, other_error;
  const fs::path outer = fs::weakly_canonical(folder, error);
  const fs::path inner = fs::weakly_canonical(fs::absolute(made), other_error);
  const auto [rest, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return !error && !other_error && (rest == outer.end() || rest->empty());
}

/// `made`: folders that the run makes before it opens the file.
void check_file(const char* option, const std::string& file, const std::vector<fs::path>& made) {
  std::error_code unknown;
  if (file.empty() || file == "-" || fs::exists(file, unknown)) return;
  const fs::path folder = fs::absolute(file).parent_path();
  if (std::ranges::none_of(made, [&](const fs::path& one) { return makes(one, folder); }))
    check_folder_of(file, option);
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
  const fs::path run = options.run_dir.empty() ? folder_of_runs() : fs::path(options.run_dir);
  check_file("--metrics", options.metrics, {run});
  check_file("--trace", options.trace,
             {run, folder_in_log_to(options, "tensorboard"), folder_in_log_to(options, "mlflow")});
  for (const char* name : {"tensorboard", "mlflow"})
    check_folder(fmt::format("--log-to {}", name), folder_in_log_to(options, name));
}

}  // namespace pipetrain
