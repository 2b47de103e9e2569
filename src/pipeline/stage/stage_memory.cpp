#include "pipeline/stage/stage_memory.h"

namespace pipetrain {

StageMemory::StageMemory(const CompiledStage& compiled, StageExecutor& executor)
    : arena_(compiled.arena), halves_(executor.take_arena(arena_)), bytes_(arena_.memory) {
  std::vector<std::byte*>& first = accumulators_.emplace_back();
  for (const std::size_t offset : arena_.accumulators)
    first.push_back(offset == kNoPlace || offset < arena_.slots
                        ? reinterpret_cast<std::byte*>(floats_at(offset))
                        : from_slots(offset));
  for (const std::vector<std::size_t>& offsets : arena_.more_accumulators) {
    std::vector<std::byte*>& more = accumulators_.emplace_back();
    for (const std::size_t offset : offsets)
      more.push_back(reinterpret_cast<std::byte*>(floats_at(offset)));
  }
  for (const CompiledVariant& variant : compiled.variants) place_constants(variant, executor);
  bytes_.parameters += executor.constant_bytes();
  workspace_bytes_ = compiled.workspace_bytes;
  bytes_.temporaries += workspace_bytes_;
  executor.take_workspace(workspace_bytes_);
}

void StageMemory::place_constants(const CompiledVariant& variant, StageExecutor& executor) {
  const Graph& graph = variant.training->graph;
  std::vector<std::byte*>& constants = constants_.emplace_back(graph.values.size(), nullptr);
  for (const ValueId id : variant.constants) {
    std::byte*& address = constants[at(id.index)];
    if (graph[id].data && !address) address = executor.place_constant(graph[id].data);
  }
}

void StageMemory::take_workspace(std::size_t bytes, StageExecutor& executor) {
  if (bytes <= workspace_bytes_) return;
  executor.take_workspace(bytes);
  bytes_.temporaries += bytes - workspace_bytes_;
  workspace_bytes_ = bytes;
}

StageAddresses StageMemory::addresses(int variant, const StageMicroBatch& micro_batch,
                                      int batched_set, StageExecutor& executor) const {
  const int copy = micro_batch.version_copy;
  return {&constants_[at(variant)],
          &accumulators_[at(micro_batch.leaf)],
          &micro_batch,
          weights(copy),
          halves_.begin + arena_.prepared[at(variant)][at(copy)],
          slot(micro_batch.slot),
          micro_batch.forward_out,
          micro_batch.gradient_out,
          temporary(),
          batched(batched_set),
          executor.loss_scale()};
}

}  // namespace pipetrain
