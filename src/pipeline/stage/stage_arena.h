// The memory of a stage, planned before there is any: what lies where in its one block. Pure, so
// that a plan can say beforehand what a run will take.
//
//   parameters × versions | accumulators | optimizer state | what micro-batches gather | prepared ×
//   versions | activation slots | values handed on | gradients handed back | temporaries
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/stage/slice.h"
#include "pipeline/stage/stage_layout.h"

namespace pipetrain {

/// Bytes of a stage's memory, by purpose.
struct ArenaBytes {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, transfers = 0,
              temporaries = 0;  // with the kernels' workspace
  std::size_t total() const {
    return parameters + gradients + optimizer + activations + transfers + temporaries;
  }
};

/// One shape at which the stage's network runs.
struct ArenaVariant {
  const TrainingGraph* training = nullptr;
  const StageSlice* slice = nullptr;
  const StageLayout* layout = nullptr;
};

inline constexpr std::size_t kNoPlace = static_cast<std::size_t>(-1);

/// A parameter of all variants that hold one of this name.
struct ParameterPlace {
  std::string name;
  TensorType type;
  std::size_t offset = 0;  // in the block of one version
  bool trained = false;
  std::size_t state0 = kNoPlace, state1 = kNoPlace;  // offsets of optimizer state
  std::size_t average = kNoPlace;                    // and of the moving average
};

/// Offsets in the arena, and sizes. Slots and entries lie one behind the other.
struct StageArena {
  std::vector<ParameterPlace> parameters;
  std::size_t parameter_block_bytes = 0;  // of one version
  std::size_t parameter_block = 0;
  std::vector<std::size_t> accumulators;           // by accumulation; kNoPlace where not needed
  std::size_t batched = 0, batched_bytes = 0;      // of all variants; of one set
  std::vector<std::vector<std::size_t>> prepared;  // [variant][version]
  std::size_t slot_bytes = 0, forward_out_bytes = 0, gradient_out_bytes = 0;
  std::size_t slots = 0, forward_out = 0, gradient_out = 0, temporary = 0;
  std::size_t bytes = 0;
  ArenaBytes memory;  // without the workspace
};

StageArena plan_arena(const std::vector<ArenaVariant>& variants, const StageCapacity& capacity,
                      const OptimizerSettings& optimizer);

/// Stages of one process run pieces of each other's work (pipeline/transport/shared_work.h), in the
/// largest workspace of their device. Given what the kernels of each stage want and its devices
/// (Program::placement), returns how large the workspaces are: one on each device is enough for
/// every stage.
std::vector<std::size_t> shared_workspaces(std::vector<std::size_t> wanted,
                                           const std::vector<std::vector<int>>& placement);

/// The workspace that a stage's own kernels want: `workspace_bytes` by node of its graph.
std::size_t wanted_workspace(const StageSlice& slice,
                             const std::vector<std::size_t>& workspace_bytes);

/// What a stage will take that runs one variant, without its workspace.
ArenaBytes predict_arena(const TrainingGraph& training, const Slices& slices, int stage,
                         const StageCapacity& capacity, const OptimizerSettings& optimizer);

}  // namespace pipetrain
