// pipetrain schedule list | show | export | check: look at schedules, by name or from a file,
// without a model.
#pragma once

#include <string>
#include <vector>

namespace pipetrain {

struct ScheduleCommandOptions {
  /// Positional arguments: list; or show, export or check, then a schedule's name or a file (our
  /// text, or PyTorch's compute-only CSV where its name ends in .csv).
  std::vector<std::string> arguments;
  /// Places in the pipeline: devices, or groups of replicas. A schedule with several stages on a
  /// device has that many times more stages. Named schedules only, as what follows up to
  /// memory_units.
  int stages = 4;
  int micro_batches = 8;
  std::string replicas;  // "2,1,1": devices of each stage; empty: one each
  int chunks = 2;
  int memory_units = 0;
  /// Of one micro-batch on one device: "F,B" or "F,I,W" (forward, input and weight gradient), as
  /// plain numbers or with a unit (us, ms, s). Empty: 1,2.
  std::string times;
  std::string costs;    // a file pipetrain.costs/1 (costs_file.h) instead of times and latency
  std::string latency;  // from device to device, in the same way; empty: 0
  int width = 0;        // columns; 0: the terminal's
  std::string svg;      // files to write; empty: none
  std::string csv;      // "-": standard output
  std::string output;   // "-": standard output
  std::string color = "auto";  // or always, never
  bool json = false;
};

/// Prints to standard output, writes the requested files, and returns the exit code. Throws
/// Error(kUsage) for invalid arguments, and for a schedule that check() refuses.
int schedule_command(const ScheduleCommandOptions& options);

}  // namespace pipetrain
