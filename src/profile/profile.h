// How long every node of a training graph takes on one device.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "passes/training_graph.h"
#include "profile/chain_cost.h"

namespace pipetrain {

inline constexpr std::string_view kProfileSchema = "pipetrain.profile/1";

struct Profile {
  /// By node of the graph, one run: of a micro-batch, or what is done once a step; 0 for views.
  std::vector<double> node_seconds;
  std::vector<std::size_t> workspace_bytes;
  /// Adding one byte of a weight gradient into its accumulator.
  double accumulate_seconds_per_byte = 0;
  /// The optimizer's step over one byte of a parameter.
  double update_seconds_per_byte = 0;
  /// Until a stage's thread that has slept runs again, on a core that is idle or that another stage
  /// leaves, and how long the stage that wakes it on an idle core stands still; 0: unknown.
  double wake_seconds = 0;
  double switch_seconds = 0;
  double notify_seconds = 0;
  std::string device;        // "AMD EPYC 7763"
  std::string backend;       // "cpu", "reference", "device", "estimate"
  bool is_estimate = false;  // estimated, not measured
  int threads = 1;           // of each stage
  int busy_threads = 1;      // stages that worked at the same time while it was taken
  int distinct_nodes = 0;    // nodes that differ in more than their name
  int cached_nodes = 0;      // of those, not measured now
  double spent_seconds = 0;

  /// Whether its stages compute in host memory, where they read the model's own constants.
  bool in_host_memory() const { return backend == "cpu" || backend == "reference"; }
  /// Seconds of one micro-batch on one device: F + I + W, including its share of work over several
  /// micro-batches.
  double total_seconds(const TrainingGraph& training) const;
};

/// profile.json: one line per node, to be read by people and given back with --profile. "seconds"
/// are of one run of a node, of which a micro-batch has "runs".
std::string profile_text(const Profile& profile, const TrainingGraph& training,
                         std::string_view model);
void write_profile(const std::filesystem::path& path, const Profile& profile,
                   const TrainingGraph& training, std::string_view model);

/// Reads a profile of this very graph. Error (kUsage) naming the field that does not fit.
Profile read_profile(const std::filesystem::path& path, const TrainingGraph& training);
Profile parse_profile(std::string_view text, const std::string& file,
                      const TrainingGraph& training);

/// What the planner needs. Gradient nodes count for their forward node; parameters and saved
/// activations for the first element that needs them, with a Reuse at each later one.
ChainCosts chain_costs(const TrainingGraph& training, const Chain& chain, const Profile& profile);

/// "forward", "input gradient", "weight gradient", "batch gradient", "prepare", "finish".
std::string_view name_of(Part part);

}  // namespace pipetrain
