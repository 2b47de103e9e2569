// Stage: the lists that it runs for each micro-batch.
#include "pipeline/stage/stage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "pipeline/stage/stage_device.h"
#include "pipeline/stage/stage_host.h"

namespace pipetrain {
namespace {

std::unique_ptr<StageExecutor> make_executor(Backend backend, const StageStreams& streams) {
  if (streams.compute) return std::make_unique<StageDevice>(*streams.compute, *streams.transfer);
  return std::make_unique<StageHost>(backend);
}

}  // namespace

Stage::Stage(int index, const std::vector<StageVariant>& variants, Backend backend,
             const StageCapacity& capacity, const OptimizerSettings& optimizer,
             const StageStreams& streams, const UpdateShare& share,
             const std::function<void(const std::string&)>& has_copied)
    : index_(index),
      share_(share),
      capacity_(capacity),
      optimizer_(optimizer),
      executor_(make_executor(backend, streams)),
      compiled_(compile_stage(index, variants, capacity, optimizer, share, *executor_)),
      memory_(compiled_, *executor_),
      parameters_(compiled_, memory_, *executor_, optimizer, capacity.versions),
      gradients_(compiled_, memory_, *executor_),
      statistics_(compiled_, *executor_, memory_),
      batched_(compiled_, capacity.batched_sets),
      updates_(variants.size()),
      forwards_(variants.size(), 0) {
  executor_->synchronize();
  write_initial_weights(variants, has_copied);
}

/// From the smallest on: what is then released makes room for the next.
void Stage::write_initial_weights(const std::vector<StageVariant>& variants,
                                  const std::function<void(const std::string&)>& has_copied) {
  std::map<std::string, const HostTensor*> values;
  for (const StageVariant& variant : variants) {
    // Those of other stages may be released at any time.
    for (const int i : variant.slices->stages[at(index_)].parameters) {
      const Parameter& parameter = variant.training->parameters[at(i)];
      // Without initial weights, which a run may have released, they are written later.
      const HostTensor& value = variant.training->graph[parameter.value].data;
      if (value) values.emplace(parameter.name, &value);
    }
  }
  std::vector<std::pair<std::string, const HostTensor*>> in_order(values.begin(), values.end());
  std::ranges::stable_sort(in_order, {},
                           [](const auto& one) { return one.second->type().bytes(); });
  for (const auto& [name, value] : in_order) {
    if (write(name, *value) && has_copied) has_copied(name);
  }
}

void Stage::synchronize() const { executor_->synchronize(); }

std::size_t Stage::table_size(int variant) const { return compiled(variant).table_size; }
bool Stage::has_loss(int variant) const { return compiled(variant).has_loss; }

void Stage::begin(StageMicroBatch& micro_batch) {
  executor_->begin(compiled(micro_batch.variant), micro_batch);
}

void Stage::end(StageMicroBatch& micro_batch) {
  executor_->end(micro_batch, has_loss(micro_batch.variant) ? &loss_ : nullptr);
}

void Stage::bind_received(int variant, const ValueEdge& edge, const Stage& sender,
                          const std::byte* base, const StreamPoint* written,
                          StageMicroBatch& micro_batch) const {
  const StageLayout& here = compiled(variant).layout;
  const StageLayout& there = sender.compiled(variant).layout;
  for (const ValueId id : edge.values)
    micro_batch.table[here.table.at(id)] = base + there.location.at(id).offset;
  executor_->receive(compiled(variant), edge, sender.executor_->device(), written, micro_batch);
}

StageAddresses Stage::addresses(const StageMicroBatch& micro_batch) const {
  return memory_.addresses(micro_batch.variant, micro_batch, batched_.set(), *executor_);
}

/// Runs a list of the micro-batch's variant, and accumulates what its steps do not.
StageAddresses Stage::run(std::vector<StageStep>& steps, const StageMicroBatch& micro_batch,
                          bool first, std::span<const StageStepAddition> late_additions) {
  const CompiledVariant& variant = compiled(micro_batch.variant);
  const StageAddresses addresses = this->addresses(micro_batch);
  StepListRun list(*variant.training, steps, addresses, first, gradients_, *executor_);
  if (variant.reads_loss_scale) executor_->set_loss_scale(micro_batch.loss_scale);
  statistics_.upload(variant);
  const auto run_list = [&] {
    list.run_dependent();
    if (sharing_.work && list.count() > 1) {
      sharing_.work->run(sharing_.job, sharing_.device, list, workspace().data);
    } else {
      list.run_independent();
    }
    for (const StageStepAddition& addition : late_additions)
      gradients_.add(addition, addresses, first);
  };
  executor_->run(steps, addresses, first, std::ref(run_list));
  return addresses;
}

StageAddresses Stage::run_forward(const StageMicroBatch& micro_batch) {
  CompiledVariant& variant = compiled(micro_batch.variant);
  const StageAddresses addresses = run(variant.forward, micro_batch, /*first=*/false);
  if (!variant.has_loss) return addresses;
  const auto address_of = [&](ValueId id) {
    return addresses.floats_of(variant.layout.location.at(variant.root(id)));
  };
  const Loss& loss = variant.training->loss;
  executor_->take_loss(micro_batch, address_of(loss.loss_sum),
                       loss.correct ? address_of(loss.correct) : nullptr, loss_);
  return addresses;
}

std::byte* Stage::forward(StageMicroBatch& micro_batch, int entry, bool count_statistics) {
  const int variant = micro_batch.variant;
  prepare(variant, micro_batch.version_copy);
  micro_batch.forward_out = memory_.forward_out(entry);
  micro_batch.gradient_out = nullptr;
  const StageAddresses addresses = run_forward(micro_batch);
  ++forwards_[at(variant)];
  if (count_statistics) statistics_.collect(variant, compiled(variant), addresses);
  return micro_batch.forward_out;
}

void Stage::recompute(StageMicroBatch& micro_batch) {
  const StageLayout& layout = compiled(micro_batch.variant).layout;
  prepare(micro_batch.variant, micro_batch.version_copy);
  micro_batch.forward_out = memory_.slot(micro_batch.slot) + layout.slot_bytes;
  run_forward(micro_batch);
}

std::byte* Stage::backward(StageMicroBatch& micro_batch, int entry, Pass pass, bool first) {
  CompiledVariant& variant = compiled(micro_batch.variant);
  prepare(micro_batch.variant, micro_batch.version_copy);
  forget_overwritten(micro_batch.variant);  // now, as it may fail
  if (pass != Pass::kWeight) micro_batch.gradient_out = memory_.gradient_out(entry);
  // A stage with split backwards has no whole one: it runs both halves.
  const bool whole = pass == Pass::kFull && !capacity_.split_backward;
  if (!whole && pass != Pass::kWeight) run(variant.input_gradient, micro_batch, first);
  if (pass == Pass::kInput) return micro_batch.gradient_out;
  const StageAddresses addresses = run(whole ? variant.backward : variant.weight_gradient,
                                       micro_batch, first, variant.late_additions);
  batched_.add(micro_batch.variant, addresses, *executor_);
  return micro_batch.gradient_out;
}

void Stage::complete_gradients(const StageMicroBatch& micro_batch) {
  if (!batched_.are_complete(micro_batch)) return;
  batched_.fill_up(memory_);
  flush_gradients();  // which come first in the sums
  StageMicroBatch& all = batch_gradients_.micro_batch;
  all.version_copy = micro_batch.version_copy;
  all.completes = micro_batch.completes;
  const bool first = !std::exchange(has_batch_sums_, !micro_batch.completes);
  std::vector<StageStep>& steps = compiled(0).batch_gradient;
  if (!sharing_.work) {
    run(steps, all, first);
    return;
  }
  defer(batch_gradients_, steps, first);
  batched_.begin_next_set();
}

void Stage::flush_gradients() {
  if (sharing_.work) sharing_.work->complete(batch_gradients_.job, workspace().data);
}

void Stage::forget_round() {
  batched_.clear();
  has_batch_sums_ = false;
  statistics_.forget();
}

/// Runs the dependent steps; idle devices may run the independent ones until the job is completed.
void Stage::defer(Deferred& what, std::vector<StageStep>& steps, bool first) {
  what.run.emplace(*compiled(what.micro_batch.variant).training, steps, addresses(what.micro_batch),
                   first, gradients_, *executor_);
  what.run->run_dependent();
  sharing_.work->post(what.job, sharing_.device, *what.run);
}

void Stage::prepare(int variant, int version_copy) {
  flush_prepare();
  for (int other = 0; other < static_cast<int>(compiled_.variants.size()); ++other) {
    if (other != variant) forget_overwritten(other);
  }
  std::vector<StageStep>& steps = compiled(variant).prepare;
  if (steps.empty() || parameters_.is_prepared(variant, version_copy)) return;
  StageMicroBatch none;
  none.variant = variant;
  none.version_copy = version_copy;
  forget_overwritten(variant);
  run(steps, none, /*first=*/false);
  parameters_.note_prepared(variant, version_copy, parameters_.generation(version_copy));
}

void Stage::release_activations() {
  executor_->release_activations();
  for (int variant = 0; variant < static_cast<int>(compiled_.variants.size()); ++variant)
    forget_overwritten(variant);
}

/// Before a backward pass of a variant, a pass of another one in its slot, or its preparation.
void Stage::forget_overwritten(int variant) {
  if (compiled(variant).layout.prepared_in_slot) parameters_.forget_prepared(variant);
}

/// Deferred: idle devices run it, or the first consumer flushes it.
void Stage::defer_prepare(int variant, int version_copy) {
  // The gradients that lie in the slot may still be read.
  if (compiled(variant).layout.prepared_in_slot) return;
  if (!sharing_.work) return prepare(variant, version_copy);
  std::vector<StageStep>& steps = compiled(variant).prepare;
  if (steps.empty()) return;
  preparation_.list.micro_batch.variant = variant;
  preparation_.list.micro_batch.version_copy = version_copy;
  defer(preparation_.list, steps, /*first=*/false);
  preparation_.variant = variant;
  preparation_.generation = parameters_.generation(version_copy);
}

void Stage::flush_prepare() {
  const int variant = std::exchange(preparation_.variant, -1);
  if (variant < 0 || !sharing_.work->complete(preparation_.list.job, workspace().data)) return;
  parameters_.note_prepared(variant, preparation_.list.micro_batch.version_copy,
                            preparation_.generation);
}

void Stage::share(SharedWork& work, int device, std::size_t workspace_bytes) {
  sharing_.work = &work;
  sharing_.device = device;
  memory_.take_workspace(workspace_bytes, *executor_);
}

void Stage::take_kernel_times(int variant, KernelTimes& out) {
  CompiledVariant& compiled = this->compiled(variant);
  out.seconds.resize(compiled.training->graph.nodes.size(), 0.0);
  for (auto* steps :
       {&compiled.prepare, &compiled.forward, &compiled.backward, &compiled.input_gradient,
        &compiled.weight_gradient, &compiled.batch_gradient, &compiled.finish}) {
    for (StageStep& step : *steps)
      out.seconds[at(step.node.index)] += std::exchange(step.seconds, 0.0);
  }
  const std::int64_t forwards = std::exchange(forwards_[at(variant)], 0);
  if (index_ == 0) out.micro_batches += forwards;
}

}  // namespace pipetrain
