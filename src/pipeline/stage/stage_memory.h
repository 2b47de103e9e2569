// The allocated memory of a stage: its plan with addresses.
#pragma once

#include <cstddef>
#include <vector>

#include "base/index.h"
#include "pipeline/stage/stage_addresses.h"
#include "pipeline/stage/stage_executor.h"

namespace pipetrain {

class StageMemory {
 public:
  /// Allocates the arena, constants and a workspace. The plan must outlive this.
  StageMemory(const CompiledStage& compiled, StageExecutor& executor);

  /// Bytes by purpose, including the workspace and copies of constants.
  const ArenaBytes& bytes() const { return bytes_; }
  /// Grows the workspace to at least this size.
  void take_workspace(std::size_t bytes, StageExecutor& executor);

  /// One copy of all parameters.
  std::byte* weights(int copy) const {
    return halves_.begin + arena_.parameter_block + at(copy) * arena_.parameter_block_bytes;
  }
  std::size_t weights_bytes() const { return arena_.parameter_block_bytes; }
  /// Floats at an offset before the slots; null: kNoPlace.
  float* floats_at(std::size_t offset) const {
    return offset == kNoPlace ? nullptr : reinterpret_cast<float*>(halves_.begin + offset);
  }
  /// By index of TrainingGraph::accumulations; null where not needed.
  const std::vector<std::byte*>& accumulators() const { return accumulators_.front(); }
  /// Those of a leaf of the tree of sums; the first has the sum.
  const std::vector<std::byte*>& accumulators(std::size_t leaf) const {
    return accumulators_[leaf];
  }
  std::size_t leaves() const { return accumulators_.size(); }
  std::byte* slot(int slot) const { return halves_.slots + at(slot) * arena_.slot_bytes; }
  std::byte* forward_out(int entry) const {
    return from_slots(arena_.forward_out) + at(entry) * arena_.forward_out_bytes;
  }
  std::byte* gradient_out(int entry) const {
    return from_slots(arena_.gradient_out) + at(entry) * arena_.gradient_out_bytes;
  }
  std::byte* temporary() const { return from_slots(arena_.temporary); }
  /// One set of batched values.
  std::byte* batched(int set) const {
    return halves_.begin + arena_.batched + at(set) * arena_.batched_bytes;
  }
  /// Addresses of constants and running statistics, by value of a variant's graph.
  std::vector<std::byte*>& constants(int variant) { return constants_[at(variant)]; }

  /// The addresses of a list's operands for a micro-batch of `variant`, given the set of batched
  /// values that it uses.
  StageAddresses addresses(int variant, const StageMicroBatch& micro_batch, int batched_set,
                           StageExecutor& executor) const;

 private:
  std::byte* from_slots(std::size_t offset) const {
    return halves_.slots + (offset - arena_.slots);
  }
  void place_constants(const CompiledVariant& variant, StageExecutor& executor);

  const StageArena& arena_;
  ArenaHalves halves_;
  ArenaBytes bytes_;
  std::size_t workspace_bytes_ = 0;
  std::vector<std::vector<std::byte*>> accumulators_;  // [leaf]
  std::vector<std::vector<std::byte*>> constants_;     // [variant]
};

}  // namespace pipetrain
