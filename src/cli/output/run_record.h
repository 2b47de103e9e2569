// Reads the record of a run, finished or not, from its folder: events, plan, profile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pipetrain {

/// A step, or a validation after it. What was not measured, or was not finite, is NaN.
struct StepRecord {
  std::int64_t step = 0;
  double epoch = 0, loss = 0, accuracy = 0, perplexity = 0, lr = 0, grad_norm = 0, loss_scale = 0;
  double step_ms = 0, data_ms = 0, samples_per_s = 0, bubble = 0;
  std::vector<double> stage_busy;  // [devices], shares of the step
};

struct StageRecord {
  std::string first_op, last_op;
  std::int64_t parameters = 0, memory_bytes = 0;
  double forward_ms = 0, backward_ms = 0;  // predicted, of one micro-batch
  std::vector<int> devices;                // empty: not recorded
};

/// A kernel of the profile, and its seconds per micro-batch.
struct KernelRecord {
  std::string op, name, part;
  double seconds = 0;
};

struct RecordedRun {
  std::string name, version, model, data_format, schedule, output;
  std::set<std::string> names;  // of all its parts: a folder may be renamed between them
  std::int64_t parameters = 0, operators = 0, samples = 0, micro_batches = 0, micro_batch_size = 0;
  std::vector<std::pair<std::string, std::string>> config;  // option without dashes, value
  std::vector<StageRecord> stages;
  std::vector<std::string> cut_reasons;
  std::vector<KernelRecord> kernels;  // largest first
  double predicted_step_ms = 0, predicted_bubble = 0;
  std::vector<StepRecord> steps, validations;
  bool ended = false;
  std::string status, error;
  int exit_code = 0;
  double seconds = 0, first_step_s = 0, steady_step_ms = 0;
  /// Of a run that went on: seconds of the parts before the latest, and of that one until its last
  /// event.
  double seconds_before = 0, elapsed = 0;

  /// Seconds of all parts together; NaN if the latest has not ended.
  double whole_seconds() const { return seconds_before + seconds; }
  /// The value of an option; empty if the run did not record it.
  std::string option(const std::string& name) const;
};

/// Reads RUN/events.jsonl (or the events file itself), and plan.json and profile.json beside it
/// where they are. A partial last line, as in a running or killed run, is ignored. Throws
/// Error(kUsage) with file and line for other damage.
RecordedRun read_run(const std::filesystem::path& path);

}  // namespace pipetrain
