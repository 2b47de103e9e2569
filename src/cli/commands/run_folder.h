// The folder of a run: made or refused, locked, and what stands in it besides events and
// checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/options/options.h"
#include "train/saving.h"
#include "train/session.h"

namespace pipetrain {

/// The folder of one run, locked for as long as this lives.
class RunFolder {
 public:
  RunFolder() = default;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  /// A folder that was made early goes again unless the run has begun.
  ~RunFolder();

  /// Makes the folder of a new run before it is known whether the run can begin. Errors as begin().
  const std::filesystem::path& make_early(const Options& options);
  /// Makes the folder unless there is one, locks it and takes away what a run that did not end left
  /// behind. `resumed`: the folder that a checkpoint belongs to; empty: none. Error (kUsage) for a
  /// --run-dir that is in use, (kResource) where none can be made.
  const std::filesystem::path& begin(const Options& options, const std::filesystem::path& resumed);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
  bool is_early_ = false;  // made, but the run has not begun
  bool is_named_ =
      false;  // the name of an early one, below the folder of all runs, was chosen here
};

/// Where the trained model goes. Error (kUsage) for a file that is there and is not to be replaced.
/// `replaces_own`: a resumed run writes its own trained.onnx again.
void check_output(const Options& options, const std::string& output, bool replaces_own);

/// Writes plan.json and profile.json.
void write_plan_and_profile(const Options& options, const Session& session,
                            const std::filesystem::path& folder);
/// Writes config.toml, which starts the run again, and the names of classes.
void write_configuration(const Options& options, const Session& session,
                         const std::filesystem::path& folder);

}  // namespace pipetrain
