#include "pipeline/stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "graph/op.h"
#include "ops/adding_kernel.h"
#include "pipeline/stage_device.h"
#include "pipeline/stage_state.h"

namespace pipetrain {

namespace {

void add_into(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

Stage::Stage(int index, std::vector<StageVariant> variants, Backend backend,
             const StageCapacity& capacity, const OptimizerSettings& optimizer,
             const StageStreams& streams)
    : index_(index), capacity_(capacity), optimizer_(optimizer) {
  if (streams.compute)
    on_device_ = std::make_unique<StageDevice>(*streams.compute, *streams.transfer);
  compile_stage(*this, index, variants, backend);
  for (const StageVariant& variant : variants) {
    for (const Parameter& parameter : variant.training->parameters) {
      write(parameter.name, variant.training->graph[parameter.value].data);
    }
  }
}

Stage::~Stage() = default;

std::size_t Stage::table_size(int variant) const {
  return variants_[static_cast<std::size_t>(variant)]->table_size;
}
bool Stage::has_loss(int variant) const {
  return variants_[static_cast<std::size_t>(variant)]->has_loss;
}

void Stage::synchronize() const {
  if (on_device_) on_device_->synchronize();
}

void Stage::move(void* to, const void* from, std::size_t bytes) const {
  if (on_device_) return on_device_->move(to, from, bytes);
  std::memcpy(to, from, bytes);
}

/// Training changes them with every update; they are read by evaluation.
void Stage::upload_running() {
  if (!on_device_ || !std::exchange(running_changed_, false)) return;
  for (const auto& [name, memory] : on_device_->running)
    move(memory.data(), running_.at(name).view().data, memory.bytes());
}

void Stage::begin(StageUnit& unit) {
  if (!on_device_) return;
  const auto variant = static_cast<std::size_t>(unit.variant);
  unit.block = on_device_->take_block();
  StageBlock& block = on_device_->block(unit.block);
  for (const StagePlace& place : on_device_->input_places[variant]) {
    std::byte* to = place.bytes > 0 ? block.inputs.data() + place.offset : nullptr;
    if (to) on_device_->transfer().copy(to, unit.table[place.table], place.bytes);
    unit.table[place.table] = to;
  }
  if (on_device_->input_bytes[variant] == 0) return;
  on_device_->transfer().record(*block.copied);
  on_device_->compute().wait(*block.copied);
  on_device_->compute().record(*block.settled);
  block.settles = true;
}

void Stage::end(StageUnit& unit) {
  if (!on_device_) return;
  StageBlock& block = on_device_->block(unit.block);
  if (block.settles) block.settled->synchronize();
  if (has_loss(unit.variant)) {
    const auto* results = reinterpret_cast<const float*>(block.results.data());
    loss_sum_ = static_cast<double>(results[0]);
    correct_ = static_cast<double>(results[1]);
  }
  on_device_->give_back(unit.block);
  unit.block = -1;
}

void Stage::bind_received(int variant, const ValueEdge& edge, const Stage& sender,
                          const std::byte* base, const StreamPoint* written,
                          StageUnit& unit) const {
  const StageLayout& here = variants_[static_cast<std::size_t>(variant)]->layout;
  const StageLayout& there = sender.variants_[static_cast<std::size_t>(variant)]->layout;
  for (const ValueId id : edge.values)
    unit.table[here.table.at(id)] = base + there.location.at(id).offset;
  if (!on_device_) return;
  if (&on_device_->device() == &sender.on_device_->device()) {
    if (written) on_device_->compute().wait(*written);
    return;
  }
  const auto at = static_cast<std::size_t>(variant);
  StageBlock& block = on_device_->block(unit.block);
  Stream& transfer = on_device_->transfer();
  std::byte* const received = on_device_->take_received(block);
  for (const ValueId id : edge.values) {
    const StagePlace& place = on_device_->received_places[at][here.table.at(id)];
    std::byte* to = received + place.offset;
    on_device_->fetch(sender.on_device_->device(), to, unit.table[place.table], place.bytes,
                      written);
    unit.table[place.table] = to;
  }
  transfer.record(*block.copied);
  on_device_->compute().wait(*block.copied);
}

/// Base addresses for one run of a list of steps.
struct StageBases {
  const std::vector<std::byte*>* constants;
  const std::vector<std::byte*>* accumulators;
  const StageUnit* unit;
  std::byte* parameter;
  std::byte* prepared;
  std::byte* slot;
  std::byte* forward_out;
  std::byte* gradient_out;
  std::byte* temporary;
  std::byte* gathered;
  float* loss_scale;

  void* address(const Location& at) const {
    switch (at.space) {
      case Space::kAbsent:
        return nullptr;
      case Space::kConstant:
      case Space::kState:
        return (*constants)[at.offset];
      case Space::kParameter:
        return parameter + at.offset;
      case Space::kPrepared:
        return prepared + at.offset;
      case Space::kLossScale:
        return loss_scale;
      case Space::kTable:
        return const_cast<std::byte*>(unit->table[at.offset]);
      case Space::kSlot:
        return slot + at.offset;
      case Space::kForwardOut:
        return forward_out + at.offset;
      case Space::kGradientOut:
        return gradient_out + at.offset;
      case Space::kTemporary:
        return temporary + at.offset;
      case Space::kAccumulator:
        return (*accumulators)[at.offset];
      case Space::kGathered:
        return gathered + at.offset;
    }
    return nullptr;
  }
};

void Stage::add(const StageStepAddition& addition, const StageBases& bases, bool first) {
  const auto index = static_cast<std::size_t>(addition.accumulation);
  // A direct contribution of the first unit was written into the accumulator by its kernel, and
  // kernels that can add it always are there.
  if (!addition.adds && (!addition.direct || !first)) {
    auto* to = reinterpret_cast<float*>(accumulators_[index]);
    const auto* from = static_cast<const float*>(bases.address(addition.from));
    if (on_device_) {
      Stream& stream = on_device_->compute();
      if (first) {
        stream.copy(to, from, addition.count * sizeof(float));
      } else {
        on_device_->device().add(stream, to, from, addition.count);
      }
    } else if (first) {
      std::memcpy(to, from, addition.count * sizeof(float));
    } else {
      add_into(to, from, addition.count);
    }
  }
  if (group_ && bases.unit->completes && !on_device_)
    group_->complete(replica_, completed_as_[index]);
}

void Stage::gather(const Compiled& variant, const StageUnit& unit, const StageBases& bases) {
  if (variant.gatherings.empty()) return;
  const std::size_t place = gathered_of_.size();
  for (const StageGathering& gathering : variant.gatherings)
    move(gathered_set() + gathering.to + place * gathering.unit_bytes,
         bases.address(gathering.from), gathering.bytes);
  gathered_of_.push_back(unit.variant);
}

namespace {

RunContext context_of(const TrainingGraph& training, const StageUnit& unit, std::byte* workspace) {
  RunContext context;
  context.workspace = workspace;
  context.seed = unit.seed;
  context.step = unit.step;
  context.first_sample = unit.first_sample;
  context.samples = training.micro_batch;
  return context;
}

}  // namespace

/// A list of steps on its way through one unit. Those that are independent are pieces of work that
/// other devices may run.
class Stage::ListRun : public SharedPieces {
 public:
  ListRun(Stage& stage, Compiled& variant, std::vector<StageStep>& steps, const StageUnit& unit,
          std::byte* forward_base, std::byte* gradient_base, bool first)
      : stage_(&stage),
        training_(variant.training),
        first_(first),
        bases_(stage.bases_of(variant, unit, forward_base, gradient_base)) {
    const auto independent = std::find_if(steps.begin(), steps.end(),
                                          [](const StageStep& step) { return step.independent; });
    dependent_ = {steps.begin(), independent};
    independent_ = {independent, steps.end()};
  }

  const StageBases& bases() const { return bases_; }
  std::size_t count() const override { return independent_.size(); }
  double seconds(std::size_t piece) const override { return independent_[piece].last_seconds; }
  std::size_t workspace_bytes(std::size_t piece) const override {
    return independent_[piece].kernel->workspace_bytes();
  }
  void run(std::size_t piece, std::byte* workspace) override {
    run_step(independent_[piece], workspace);
  }
  void run_dependent() {
    for (StageStep& step : dependent_) run_step(step, stage_->workspace_);
  }
  void run_independent() {
    for (StageStep& step : independent_) run_step(step, stage_->workspace_);
  }

 private:
  void* address(const Location& at, int direct, bool adding) const {
    if ((first_ || adding) && direct >= 0)
      return stage_->accumulators_[static_cast<std::size_t>(direct)];
    return bases_.address(at);
  }

  void run_step(StageStep& step, std::byte* workspace) {
    const double start = steady_seconds();
    const RunContext context = context_of(*training_, *bases_.unit, workspace);
    for (std::size_t i = 0; i < step.in.size(); ++i)
      step.in[i].data = address(step.in_at[i], step.in_direct[i], false);
    for (std::size_t i = 0; i < step.out.size(); ++i)
      step.out[i].data = address(step.out_at[i], step.out_direct[i], step.adding != nullptr);
    with_context([&] { return "running node " + printable(step.name); },
                 [&] {
                   if (step.adding && !first_) {
                     step.adding->run_adding(step.in, step.out, context);
                   } else {
                     step.kernel->run(step.in, step.out, context);
                   }
                 });
    for (const StageStepAddition& addition : step.additions) stage_->add(addition, bases_, first_);
    step.last_seconds = steady_seconds() - start;
    step.seconds += step.last_seconds;
  }

  Stage* stage_;
  const TrainingGraph* training_;
  bool first_;
  StageBases bases_;
  std::span<StageStep> dependent_, independent_;
};

StageBases Stage::bases_of(const Compiled& variant, const StageUnit& unit, std::byte* forward_base,
                           std::byte* gradient_base) {
  const auto copy = static_cast<std::size_t>(unit.version_copy);
  return {&variant.constants,
          &accumulators_,
          &unit,
          parameter_block_ + copy * parameter_block_bytes_,
          variant.prepared[copy],
          slots_ + static_cast<std::size_t>(unit.slot) * slot_bytes_,
          forward_base,
          gradient_base,
          temporary_,
          gathered_set(),
          on_device_ ? reinterpret_cast<float*>(on_device_->loss_scale.data()) : &loss_scale_};
}

void Stage::run(Compiled& variant, std::vector<StageStep>& steps, StageUnit& unit,
                std::byte* forward_base, std::byte* gradient_base, bool first) {
  loss_scale_ = unit.loss_scale;
  ListRun list(*this, variant, steps, unit, forward_base, gradient_base, first);
  const StageBases& bases = list.bases();
  if (on_device_ && variant.reads_loss_scale)
    on_device_->device().set(on_device_->compute(), bases.loss_scale, loss_scale_);
  if (variant.reads_running) upload_running();
  const auto put_in = [&] {
    list.run_dependent();
    if (shared_work_ && list.count() > 1) {
      shared_work_->run(list_job_, device_, list, workspace_);
    } else {
      list.run_independent();
    }
    if (&steps == &variant.backward || &steps == &variant.weight_gradient) {
      for (const StageStepAddition& addition : variant.late_additions) add(addition, bases, first);
    }
  };
  if (on_device_ && on_device_->recordings.records() && !steps.empty() &&
      std::all_of(steps.begin(), steps.end(), [](const StageStep& s) { return s.repeatable; })) {
    StageRecordings& recordings = on_device_->recordings.describe(&steps).with(first);
    for (const void* address :
         {bases.parameter, bases.prepared, bases.slot, forward_base, gradient_base})
      recordings.with(address);
    for (const std::byte* entry : unit.table) recordings.with(entry);
    recordings.run(std::ref(put_in));
  } else {
    put_in();
  }
  if (&steps == &variant.backward || &steps == &variant.weight_gradient)
    gather(variant, unit, bases);
  if (&steps == &variant.forward && variant.has_loss) {
    const Loss& loss = variant.training->loss;
    const auto address_of = [&](ValueId id) {
      const ValueId root = variant.slices->root[static_cast<std::size_t>(id.index)];
      return static_cast<const float*>(bases.address(variant.layout.location.at(root)));
    };
    if (on_device_) {
      StageBlock& block = on_device_->block(unit.block);
      auto* results = reinterpret_cast<float*>(block.results.data());
      on_device_->compute().copy(results, address_of(loss.loss_sum), sizeof(float));
      if (loss.correct)
        on_device_->compute().copy(results + 1, address_of(loss.correct), sizeof(float));
      on_device_->compute().record(*block.settled);
      block.settles = true;
      return;
    }
    loss_sum_ = static_cast<double>(*address_of(loss.loss_sum));
    correct_ = loss.correct ? static_cast<double>(*address_of(loss.correct)) : 0;
  }
}

void Stage::complete_gradients(const StageUnit& unit) {
  Compiled& variant = *variants_.front();
  const auto wanted = static_cast<std::size_t>(variant.training->gathered_micro_batches);
  if (variant.batch_gradient.empty() || (gathered_of_.size() < wanted && !unit.completes)) return;
  // Units that are short or not there add nothing.
  for (std::size_t place = 0; place < wanted; ++place) {
    for (std::size_t i = 0; i < variant.gatherings.size(); ++i) {
      const StageGathering& whole = variant.gatherings[i];
      std::size_t there = 0;
      if (place < gathered_of_.size())
        there = variants_[static_cast<std::size_t>(gathered_of_[place])]->gatherings[i].bytes;
      std::memset(gathered_set() + whole.to + place * whole.unit_bytes + there, 0,
                  whole.unit_bytes - there);
    }
  }
  gathered_of_.clear();
  settle_gradients();  // which come first in the sums
  StageUnit& all = batch_gradients_.unit;
  all.version_copy = unit.version_copy;
  all.completes = unit.completes;
  const bool first = !std::exchange(has_batch_sums_, !unit.completes);
  if (!shared_work_) return run(variant, variant.batch_gradient, all, nullptr, nullptr, first);
  put_off(batch_gradients_, variant, variant.batch_gradient, first);
  gathered_set_ = (gathered_set_ + 1) % capacity_.gathered_sets;
}

void Stage::settle_gradients() {
  if (shared_work_) shared_work_->complete(batch_gradients_.job, workspace_);
}

/// Runs the steps that depend on each other; devices that wait may run the others until the job is
/// completed.
void Stage::put_off(PutOff& what, Compiled& variant, std::vector<StageStep>& steps, bool first) {
  ListRun list(*this, variant, steps, what.unit, nullptr, nullptr, first);
  if (!what.run) what.run = std::make_unique<ListRun>(list);
  *what.run = list;
  what.run->run_dependent();
  shared_work_->post(what.job, device_, *what.run);
}

void Stage::prepare(Compiled& variant, int version_copy) {
  settle_prepare();
  const auto copy = static_cast<std::size_t>(version_copy);
  if (variant.prepare.empty() || variant.prepared_generation[copy] == copy_generation_[copy])
    return;
  StageUnit unit;
  unit.version_copy = version_copy;
  run(variant, variant.prepare, unit, nullptr, nullptr, false);
  variant.prepared_generation[copy] = copy_generation_[copy];
}

/// The same later: by devices that wait, or at the latest where it is first wanted.
void Stage::put_off_prepare(Compiled& variant, int version_copy) {
  if (!shared_work_) return prepare(variant, version_copy);
  if (variant.prepare.empty()) return;
  preparation_.unit.version_copy = version_copy;
  put_off(preparation_, variant, variant.prepare, false);
  preparing_ = &variant;
  preparing_generation_ = copy_generation_[static_cast<std::size_t>(version_copy)];
}

void Stage::settle_prepare() {
  Compiled* variant = std::exchange(preparing_, nullptr);
  if (!variant || !shared_work_->complete(preparation_.job, workspace_)) return;
  const auto copy = static_cast<std::size_t>(preparation_.unit.version_copy);
  variant->prepared_generation[copy] = preparing_generation_;
}

std::byte* Stage::forward(StageUnit& unit, int entry, bool count_statistics) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  unit.forward_out = forward_out_ + static_cast<std::size_t>(entry) * forward_out_bytes_;
  run(variant, variant.forward, unit, unit.forward_out, nullptr, false);
  ++variant.units;
  if (count_statistics) collect_statistics(variant, unit, unit.forward_out);
  return unit.forward_out;
}

void Stage::recompute(StageUnit& unit) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  unit.forward_out =
      slots_ + static_cast<std::size_t>(unit.slot) * slot_bytes_ + variant.layout.slot_bytes;
  run(variant, variant.forward, unit, unit.forward_out, nullptr, false);
}

std::byte* Stage::backward(StageUnit& unit, int entry, Pass pass, bool first) {
  Compiled& variant = *variants_[static_cast<std::size_t>(unit.variant)];
  prepare(variant, unit.version_copy);
  if (pass != Pass::kWeight)
    unit.gradient_out = gradient_out_ + static_cast<std::size_t>(entry) * gradient_out_bytes_;
  const auto run_pass = [&](std::vector<StageStep>& steps) {
    run(variant, steps, unit, unit.forward_out, unit.gradient_out, first);
  };
  if (pass == Pass::kFull && !capacity_.split_backward) {
    run_pass(variant.backward);
    return unit.gradient_out;
  }
  // A stage with split backwards has no whole one: it runs both halves.
  if (pass != Pass::kWeight) run_pass(variant.input_gradient);
  if (pass != Pass::kInput) run_pass(variant.weight_gradient);
  return unit.gradient_out;
}

std::vector<std::size_t> Stage::gradient_sizes() const {
  const TrainingGraph& training = *variants_.front()->training;
  std::vector<std::size_t> sizes;
  for (const int i : completion_) {
    const ValueId id = training.accumulations[static_cast<std::size_t>(i)].accumulator;
    sizes.push_back(static_cast<std::size_t>(training.graph[id].type.count()));
  }
  return sizes;
}

void Stage::share(SharedWork& work, int device, std::size_t workspace_bytes) {
  shared_work_ = &work;
  device_ = device;
  if (workspace_bytes <= workspace_memory_.bytes()) return;
  memory_.temporaries += workspace_bytes - workspace_memory_.bytes();
  workspace_memory_ = Buffer(workspace_bytes);
  workspace_ = workspace_memory_.data();
}

void Stage::join(ReplicaGroup& group, int replica) {
  group_ = &group;
  replica_ = replica;
  const std::vector<std::size_t> sizes = gradient_sizes();
  std::vector<std::span<float>> gradients;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    auto* data = reinterpret_cast<float*>(accumulators_[static_cast<std::size_t>(completion_[k])]);
    gradients.emplace_back(data, sizes[k]);
  }
  group.bind(replica, std::move(gradients));
}

void Stage::reduce(std::span<Stage* const> all, bool contributes) {
  // A reduce in the streams waits for what was put into them; running statistics are the host's.
  if (on_device_ && (!group_->in_streams() || !statistics_.empty())) {
    synchronize();
    merge_moments();
  }
  if (on_device_ && !group_->in_streams()) {
    for (std::size_t k = 0; contributes && k < completion_.size(); ++k)
      group_->complete(replica_, k);
  }
  group_->reduce(replica_, contributes);
  for (const auto& rows : touched_rows_) {
    if (rows) rows->set_all();  // those of the other replicas
  }
  if (statistics_.empty()) return;
  if (group_->in_streams()) group_->meet();
  // All have arrived, so nobody collects; everybody merges before anybody takes over.
  std::map<std::string, Moments> merged;
  for (const auto& [name, state] : statistics_) {
    Moments& moments = merged[name];
    moments.reset(state.channels, state.of_weights);
    if (group_->is_remote()) {
      const std::vector<double> mine = state.moments.numbers();
      for (const std::string& bytes : group_->gather(
               replica_,
               {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)})) {
        std::vector<double> numbers(bytes.size() / sizeof(double));
        bytes.copy(reinterpret_cast<char*>(numbers.data()), bytes.size());
        moments.merge(Moments::of(numbers));
      }
      continue;
    }
    for (const Stage* other : all) moments.merge(other->statistics_.at(name).moments);
  }
  group_->meet();
  for (auto& [name, state] : statistics_) state.moments = merged[name];
}

void Stage::fetch_remote(int variant, std::span<Stage* const> stages) {
  const Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  for (const int i : compiled.slice->remote_accumulations) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& local = compiled.slices->stages[s].accumulations;
      if (!stages[s] || std::find(local.begin(), local.end(), i) == local.end()) continue;
      const ValueId id = compiled.training->accumulations[static_cast<std::size_t>(i)].accumulator;
      move(accumulators_[static_cast<std::size_t>(i)],
           stages[s]->accumulators_[static_cast<std::size_t>(i)],
           compiled.training->graph[id].type.bytes());
    }
  }
}

std::string Stage::read_accumulator(int accumulation) const {
  const TrainingGraph& training = *variants_.front()->training;
  const auto i = static_cast<std::size_t>(accumulation);
  std::string bytes(training.graph[training.accumulations[i].accumulator].type.bytes(), '\0');
  move(bytes.data(), accumulators_[i], bytes.size());
  return bytes;
}

void Stage::write_accumulator(int accumulation, std::string_view bytes) {
  move(accumulators_[static_cast<std::size_t>(accumulation)], bytes.data(), bytes.size());
}

void Stage::finish_gradients(int variant, int version_copy) {
  Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  // The units may all have been of another variant.
  if (!compiled.finish.empty()) prepare(compiled, version_copy);
  StageUnit unit;
  unit.version_copy = version_copy;
  run(compiled, compiled.finish, unit, nullptr, nullptr, false);
}

void Stage::collect_statistics(Compiled& variant, const StageUnit& unit, std::byte* forward_base) {
  if (variant.slice->statistics.empty()) return;
  const StageBases bases = bases_of(variant, unit, forward_base, nullptr);
  if (!on_device_) return merge_moments(variant, bases.slot, bases.prepared);
  const StageLayout& layout = variant.layout;
  StageMoments moments{
      on_device_->take_moments(layout.slot_moments_bytes + layout.prepared_moments_bytes),
      unit.variant};
  const auto copy = [&](std::size_t offset, const std::byte* from, std::size_t bytes) {
    if (bytes > 0) on_device_->compute().copy(moments.host.data() + offset, from, bytes);
  };
  copy(0, bases.slot, layout.slot_moments_bytes);
  copy(layout.slot_moments_bytes, bases.prepared, layout.prepared_moments_bytes);
  on_device_->moments.push_back(std::move(moments));
}

/// Merges the moments of a unit, which lie in its slot or in the prepared weights.
void Stage::merge_moments(const Compiled& variant, const std::byte* slot,
                          const std::byte* prepared) {
  for (std::size_t k = 0; k < variant.slice->statistics.size(); ++k) {
    const RunningStatistic& statistic =
        variant.training->statistics[static_cast<std::size_t>(variant.slice->statistics[k])];
    StatisticState& state = *variant.statistic_states[k];
    const auto numbers = [&](ValueId id) -> std::span<const float> {
      const Location& at = variant.layout.location.at(id);
      const std::byte* data = (at.space == Space::kPrepared ? prepared : slot) + at.offset;
      return {reinterpret_cast<const float*>(data), state.channels};
    };
    state.moments.merge(numbers(statistic.batch_mean), numbers(statistic.batch_variance),
                        static_cast<double>(statistic.elements_per_channel));
  }
}

/// Merges what has been collected on a device whose streams are done.
void Stage::merge_moments() {
  for (StageMoments& moments : on_device_->moments) {
    const Compiled& variant = *variants_[static_cast<std::size_t>(moments.variant)];
    merge_moments(variant, moments.host.data(),
                  moments.host.data() + variant.layout.slot_moments_bytes);
    on_device_->give_back(std::move(moments.host));
  }
  on_device_->moments.clear();
}

void Stage::apply_statistics() {
  if (statistics_.empty()) return;
  if (on_device_) {
    synchronize();
    merge_moments();
  }
  for (auto& [name, state] : statistics_) {
    state.moments.apply(state.momentum, {state.mean, state.channels},
                        {state.variance, state.channels});
  }
  running_changed_ = true;
}

void Stage::forget_statistics() {
  if (statistics_.empty()) return;
  if (on_device_) {
    synchronize();
    merge_moments();
  }
  for (auto& [name, state] : statistics_) state.moments.reset(state.channels, state.of_weights);
}

bool Stage::read(const std::string& name, int version_copy, HostTensor& out) const {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    out = HostTensor(parameter.type);
    move(out.view().data,
         parameter_block_ + static_cast<std::size_t>(version_copy) * parameter_block_bytes_ +
             parameter.offset,
         parameter.type.bytes());
    return true;
  }
  const auto found = running_.find(name);
  if (found == running_.end()) return false;
  out = HostTensor(found->second.type());
  std::memcpy(out.view().data, found->second.view().data, out.type().bytes());
  return true;
}

bool Stage::write(const std::string& name, const HostTensor& value) {
  for (const ParameterState& parameter : parameters_) {
    if (parameter.name != name) continue;
    PT_CHECK(value.type() == parameter.type, kInternal, "{} is {}, not {}", printable(name),
             parameter.type.text(), value.type().text());
    for (int copy = 0; copy < capacity_.versions; ++copy) {
      move(parameter_block_ + static_cast<std::size_t>(copy) * parameter_block_bytes_ +
               parameter.offset,
           value.view().data, parameter.type.bytes());
      copy_generation_[static_cast<std::size_t>(copy)] = ++weight_generation_;
    }
    if (parameter.average) move(parameter.average, value.view().data, parameter.type.bytes());
    return true;
  }
  const auto found = running_.find(name);
  if (found == running_.end()) return false;
  std::memcpy(found->second.view().data, value.view().data, found->second.type().bytes());
  running_changed_ = true;
  return true;
}

bool Stage::read_gradient(const std::string& name, HostTensor& out) const {
  const Compiled& compiled = *variants_.front();
  for (std::size_t k = 0; k < compiled.slice->parameters.size(); ++k) {
    const ParameterState& parameter = *compiled.parameter_states[k];
    const std::byte* gradient = gradient_address(compiled, k);
    if (parameter.name != name || !gradient) continue;
    out = HostTensor(parameter.type);
    move(out.view().data, gradient, parameter.type.bytes());
    return true;
  }
  return false;
}

void Stage::take_kernel_times(int variant, KernelTimes& out) {
  Compiled& compiled = *variants_[static_cast<std::size_t>(variant)];
  out.seconds.resize(compiled.training->graph.nodes.size(), 0.0);
  for (auto* steps :
       {&compiled.prepare, &compiled.forward, &compiled.backward, &compiled.input_gradient,
        &compiled.weight_gradient, &compiled.batch_gradient, &compiled.finish}) {
    for (StageStep& step : *steps)
      out.seconds[static_cast<std::size_t>(step.node.index)] += std::exchange(step.seconds, 0.0);
  }
  if (index_ == 0) out.units += compiled.units;
  compiled.units = 0;
}

std::string Stage::first_nonfinite(int version_copy) const {
  const auto finite = [&](std::span<const float> values) {
    std::vector<float> host;
    if (on_device_) {
      host.resize(values.size());
      move(host.data(), values.data(), values.size_bytes());
      values = host;
    }
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  };
  for (const ParameterState& parameter : parameters_) {
    std::byte* data = parameter_block_ +
                      static_cast<std::size_t>(version_copy) * parameter_block_bytes_ +
                      parameter.offset;
    if (!finite(floats(data, parameter.type)))
      return fmt::format("weight \"{}\"", printable(parameter.name));
  }
  for (const auto& variant : variants_) {
    const auto& all = variant->training->accumulations;
    for (const int i : variant->slice->accumulations) {
      const Value& value = variant->training->graph[all[static_cast<std::size_t>(i)].accumulator];
      if (!finite(floats(accumulators_[static_cast<std::size_t>(i)], value.type)))
        return printable(value.name);
    }
  }
  return {};
}

}  // namespace pipetrain
