// The record of a run as JSON Lines: one object per line, one write per line. Not-finite numbers
// become null and are named in "nonfinite".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "cli/options/options.h"
#include "train/trainer.h"

namespace pipetrain {

/// The files of a run's events, oldest first: events.1.jsonl, events.2.jsonl …, events.jsonl.
std::vector<std::filesystem::path> event_files(const std::filesystem::path& path);

class EventLog {
 public:
  static constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

  /// Writes to a file, or to standard output for "-". `append`: after the events of the resumed
  /// run; a partial line at the end is removed. Error (kResource) when the file cannot be opened. A
  /// line that does not fit on the disk is dropped as a whole (its number is missing), and later
  /// ones are tried again. A file that reaches `most_bytes` is renamed (event_files()), and another
  /// one is begun.
  explicit EventLog(const std::string& path, bool append = false,
                    std::int64_t most_bytes = kMostBytes,
                    OutputTakes takes = OutputTakes::kPipesToo);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void run_start(const Options& options, const PlannedNetwork& network, const std::string& run);
  /// Without times where they are an estimate; after they have been measured, again with them.
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
  void open(OutputMode mode);
  /// Begins another file if a line does not fit.
  void rotate(std::size_t line_bytes);

  OutputTakes takes_;
  std::string path_;  // empty: standard output
  int descriptor_ = -1;
  bool gone_ = false;    // the reader
  bool warned_ = false;  // that lines are missing
  std::int64_t most_bytes_ = 0;
  std::int64_t written_ = 0;  // to this file
  long sequence_ = 0;
  double start_ = 0;
  // So far, for a run that ends with an error, whose summary is empty.
  std::int64_t last_step_ = 0;
  int checkpoints_ = 0;
};

}  // namespace pipetrain
