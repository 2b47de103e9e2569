// The record of a run as JSON Lines: one object per line, one write per line. Not-finite numbers
// become null and are named in "nonfinite".
#pragma once

#include <cstdint>
#include <string>

#include "cli/options/options.h"
#include "train/trainer.h"

namespace pipetrain {

class EventLog {
 public:
  /// Writes to a file, or to standard output for "-". `append`: after the events of the resumed
  /// run; a partial line at the end is removed. Error (kResource) when the file cannot be opened. A
  /// line that does not fit on the disk is dropped as a whole (its number is missing), and later
  /// ones are tried again.
  explicit EventLog(const std::string& path, bool append = false);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void run_start(const Options& options, const PlannedNetwork& network, const std::string& run);
  void plan(const PlannedNetwork& network, const std::string& path);
  void step(const StepReport& report);
  void evaluation(const EvaluationReport& report);
  void checkpoint(const SaveOutcome& outcome);
  void signal(const char* name, const char* action);
  void run_end(const std::string& status, int exit_code, const TrainingSummary& summary,
               const std::string& output, std::int64_t output_step = -1);
  void error(const std::string& message);

 private:
  struct Line;
  void write(Line& line);

  std::string path_;  // empty: standard output
  int descriptor_ = -1;
  bool gone_ = false;    // the reader
  bool warned_ = false;  // that lines are missing
  long sequence_ = 0;
  double start_ = 0;
};

}  // namespace pipetrain
