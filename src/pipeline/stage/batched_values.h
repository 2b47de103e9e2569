// What the micro-batches of a step have computed of some values, side by side, for weight gradients
// that are computed over several of them at once.
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
  /// Lets the set be read while the next one is filled.
  void begin_next_set() { set_ = (set_ + 1) % sets_; }
  /// Keeps what a micro-batch of `variant` has computed.
  void add(int variant, const StageAddresses& addresses, const StageExecutor& executor);
  /// Whether the gradients over them are to be computed, after `micro_batch`: there are as many
  /// micro-batches as these want, or no more will come.
  bool are_complete(const StageMicroBatch& micro_batch) const;
  /// Fills the set up with zeros and forgets what it has.
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
