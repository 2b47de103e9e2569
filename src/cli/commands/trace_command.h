// pipetrain trace diff: explains why a measured step took longer than predicted.
#pragma once

#include <string>
#include <vector>

namespace pipetrain {

struct TraceCommandOptions {
  /// Positional arguments: diff, then one trace file with predicted and measured steps, or two
  /// files, predicted first.
  std::vector<std::string> arguments;
  int causes = 5;  // lines to print
  bool json = false;
};

/// Prints to standard output and returns the exit code. Throws Error(kUsage) where the files cannot
/// be read or hold no two steps of one schedule.
int trace_command(const TraceCommandOptions& options);

}  // namespace pipetrain
