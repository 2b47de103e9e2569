// The validated setup of a runtime: the networks cut into stages, the capacities that their
// programs need, the edges between stages, and the devices of this process.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "pipeline/program/program.h"
#include "pipeline/runtime/runtime_options.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/stage/slice.h"
#include "pipeline/transport/link.h"

namespace pipetrain {

struct RuntimeSetup {
  RuntimeSetup(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
               const RuntimeOptions& options);

  RuntimeOptions options;
  std::vector<RuntimeVariant> variants;
  std::vector<const Program*> programs;         // all place stages alike
  std::vector<std::unique_ptr<Slices>> slices;  // [variants]
  std::vector<StageCapacity> capacity;          // [stages]
  std::vector<LinkEdge> edges;  // every pair of stages between which some variant hands values
  std::vector<std::vector<const ValueEdge*>> values;  // [variants][edges]; null: transfers nothing

  int stages() const { return programs[0]->stages; }
  int devices() const { return programs[0]->devices; }
  const std::vector<int>& placement(int stage) const {
    return programs[0]->placement[static_cast<std::size_t>(stage)];
  }
  bool is_here(int device) const;
  int first_device_here() const;
  /// The process of the first replica of a stage.
  int process_of(int stage) const;
  /// Over how many replicas the updates of a stage are spread.
  int update_shares(int stage) const {
    return options.shard_optimizer ? static_cast<int>(placement(stage).size()) : 1;
  }
  /// The physical device of each program device; equal numbers mean the same one.
  std::vector<int> ranks() const;

 private:
  void find_edges();
  void check_variants() const;
  void check_processes() const;
};

/// Error (kUsage) where replicas cannot share the updates of their stage.
void check_shared_updates(UpdateRule rule, std::string_view schedule, bool on_gpus);

}  // namespace pipetrain
