#include "pipeline/stage/batched_values.h"

#include <cstring>

namespace pipetrain {

BatchedValues::BatchedValues(const CompiledStage& compiled, int sets)
    : compiled_(compiled), sets_(sets) {
  if (!compiled.variants.front().batched_values.empty()) variants_.reserve(wanted());
}

void BatchedValues::add(int variant, const StageAddresses& addresses, StageExecutor& executor) {
  const std::vector<StageBatchedValue>& batched_values =
      compiled_.variants[at(variant)].batched_values;
  if (batched_values.empty()) return;
  const std::size_t place = variants_.size();
  for (const StageBatchedValue& batched : batched_values)
    executor.copy(addresses.batched + batched.to + place * batched.micro_batch_bytes,
                  addresses.of(batched.from), batched.bytes);
  variants_.push_back(variant);
}

bool BatchedValues::are_complete(const StageMicroBatch& micro_batch) const {
  return !compiled_.variants.front().batch_gradient.empty() &&
         (variants_.size() >= wanted() || micro_batch.completes);
}

void BatchedValues::fill_up(const StageMemory& memory) {
  // Missing samples and micro-batches contribute zeros.
  const std::vector<StageBatchedValue>& batched_values = compiled_.variants.front().batched_values;
  for (std::size_t place = 0; place < wanted(); ++place) {
    for (std::size_t i = 0; i < batched_values.size(); ++i) {
      const StageBatchedValue& whole = batched_values[i];
      std::size_t there = 0;
      if (place < variants_.size())
        there = compiled_.variants[at(variants_[place])].batched_values[i].bytes;
      std::memset(memory.batched(set_) + whole.to + place * whole.micro_batch_bytes + there, 0,
                  whole.micro_batch_bytes - there);
    }
  }
  variants_.clear();
}

}  // namespace pipetrain
