// Stage: from gradients to new weights.
#include <algorithm>

#include "optim/update.h"
#include "pipeline/stage/stage.h"

namespace pipetrain {

std::vector<std::size_t> Stage::gradient_sizes() const { return gradients_.sizes(); }

std::vector<int> Stage::gradient_owners() const { return gradients_.owners(); }

void Stage::join(ReplicaGroup& group, int replica) { gradients_.join(group, replica); }

void Stage::reduce(std::span<Stage* const> all, bool contributes) {
  ReplicaGroup& group = *gradients_.group();
  // A reduce on the streams waits for their work; running statistics are on the host.
  if (!group.in_streams() || !statistics_.empty()) statistics_.flush();
  gradients_.reduce(contributes);
  if (statistics_.empty()) return;
  statistics_of_replicas_.clear();
  for (const Stage* stage : all)
    statistics_of_replicas_.push_back(stage ? &stage->statistics_ : nullptr);
  statistics_.reduce(group, gradients_.replica(), statistics_of_replicas_);
}

void Stage::fetch_remote(int variant, std::span<Stage* const> stages) {
  const CompiledVariant& compiled = this->compiled(variant);
  for (const int i : compiled.slice->remote_accumulations) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& local = compiled.slices->stages[s].accumulations;
      if (!stages[s] || std::find(local.begin(), local.end(), i) == local.end()) continue;
      gradients_.fetch(i, stages[s]->gradients_);
    }
  }
}

std::string Stage::read_accumulator(int accumulation) const {
  return gradients_.read(accumulation);
}

void Stage::write_accumulator(int accumulation, std::string_view bytes) {
  gradients_.write(accumulation, bytes);
}

void Stage::finish_gradients(int variant, int version_copy) {
  std::vector<StageStep>& steps = compiled(variant).finish;
  // All micro-batches may have been of another variant. With one micro-batch, the gradients are
  // where prepared weights were; what is read here has a place of its own.
  if (!steps.empty() && !compiled(variant).layout.prepared_in_slot) prepare(variant, version_copy);
  StageMicroBatch none;
  none.variant = variant;
  none.version_copy = version_copy;
  run(steps, none, /*first=*/false);
}

/// Whether this replica updates the k-th parameter of variant 0.
bool Stage::is_updated_here(std::size_t k) const {
  const int owner = compiled_.owners.of_parameter[k];
  return owner == kEveryReplica || owner == share_.replica;
}

void Stage::squared_norms(int variant, std::span<double> out) {
  const CompiledVariant& compiled = this->compiled(variant);
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    std::byte* gradient = gradients_.of_parameter(compiled, k);
    const std::size_t parameter = at(compiled.slice->parameters[k]);
    const bool counts = compiled_.owners.of_parameter[k] == kEveryReplica
                            ? gradients_.replica() == 0
                            : is_updated_here(k);
    if (!gradient || compiled.slices->owner[parameter] != index_ || !counts) continue;
    executor_->sum_of_squares(floats(gradient, parameters_.of(variant)[k]->type), out[parameter]);
  }
  executor_->finish_sums();
}

void Stage::update(int variant, int from, int to, double learning_rate, std::int64_t step,
                   double gradient_scale) {
  flush_prepare();  // it reads weights that are written now
  const CompiledVariant& compiled = this->compiled(variant);
  std::byte* target = memory_.weights(to);
  if (from != to) executor_->copy(target, memory_.weights(from), memory_.weights_bytes());
  StageUpdates& updates = updates_[at(variant)];
  updates.parameters.clear();
  updates.averages.clear();
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *parameters_.of(variant)[k];
    std::byte* gradient = gradients_.of_parameter(compiled, k);
    if (!gradient || !is_updated_here(k)) continue;
    const auto count = static_cast<std::size_t>(parameter.type.count());
    const auto state = [&](float* data) {
      return data ? std::span<float>(data, count) : std::span<float>();
    };
    updates.parameters.push_back({&parameter.optimizer.settings,
                                  learning_rate * parameter.optimizer.learning_rate_scale,
                                  floats(target + parameter.offset, parameter.type),
                                  std::span<const float>(floats(gradient, parameter.type)),
                                  state(parameter.state0), state(parameter.state1)});
    ParameterUpdate& update = updates.parameters.back();
    const TouchedRows* touched = gradients_.rows_of_parameter(compiled, k);
    if (const auto* rows =
            parameters_.rows_to_update(parameter, touched, update.learning_rate, gradient_scale)) {
      update.has_rows = true;
      update.rows = *rows;
      update.row_floats = count / at(touched->rows());
    }
    updates.averages.push_back(shares_updates() ? nullptr : parameter.average);
  }
  executor_->update(updates, step, gradient_scale, optimizer_.average_decay, sharing_);
  if (shares_updates()) share_weights(to, step);
  parameters_.note_change(to);
  // Here rather than before the first forward, which the next stage waits for.
  defer_prepare(0, to);
}

/// Takes the new weights from their owners and hands ours on; then all averages follow.
void Stage::share_weights(int to, std::int64_t step) {
  std::vector<OwnedWeights> weights;
  const CompiledVariant& compiled = this->compiled(0);
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *parameters_.of(0)[k];
    const std::span<float> values = floats(memory_.weights(to) + parameter.offset, parameter.type);
    if (compiled_.owners.of_parameter[k] != kEveryReplica)
      weights.push_back({compiled_.owners.of_parameter[k], values});
  }
  gradients_.group()->share_weights(gradients_.replica(), std::move(weights));
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *parameters_.of(0)[k];
    if (!parameter.average || !gradients_.of_parameter(compiled, k)) continue;
    const std::span<float> values = floats(memory_.weights(to) + parameter.offset, parameter.type);
    update_average(optimizer_.average_decay, step, {parameter.average, values.size()}, values);
  }
}

void Stage::apply_statistics() { statistics_.apply(); }

void Stage::forget_statistics() { statistics_.forget(); }

}  // namespace pipetrain
