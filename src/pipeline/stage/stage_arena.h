// The memory plan of a stage: the offsets of everything in its single block. A pure function, so
// that planning predicts exactly what a run allocates.
//
//   parameters × versions | accumulators | optimizer state | batched values | prepared ×
//   versions | activation slots | outputs | input gradients | temporaries
//
// With one micro-batch per step, accumulators and prepared weights may lie in the activation slot,
// and so may the prepared weights of an evaluation.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/stage/slice.h"
#include "pipeline/stage/stage_layout.h"
#include "pipeline/stage/update_owners.h"

namespace pipetrain {

/// Bytes of a stage's memory, by purpose.
struct ArenaBytes {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, transfers = 0,
              temporaries = 0;  // including the kernels' workspace
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

/// A parameter, shared by name between variants.
struct ParameterPlace {
  std::string name;
  TensorType type;
  std::size_t offset = 0;  // in the block of one version
  bool trained = false;
  bool updated_here = true;                          // not by another replica
  std::size_t state0 = kNoPlace, state1 = kNoPlace;  // offsets of optimizer state
  std::size_t average = kNoPlace;                    // and of the moving average
};

struct ArenaRange {
  std::size_t offset = 0, bytes = 0;
};

/// Offsets in the arena, and sizes. Slots and entries are contiguous.
struct StageArena {
  std::vector<ParameterPlace> parameters;
  std::size_t parameter_block_bytes = 0;  // of one version
  std::size_t parameter_block = 0;
  // By accumulation; kNoPlace where not needed; behind `slots` where they lie among activations.
  std::vector<std::size_t> accumulators;
  /// The same of further leaves of a tree of sums; kNoPlace also where another stage adds.
  std::vector<std::vector<std::size_t>> more_accumulators;
  /// Gradients and optimizer states of embeddings: rows that no sample has used are never written.
  std::vector<ArenaRange> sparse;
  std::size_t batched = 0, batched_bytes = 0;      // of all variants; of one set
  std::vector<std::vector<std::size_t>> prepared;  // [variant][version]
  std::size_t slot_bytes = 0, forward_out_bytes = 0, gradient_out_bytes = 0;
  std::size_t slots = 0, forward_out = 0, gradient_out = 0, temporary = 0;
  std::size_t bytes = 0;
  ArenaBytes memory;  // without the workspace
};

StageArena plan_arena(const std::vector<ArenaVariant>& variants, const StageCapacity& capacity,
                      const OptimizerSettings& optimizer, const UpdateShare& share = {});

/// Stages of one process run tasks of each other (pipeline/transport/shared_work.h) in the largest
/// workspace of their device. Given the workspace that each stage's kernels need and its devices
/// (Program::placement), returns the workspace sizes with which some workspace of every device is
/// large enough for every stage.
std::vector<std::size_t> shared_workspaces(std::vector<std::size_t> wanted,
                                           const std::vector<std::vector<int>>& placement);

/// The workspace that a stage's own kernels need; `workspace_bytes` by node of its graph.
std::size_t wanted_workspace(const StageSlice& slice,
                             const std::vector<std::size_t>& workspace_bytes);

/// The layouts of a stage's variants; those without gradients only evaluate.
std::vector<StageLayout> lay_out_variants(const std::vector<StageVariant>& variants, int stage,
                                          const StageCapacity& capacity);

/// The memory of a stage with these variants, without its workspace and copies of constants.
ArenaBytes predict_arena(const std::vector<StageVariant>& variants, int stage,
                         const StageCapacity& capacity, const OptimizerSettings& optimizer,
                         const UpdateShare& share = {});

/// What a device has copies of: the constants that the variants of a stage read, such as frozen
/// weights; those with the same bytes once.
std::size_t constant_bytes(const std::vector<StageVariant>& variants, int stage);

}  // namespace pipetrain
