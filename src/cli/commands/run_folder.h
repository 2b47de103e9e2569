// The run folder: its creation and lock, and its files other than events and checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/options/options.h"
#include "train/checkpoint.h"
#include "train/folder_lock.h"
#include "train/network.h"
#include "train/saving.h"

namespace pipetrain {

/// Error (kUsage) for a --run-dir that has files of another run than the one that --resume names,
/// unless they are overwritten.
void check_run_folder(const Options& options);
/// Set by `launch`, which has checked the folder: kNamedFolder if it has chosen its name, too.
inline constexpr const char* kLaunchedVariable = "PIPETRAIN_LAUNCHED";
inline constexpr const char* kNamedFolder = "named";

/// The path of a folder without symbolic links: a run stays in its folder where somebody moves a
/// link to it meanwhile. As it was given where it has none, but without a slash at its end.
std::filesystem::path without_links(const std::filesystem::path& folder);

/// Whether a folder has the model of an earlier run beside the one of a run that is about to
/// replace it, or was interrupted before it did.
bool has_earlier_model(const std::filesystem::path& folder);
/// Puts the model of the checkpoint's run back where another run with a new head was interrupted
/// before it began. Error (kUsage) where that one is still about to begin, or where the checkpoint
/// is not the user's own; (kResource) where it cannot be put back.
void put_back_earlier_model(const FoundCheckpoint& found);

/// The folder of one run, locked for the lifetime of this object.
class RunFolder {
 public:
  /// `is_checked`: by the process that starts and restarts this one. An earlier process of the same
  /// run may have left files since. `was_chosen`: by --run-dir.
  RunFolder(bool is_checked, bool was_chosen)
      : is_checked_(is_checked), may_be_latest_(!was_chosen) {}
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  /// Unless settle() was called, leaves what was there before make_early().
  ~RunFolder();

  /// Creates the folder of a new run, for a model with a new head, before it is known whether the
  /// run can begin. The model of an earlier run there is kept until settle(). Errors as begin().
  const std::filesystem::path& make_early(const Options& options);
  /// Creates the folder if needed, locks it and removes leftovers of an interrupted run. `resumed`:
  /// the folder of the resumed run; empty: none. Error (kUsage) for a --run-dir in use,
  /// (kDevice) if that is so under `launch`, (kResource) if the folder cannot be created.
  const std::filesystem::path& begin(const Options& options, const std::filesystem::path& resumed);

  /// From now on the folder is that of this run, and nothing of an earlier one is put back.
  void settle();

  /// Has the link "latest" point to the folder of a new run, unless --run-dir names it. Only once a
  /// step has run: the link stays with a run that can be resumed if this one fails at once.
  void set_latest();

  const std::filesystem::path& path() const { return path_; }
  /// The name of the folder, however its path ends.
  std::string name() const;

 private:
  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
  bool is_checked_, may_be_latest_;
  bool is_early_ = false;  // made, but not settled
  bool is_named_ =
      false;  // the name of an early one, below the folder of all runs, was chosen here
};

/// Creates the folder of a new run of this model, whose name is new. Error (kResource) if that is
/// not possible.
std::filesystem::path new_run_folder(const std::string& model);

/// Whether both files exist and the first one was written last. A model that is older than the
/// last checkpoint is not that of all steps: the run was killed before it could write it.
bool is_newer(const std::filesystem::path& file, const std::filesystem::path& other);

/// The path of the trained model. Error (kUsage) for a folder, and for an existing file without
/// --overwrite; a pipe or a device is written to. `replaces_own`: a resumed run writes its own
/// trained.onnx again.
void check_output(const Options& options, const std::string& output, bool replaces_own,
                  const char* option = "--output");

/// Writes plan.json and profile.json.
void write_plan_and_profile(const Options& options, const PlannedNetwork& network,
                            const std::filesystem::path& folder);
/// Writes config.toml, which starts the run again, and the names of classes. `goes_on_from`: the
/// checkpoint whose run goes on, and began as its own config.toml says; empty: none.
void write_configuration(const Options& options, const PlannedNetwork& network,
                         const std::filesystem::path& folder,
                         const std::filesystem::path& goes_on_from);

}  // namespace pipetrain
