// The memory layout of a stage's values, planned from their liveness.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/stage/slice.h"

namespace pipetrain {

/// Bytes that a tensor takes in an arena: whole cache lines.
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// The base of an operand's address.
enum class Space : std::uint8_t {
  kAbsent,
  kConstant,   // offset is an index into TrainingGraph values: the constant's own memory
  kParameter,  // offset in the block of one weight version
  kState,      // offset is an index into TrainingGraph values: a running statistic
  kPrepared,   // offset in the block of prepared weights of one version
  kLossScale,
  kTable,        // index in StageMicroBatch::table
  kSlot,         // offset in the micro-batch's activation slot
  kForwardOut,   // offset in the micro-batch's output buffer
  kGradientOut,  // offset in the micro-batch's buffer of input gradients
  kTemporary,    // offset in the temporaries
  kAccumulator,  // offset is an index of TrainingGraph::accumulations
  kBatched,      // offset in the block of batched values
};

struct Location {
  Space space = Space::kAbsent;
  std::size_t offset = 0;
};

/// Layout of one variant on one stage. Offsets are multiples of 64.
struct StageLayout {
  std::map<ValueId, Location> location;  // of roots
  /// W contributions that are written directly into their accumulator in the first micro-batch of a
  /// step: root → accumulation.
  std::map<ValueId, int> direct;
  std::map<ValueId, std::size_t>
      table;  // roots that come from outside: index in StageMicroBatch::table
  /// Accumulators that lie in the slot or in the temporaries: those of `gradients_in_slot`.
  std::map<int, Location> accumulators;
  std::size_t slot_bytes = 0, forward_out_bytes = 0, gradient_out_bytes = 0, prepared_bytes = 0;
  std::size_t batched_bytes = 0;
  std::size_t temporary_bytes = 0;  // the largest need of F, B, prepare and finish
};

/// Plans a stage. `split_backward`: what I computes and W reads is kept in the slot.
/// `gradients_in_slot`: a step has one micro-batch, so its gradients may lie where activations were
/// that the backward pass has read for the last time. They stay there until the next forward pass.
StageLayout lay_out_stage(const TrainingGraph& training, const Slices& slices, int stage,
                          bool split_backward, bool gradients_in_slot = false);

/// Packs buffers with lifetimes into one block: returns their offsets (multiples of 64) and the
/// block's size.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // inclusive
};
std::vector<std::size_t> pack(const std::vector<Lifetime>& buffers, std::size_t* total);

/// The same with an existing block of `inside_bytes` that already holds `taken`: buffers that fit
/// go there, the rest into a new block of size `total`.
struct PlacedLifetime {
  Lifetime lifetime;
  std::size_t offset = 0;
};
struct PackedPlace {
  bool inside = false;
  std::size_t offset = 0;
};
std::vector<PackedPlace> pack_into(const std::vector<Lifetime>& buffers,
                                   const std::vector<PlacedLifetime>& taken,
                                   std::size_t inside_bytes, std::size_t* total);

}  // namespace pipetrain
