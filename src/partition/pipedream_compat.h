// PipeDream's planner: its cost model and its dynamic program as its optimizer
// (optimizer_graph_hierarchical.py) computes them, to reproduce its published values. The value
// equals PipeDream's; the plan may differ from it between equally good ones, since PipeDream breaks
// ties by the order of Python sets.
#pragma once

#include <optional>
#include <vector>

#include "partition/pipedream_profile.h"

namespace pipetrain {

/// One level of machines, as in its options -n and -b.
struct CompatLevel {
  int machines = 1;               // or groups of the level below
  double bytes_per_second = 1e9;  // between them
};

struct CompatRequest {
  std::vector<CompatLevel> levels = {{}};  // innermost first
  bool straight = false;                   // --straight_pipeline: no stage is replicated
  bool fewer_machines = false;             // --use_fewer_machines
  /// --activation_compression_ratio; without it activations travel for free.
  std::optional<double> activation_compression;
  /// -s with --use_memory_constraint: bytes for copies beyond the first, as PipeDream counts them.
  std::optional<double> memory_bytes;
};

/// States [start, end) on `replicas` groups of the level below.
struct CompatStage {
  int start = 0, end = 0;
  int replicas = 1;
  double compute_seconds = 0;  // of one mini-batch on one machine
};

/// The plan for the machines of one group of a level.
struct CompatGroup {
  std::vector<CompatStage> stages;
  int unused = 0;
};

/// A stage of the innermost level.
struct CompatLeaf {
  std::vector<int> nodes;     // of the profile, ascending
  int devices = 1;            // replicas over all levels
  std::vector<int> replicas;  // of each level, innermost first
  /// The level at which it is cut off the stage before; -1 for the first one.
  int cut_level = -1;
  double compute_seconds = 0;
};

struct CompatPlan {
  int states = 0;
  double seconds = 0;  // per mini-batch in the steady state, what PipeDream minimises
  double single_machine_seconds = 0;
  /// All machines data-parallel under the same model: all-reduce after compute, without overlap.
  double data_parallel_seconds = 0;
  /// Outermost level first, with one group for every stage of the level above it.
  std::vector<std::vector<CompatGroup>> levels;
  std::vector<CompatLeaf> stages;
  /// Of every node, inputs and unused outputs included (they stay with their readers or writers).
  std::vector<int> stage_of_node;
};

/// Plans as PipeDream does. Errors: kUsage for machines or bandwidths that cannot be; kResource for
/// a network of too many states, and where the memory constraint leaves no plan.
CompatPlan plan_like_pipedream(const PipeDreamProfile& profile, const CompatRequest& request);

}  // namespace pipetrain
