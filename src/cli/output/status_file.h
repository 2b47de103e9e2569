// --status-file: the progress of a run as a JSON document, replaced atomically at most once a
// second.
#pragma once

#include <string>

#include "processes/launcher.h"
#include "train/trainer.h"

namespace pipetrain {

class StatusFile {
 public:
  /// An empty path: nothing is written. `begin`: which step the run goes on from, of how many.
  /// Error (kUsage) for a device or a pipe, which cannot be replaced.
  explicit StatusFile(std::string path, StepReport begin = {});

  /// The first step begins.
  void begin();
  void step(const StepReport& report);
  void checkpoint(const WrittenCheckpoint& written) { checkpoint_ = written.path.string(); }
  /// `state`: "ok", "interrupted", "error", … `failed_process`: the first one that has failed, of
  /// several; -1: not known.
  void end(const std::string& state, int exit_code, int failed_process = -1);

 private:
  void write(const std::string& state, int exit_code, int failed_process);

  std::string path_;
  bool has_begun_ = false;
  StepReport last_;  // until first_step_ is known, only its step, total_steps and epoch hold
  std::string checkpoint_;
  double written_ = -1;
  double first_step_seconds_ = 0;
  std::int64_t first_step_ = 0;  // 0: none has run
  bool has_warned_ = false;      // that it cannot be written; later writes try again
};

/// What a status file says of the processes that have written it.
ReportedEnd end_in_status(const std::string& text);

}  // namespace pipetrain
