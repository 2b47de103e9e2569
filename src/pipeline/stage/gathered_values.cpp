#include "pipeline/stage/gathered_values.h"

#include <cstring>

namespace pipetrain {

GatheredValues::GatheredValues(const CompiledStage& compiled, int sets)
    : compiled_(compiled), sets_(sets) {
  if (!compiled.variants.front().gatherings.empty()) variants_.reserve(wanted());
}

void GatheredValues::add(int variant, const StageAddresses& addresses,
                         const StageExecutor& executor) {
  const std::vector<StageGathering>& gatherings = compiled_.variants[at(variant)].gatherings;
  if (gatherings.empty()) return;
  const std::size_t place = variants_.size();
  for (const StageGathering& gathering : gatherings)
    executor.move(addresses.gathered + gathering.to + place * gathering.micro_batch_bytes,
                  addresses.of(gathering.from), gathering.bytes);
  variants_.push_back(variant);
}

bool GatheredValues::are_complete(const StageMicroBatch& micro_batch) const {
  return !compiled_.variants.front().batch_gradient.empty() &&
         (variants_.size() >= wanted() || micro_batch.completes);
}

void GatheredValues::fill_up(const StageMemory& memory) {
  // Micro-batches that are short or not there add nothing.
  const std::vector<StageGathering>& gatherings = compiled_.variants.front().gatherings;
  for (std::size_t place = 0; place < wanted(); ++place) {
    for (std::size_t i = 0; i < gatherings.size(); ++i) {
      const StageGathering& whole = gatherings[i];
      std::size_t there = 0;
      if (place < variants_.size())
        there = compiled_.variants[at(variants_[place])].gatherings[i].bytes;
      std::memset(memory.gathered(set_) + whole.to + place * whole.micro_batch_bytes + there, 0,
                  whole.micro_batch_bytes - there);
    }
  }
  variants_.clear();
}

}  // namespace pipetrain
