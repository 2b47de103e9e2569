#include "pipeline/stage/stage_gradients.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "pipeline/transport/sum_tree.h"

namespace pipetrain {

void StageGradients::add(const StageStepAddition& addition, const StageAddresses& addresses,
                         bool first) {
  const std::size_t index = at(addition.accumulation);
  // The kernel of the first micro-batch wrote a direct contribution into the accumulator;
  // accumulating kernels always did.
  if (!addition.adds && (!addition.direct || !first)) {
    auto* to = reinterpret_cast<float*>((*addresses.accumulators)[index]);
    const float* from = addresses.floats_of(addition.from);
    if (first) {
      executor_.copy(to, from, addition.count * sizeof(float));
    } else {
      executor_.add(to, from, addition.count);
    }
  }
  const StageMicroBatch& micro_batch = *addresses.micro_batch;
  if (micro_batch.completes) join_leaves(index, addition.count, micro_batch.leaves);
  // Work on a stream is completed in reduce().
  if (group_ && micro_batch.completes && !executor_.is_asynchronous())
    group_->complete(replica_, compiled_.completed_as[index]);
}

/// Leaves the sum of all leaves in the first; `leaves`: bits of those that have gradients.
void StageGradients::join_leaves(std::size_t accumulation, std::size_t count,
                                 std::uint64_t leaves) {
  if (memory_.leaves() == 1) return;
  std::vector<bool> present;
  for (std::size_t leaf = 0; leaf < std::bit_ceil(memory_.leaves()); ++leaf)
    present.push_back(leaf < memory_.leaves() && (leaves >> leaf & 1) != 0);
  join_as_tree(std::move(present), [&](std::size_t to, std::size_t from) {
    executor_.add(reinterpret_cast<float*>(memory_.accumulators(to)[accumulation]),
                  reinterpret_cast<const float*>(memory_.accumulators(from)[accumulation]), count);
  });
}

const TensorType& StageGradients::type_of(int accumulation) const {
  const TrainingGraph& training = *compiled_.variants.front().training;
  return training.graph[training.accumulations[at(accumulation)].accumulator].type;
}

std::vector<std::size_t> StageGradients::sizes() const {
  std::vector<std::size_t> sizes;
  for (const int i : compiled_.completion)
    sizes.push_back(static_cast<std::size_t>(type_of(i).count()));
  return sizes;
}

std::vector<int> StageGradients::owners() const {
  std::vector<int> owners;
  for (const int i : compiled_.completion)
    owners.push_back(compiled_.owners.of_accumulation[at(i)]);
  return owners;
}

void StageGradients::join(ReplicaGroup& group, int replica) {
  group_ = &group;
  replica_ = replica;
  std::vector<std::span<float>> gradients;
  for (const int i : compiled_.completion)
    gradients.push_back(floats(memory_.accumulators()[at(i)], type_of(i)));
  group.bind(replica, std::move(gradients));
}

void StageGradients::reduce(bool contributes) {
  if (executor_.is_asynchronous() && !group_->in_streams()) {
    for (std::size_t k = 0; contributes && k < compiled_.completion.size(); ++k)
      group_->complete(replica_, k);
  }
  group_->reduce(replica_, contributes);
  for (const auto& rows : compiled_.touched_rows) {
    if (rows) rows->set_all();  // those of the other replicas
  }
}

void StageGradients::fetch(int accumulation, const StageGradients& from) {
  executor_.move(memory_.accumulators()[at(accumulation)],
                 from.memory_.accumulators()[at(accumulation)], type_of(accumulation).bytes());
}

std::string StageGradients::read(int accumulation) const {
  std::string bytes(type_of(accumulation).bytes(), '\0');
  executor_.move(bytes.data(), memory_.accumulators()[at(accumulation)], bytes.size());
  return bytes;
}

void StageGradients::write(int accumulation, std::string_view bytes) {
  executor_.move(memory_.accumulators()[at(accumulation)], bytes.data(), bytes.size());
}

std::byte* StageGradients::of_parameter(const CompiledVariant& variant, std::size_t k) const {
  const Location& place = variant.gradient_at[k];
  if (place.space == Space::kAccumulator) return memory_.accumulators()[place.offset];
  if (place.space == Space::kTemporary) return memory_.temporary() + place.offset;
  PT_CHECK(place.space == Space::kAbsent, kInternal, "a gradient in an unexpected place");
  return nullptr;
}

const TouchedRows* StageGradients::rows_of_parameter(const CompiledVariant& variant,
                                                     std::size_t k) const {
  const Location& place = variant.gradient_at[k];
  if (place.space != Space::kAccumulator) return nullptr;
  const TouchedRows* touched = compiled_.touched_rows[place.offset].get();
  return touched && !touched->all() ? touched : nullptr;
}

std::string StageGradients::first_nonfinite() const {
  for (const CompiledVariant& variant : compiled_.variants) {
    for (const int i : variant.slice->accumulations) {
      const ValueId id = variant.training->accumulations[at(i)].accumulator;
      const Value& value = variant.training->graph[id];
      if (!executor_.is_finite(floats(memory_.accumulators()[at(i)], value.type)))
        return printable(value.name);
    }
  }
  return {};
}

}  // namespace pipetrain
