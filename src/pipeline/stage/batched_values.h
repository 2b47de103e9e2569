// Values of several micro-batches side by side, for weight gradients that are computed over all of
// them at once.
#pragma once

#include <vector>

#include "pipeline/stage/stage_memory.h"

namespace pipetrain {

class BatchedValues {
 public:
  /// `compiled` outlives this. `sets`: how many of them the memory has room for.
  BatchedValues(const CompiledStage& compiled, int sets);

  /// The set that is being filled.
  int set() const { return set_; }
  /// Switches to the next set, so that this one can be read while the next is filled.
  void begin_next_set() { set_ = (set_ + 1) % sets_; }
  /// Copies the values of a micro-batch of `variant`.
  void add(int variant, const StageAddresses& addresses, StageExecutor& executor);
  /// Whether the gradients are to be computed after `micro_batch`: the batch is full, or it was the
  /// last micro-batch.
  bool are_complete(const StageMicroBatch& micro_batch) const;
  /// Empties the set.
  void clear() { variants_.clear(); }
  /// Pads the set with zeros and resets it.
  void fill_up(const StageMemory& memory);

 private:
  std::size_t wanted() const {
    return at(static_cast<int>(compiled_.variants.front().training->batched_micro_batches));
  }

  const CompiledStage& compiled_;
  int sets_;
  int set_ = 0;
  std::vector<int> variants_;  // of the micro-batches in the set
};

}  // namespace pipetrain
