// The memory layout of a stage's values, planned from their liveness.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "pipeline/stage/lifetimes.h"
#include "pipeline/stage/slice.h"

namespace pipetrain {

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
  /// step, since nothing else reads them (with one micro-batch per step, whatever reads them): root
  /// → accumulation.
  std::map<ValueId, int> direct;
  std::map<ValueId, std::size_t>
      table;  // roots that come from outside: index in StageMicroBatch::table
  /// Accumulators of embeddings' gradients: a step writes and reads only the rows that it uses, and
  /// the rest stays zero from step to step.
  std::set<int> by_rows;
  /// Accumulators that lie in the slot or in the temporaries; only with one micro-batch per step.
  std::map<int, Location> accumulators;
  std::size_t slot_bytes = 0, forward_out_bytes = 0, gradient_out_bytes = 0, prepared_bytes = 0;
  std::size_t batched_bytes = 0;
  std::size_t temporary_bytes = 0;  // the largest need of F, B, prepare and finish
  bool prepared_in_slot = false;    // backward passes and other variants overwrite prepared weights
};

/// Plans a stage. `split_backward`: what I computes and W reads is kept in the slot.
/// `one_micro_batch`: a step has one micro-batch and the stage one slot, so gradients may lie where
/// activations and prepared weights were that the backward pass has read for the last time. They
/// stay there until weights are prepared for the next pass. An evaluation has its prepared weights
/// in the slot, too.
StageLayout lay_out_stage(const TrainingGraph& training, const Slices& slices, int stage,
                          bool split_backward, bool one_micro_batch = false);

}  // namespace pipetrain
