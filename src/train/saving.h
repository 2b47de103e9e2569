// When a run saves checkpoints, and the thread that writes them in the background.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "train/checkpoint.h"

namespace pipetrain {

/// How often: "100", "100steps", "2ep", "30s", "10min", "1h", "never".
struct SaveEvery {
  enum class Unit { kNever, kSteps, kEpochs, kSeconds };
  Unit unit = Unit::kNever;
  double value = 0;

  /// Error (kUsage) names the option, --save-every without one.
  static SaveEvery parse(const std::string& text);
  static SaveEvery parse(const std::string& text, const std::string& option);
};

/// Seconds of "90", "30s", "10min", "2h", "1d". Error (kUsage) names the option.
double parse_duration(const std::string& option, const std::string& text);

struct SaveSettings {
  std::filesystem::path folder;  // empty: nothing is saved
  SaveEvery every;
  /// Continue training when a checkpoint is due while the previous one is still being written;
  /// otherwise wait.
  bool may_wait = false;
  /// Least seconds between two checkpoints that are not due by time. The best model is kept in
  /// memory until then, unless a better one follows.
  double least_seconds = 0;
  int keep = 3;                  // newest ones; 0: all
  bool only_finite = true;       // leave out checkpoints with weights that are not finite
  bool stop_on_error = false;    // otherwise only the third failure in a row ends the run
  double patience_seconds = 60;  // a warning says so when training has waited that long for a write
  RunRecord run;
};

/// The outcome of a checkpoint.
struct SaveOutcome {
  std::optional<WrittenCheckpoint> written;
  std::string failure;
};

/// Error (kDiverged) that names a weight which is not finite.
void check_finite(const Checkpoint& checkpoint);

class Saving {
 public:
  /// `step`: mini-batches that are done when the run begins, with or without a checkpoint of them.
  Saving(const SaveSettings& settings, std::int64_t step, std::int64_t batches_per_epoch);
  ~Saving();
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  double patience_seconds() const { return settings_.patience_seconds; }
  bool enabled() const { return !settings_.folder.empty(); }
  /// Whether a checkpoint is due after that many steps.
  bool is_due(std::int64_t step) const;
  /// Notes that a checkpoint is made after that many steps: the next one is counted from here. In
  /// an asynchronous round other steps are decided on before its content is complete.
  void decided(std::int64_t step);
  /// Passes a checkpoint to the writing thread; waits while that thread is busy.
  void save(Checkpoint checkpoint);
  /// Whether a checkpoint that only the best model asks for comes too soon after the one before.
  bool defers() const;
  /// Keeps such a checkpoint until it is due, or the next checkpoint, or the end; it replaces the
  /// one kept before.
  void defer(Checkpoint checkpoint) { deferred_ = std::move(checkpoint); }
  /// Writes what was kept, if it is due.
  void save_deferred();
  /// Notes that a checkpoint could not be made.
  void note_failure(std::string failure);
  /// Waits until everything is written.
  void finish();
  /// Seconds that training was blocked, and that writing checkpoints took.
  double waited_seconds() const { return waited_seconds_; }
  double write_seconds() const;
  /// The outcomes of checkpoints since the last call.
  std::vector<SaveOutcome> take_outcomes();
  /// Why a run that cannot save must end; empty: it continues.
  std::string reason_to_end() const;
  const RunRecord& run() const { return settings_.run; }
  /// The newest checkpoint that is on the disk; empty: none of this run.
  std::filesystem::path last_written() const;

 private:
  void write_checkpoints();
  void hand_over(Checkpoint checkpoint);
  /// Waits until `ready`, and says for what where that takes long.
  void wait_until_written(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);

  SaveSettings settings_;
  std::int64_t period_ = 0;  // in steps
  std::int64_t last_step_;
  double last_seconds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Checkpoint> waiting_;
  std::optional<Checkpoint> deferred_;  // of the training thread alone
  double waited_seconds_ = 0, write_seconds_ = 0;
  bool writing_ = false, ending_ = false;
  std::int64_t written_step_ = 0;  // while writing
  double writing_since_ = 0;
  int failures_ = 0;  // in a row
  std::vector<SaveOutcome> outcomes_;
  std::string last_failure_;
  std::filesystem::path last_written_;
  std::thread thread_;
};

}  // namespace pipetrain
