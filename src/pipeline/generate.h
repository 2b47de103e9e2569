// The schedules: each is a short pure function from sizes to compute instructions. Transfers come
// later (lower.h), so a new schedule is one function and one line in the table of generate.cpp.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace pipetrain {

struct ScheduleOptions {
  std::string name = "1f1b";
  int stages = 1;
  int units = 1;
  std::vector<bool> recompute;  // per stage; empty: nowhere
  /// Forwards that stage s runs ahead of its first backward, never rising with s (1f1b, pipedream).
  /// Empty: the standard p-1-s.
  std::vector<int> warm;
  /// Puts a kGradientSync on every device before its updates: tied weights in several stages,
  /// global clipping.
  bool gradient_sync = false;
};

/// What a schedule is, for help texts.
struct ScheduleDescription {
  std::string name;
  std::string summary;
  UpdateRule rule = UpdateRule::kSync;
};

/// Returns every schedule that generate() knows.
const std::vector<ScheduleDescription>& schedules();

/// Makes the compute-only program of a named schedule, annotated, with the edges of a plain chain.
/// Throws Error(kUsage) for an unknown name or sizes that cannot be.
Program generate(const ScheduleOptions& options);

/// Returns the standard warm-up of 1F1B, p-1-s, limited by nothing.
std::vector<int> standard_warm_up(int stages);

}  // namespace pipetrain
