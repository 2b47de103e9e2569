// Stage: where values stop being finite.
#include <algorithm>

#include "base/error.h"
#include "graph/op.h"
#include "pipeline/stage/stage.h"
#include "tensor/finite.h"

namespace pipetrain {

bool Stage::sends_finite(int variant, const std::byte* base, bool gradient) const {
  const CompiledVariant& compiled = this->compiled(variant);
  for (const ValueEdge& edge : compiled.slices->edges) {
    if (edge.from != index_ || edge.gradient != gradient) continue;
    for (const ValueId id : edge.values) {
      auto* data = const_cast<std::byte*>(base) + compiled.layout.location.at(id).offset;
      if (!all_finite({compiled.training->graph[id].type, data})) return false;
    }
  }
  return true;
}

PassPlace Stage::place_of(const StageMicroBatch& micro_batch) const {
  return {micro_batch.step,
          static_cast<std::int32_t>(micro_batch.first_sample / compiled(0).training->micro_batch)};
}

/// What is not finite in the values that flow back makes a row or a column of the gradient of a
/// weight so, whichever of its axes they belong to: the edges tell. Reading all gradients would
/// take a few percent of a step.
bool Stage::seems_finite(int accumulation) const {
  const TrainingGraph& training = *compiled(0).training;
  const TensorType& type =
      training.graph[training.accumulations[at(accumulation)].accumulator].type;
  std::byte* sum = memory_.accumulators()[at(accumulation)];
  const TouchedRows* touched = compiled_.touched_rows[at(accumulation)].get();
  if (!touched || touched->all()) return edges_finite({type, sum});
  const std::int64_t width = type.count() / touched->rows();
  const TensorType row = {type.dtype, {width}};
  return std::all_of(touched->list().begin(), touched->list().end(), [&](std::int64_t one) {
    return all_finite({row, sum + static_cast<std::size_t>(one) * row.bytes()});
  });
}

std::optional<NonfiniteValue> Stage::nonfinite_gradient(bool all) const {
  const CompiledVariant& compiled = this->compiled(0);
  const TrainingGraph& training = *compiled.training;
  for (const auto* steps :
       {&compiled.backward, &compiled.weight_gradient, &compiled.batch_gradient}) {
    if (!all && steps == &compiled.batch_gradient) break;
    for (const StageStep& step : *steps) {
      for (const StageStepAddition& addition : step.additions) {
        if (seems_finite(addition.accumulation)) continue;
        const Accumulation& sum = training.accumulations[at(addition.accumulation)];
        NonfiniteValue value;
        value.what = fmt::format("node {} ({}) made {} not finite", printable(step.name),
                                 training.graph[step.node].op->name,
                                 printable(training.graph[sum.accumulator].name));
        value.stage = index_;
        value.backward = true;
        return value;
      }
    }
  }
  return {};
}

std::optional<NonfiniteValue> Stage::find_nonfinite(const StageMicroBatch& micro_batch,
                                                    bool backward) {
  CompiledVariant& compiled = this->compiled(micro_batch.variant);
  const TrainingGraph& training = *compiled.training;
  NonfiniteSearch search(compiled, addresses(micro_batch), *executor_);
  if (compiled.layout.prepared_in_slot) search.run(compiled.prepare, /*backward=*/false);
  search.run(compiled.forward, /*backward=*/false);
  std::vector<ValueId> results;
  if (backward) {
    if (compiled.backward.empty()) {
      search.run(compiled.input_gradient, backward);
      search.run(compiled.weight_gradient, backward);
    } else {
      search.run(compiled.backward, backward);
    }
    for (const int i : compiled.slice->accumulations)
      results.push_back(training.accumulations[at(i)].contribution);
  } else if (compiled.has_loss) {
    results.push_back(training.loss.loss_sum);
  }
  for (const ValueEdge& edge : compiled.slices->edges) {
    if (edge.from == index_ && edge.gradient == backward)
      results.insert(results.end(), edge.values.begin(), edge.values.end());
  }
  std::optional<NonfiniteValue> found = search.origin_of(results);
  if (!found) return found;
  found->stage = index_;
  found->place = place_of(micro_batch);
  return found;
}

}  // namespace pipetrain
