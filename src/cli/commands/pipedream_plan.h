// pipetrain plan --pipedream-profile: plans a network that PipeDream's profiler has measured, and
// compares with the plan of PipeDream's own planner.
#pragma once

#include <optional>
#include <string>

namespace pipetrain {

struct PipeDreamPlanOptions {
  std::string profile;   // graph.txt
  int devices = 0;       // 0: all of the topology
  std::string topology;  // a file or a name; empty: one level of `bytes_per_second`
  double bytes_per_second = 1e9;
  /// The exact number of stages; 0: any.
  int stages = 0;
  bool replication = true;
  bool compat = false;  // compare with PipeDream's planner
  // Settings of PipeDream's planner: see CompatRequest.
  bool fewer_machines = false;
  std::optional<double> activation_compression;
  /// Where to write the profile with the stage of every layer; empty: nowhere; "-": it is printed
  /// instead of the plan. With `compat`, of PipeDream's plan.
  std::string output;
  bool json = false;
};

/// Prints the plan as a table, or as a document pipetrain.pipedream-plan/1. Returns the exit code.
/// Errors (kUsage) for files and flags; (kResource) where PipeDream's planner finds no plan.
int plan_pipedream_profile(const PipeDreamPlanOptions& options);

}  // namespace pipetrain
