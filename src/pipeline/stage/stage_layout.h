// Where every value of a stage lives: planned from liveness before any memory exists.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/stage/slice.h"

namespace pipetrain {

/// Bytes that a tensor takes in an arena: whole cache lines.
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// What an operand's address is relative to.
enum class Space : std::uint8_t {
  kAbsent,
  kConstant,   // offset is an index into TrainingGraph values: the constant's own memory
  kParameter,  // offset in the block of one weight version
  kState,      // offset is an index into TrainingGraph values: a running statistic
  kPrepared,   // offset in the block of prepared weights of one version
  kLossScale,
  kTable,        // index in StageMicroBatch::table
  kSlot,         // offset in the micro-batch's activation slot
  kForwardOut,   // offset in the micro-batch's block of handed-on values
  kGradientOut,  // offset in the micro-batch's block of gradients handed back
  kTemporary,    // offset in the temporaries
  kAccumulator,  // offset is an index of TrainingGraph::accumulations
  kBatched,      // offset in the block of what micro-batches gather
};

struct Location {
  Space space = Space::kAbsent;
  std::size_t offset = 0;
};

/// Layout of one variant on one stage. Offsets are multiples of 64.
struct StageLayout {
  std::map<ValueId, Location> location;  // of roots
  /// W contributions that go straight into their accumulator in the first micro-batch of a step:
  /// root → accumulation.
  std::map<ValueId, int> direct;
  std::map<ValueId, std::size_t>
      table;  // roots that come from outside: index in StageMicroBatch::table
  std::size_t slot_bytes = 0, forward_out_bytes = 0, gradient_out_bytes = 0, prepared_bytes = 0;
  std::size_t batched_bytes = 0;
  std::size_t temporary_bytes = 0;  // the largest need of F, B, prepare and finish
};

/// Plans a stage. `split_backward`: what I computes and W reads is kept in the slot.
StageLayout lay_out_stage(const TrainingGraph& training, const Slices& slices, int stage,
                          bool split_backward);

/// Packs buffers with lifetimes into one block: returns their offsets (multiples of 64) and the
/// block's size.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;  // inclusive
};
std::vector<std::size_t> pack(const std::vector<Lifetime>& buffers, std::size_t* total);

/// The same where a block of `inside_bytes` is there already, in which `taken` have their places:
/// what finds room in it goes there, the rest into a block of its own, whose size is `total`.
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
