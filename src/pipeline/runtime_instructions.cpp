// What each instruction of a program does.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "optim/update.h"
#include "pipeline/annotate.h"
#include "pipeline/program_cut.h"
#include "pipeline/runtime_worker.h"

namespace pipetrain {

/// Versions of kSync rounds stay in one block.
int Runtime::block_of(const Copy& copy, int stage, int version) const {
  if (!is_asynchronous(program_->rule)) return copy.base_version;
  return (copy.base_version + std::max(version, 0)) % capacity_[at(stage)].versions;
}

/// Units that a replica adds to its gradients for one update.
int Runtime::units_to_add(int stage, int replica, int group) const {
  const int size = program_->group_size(stage);
  int count = 0;
  for (int unit = group * size; unit < std::min((group + 1) * size, program_->units); ++unit) {
    if (program_->replica_of(stage, unit) == replica) ++count;
  }
  return count;
}

StageUnit& Runtime::unit_of(const Instruction& instruction) {
  return units_[at(instruction.stage)][at(instruction.unit)];
}

/// Binds a unit's inputs: the first thing that a stage does with it.
void Runtime::start_unit(const Instruction& instruction, StageUnit& unit, const Copy& copy) {
  RoundUnit& round_unit = source_->acquire(instruction.unit);
  if (copy.stage->has_loss(round_unit.variant)) round_units_[at(instruction.unit)] = &round_unit;
  unit.variant = round_unit.variant;
  unit.seed = options_.seed;
  unit.step = round_unit.step;
  unit.first_sample = round_unit.first_sample;
  unit.loss_scale = static_cast<float>(round_unit.loss_scale);
  const std::size_t size = copy.stage->table_size(unit.variant);
  if (unit.table.size() < size) unit.table.resize(size);
  std::copy(round_unit.columns.begin(), round_unit.columns.end(), unit.table.begin());
  copy.stage->begin(unit);
}

/// Records one of a unit's events behind the work put in so far; null without devices.
StreamPoint* Runtime::record(Worker& worker, const Instruction& instruction,
                       std::unique_ptr<StreamPoint> UnitEvents::*which) {
  if (!worker.compute) return nullptr;
  UnitEvents& events = unit_events_[at(instruction.stage)][at(instruction.unit)];
  if (std::exchange(events.stream, worker.compute.get()) != worker.compute.get()) {
    for (auto* event : {&events.forward, &events.gradient, &events.released})
      *event = worker.compute->device().make_point();
  }
  worker.compute->record(*(events.*which));
  return (events.*which).get();
}

Channel& Runtime::channel(const ValueEdge& edge) const {
  for (const Link& link : links_) {
    if (link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient)
      return *link.channel;
  }
  PT_FAIL(kInternal, "no channel from stage {} to stage {}", edge.from, edge.to);
}

void Runtime::send(Worker& worker, const Instruction& instruction, bool gradient,
                   const std::byte* base) {
  const StageUnit& unit = unit_of(instruction);
  const StreamPoint* written =
      record(worker, instruction, gradient ? &UnitEvents::gradient : &UnitEvents::forward);
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.from != instruction.stage || edge.gradient != gradient) continue;
    channel(edge).send(instruction.unit, base, written);
  }
}

void Runtime::receive_all(Worker& worker, const Instruction& instruction, StageUnit& unit,
                          const Copy& copy, bool gradient) {
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.to != instruction.stage || edge.gradient != gradient) continue;
    const int replica = program_->replica_of(edge.from, instruction.unit);
    const Copy& sender = this->copy(edge.from, replica);
    const Worker::Wait wait(worker, sender.device);
    const double asked = steady_seconds();
    double there_at = 0;
    const StreamPoint* written = nullptr;
    const std::byte* base = channel(edge).receive(instruction.unit, &there_at, &written);
    note_receive(worker, edge, instruction.unit, asked, there_at);
    copy.stage->bind_received(unit.variant, edge, *sender.stage, base, written, unit);
  }
}

/// What was there before it was asked for was waited for by nobody; else the receive is over when
/// the device goes on.
void Runtime::note_receive(Worker& worker, const ValueEdge& edge, int unit, double asked,
                           double there_at) {
  const double end = asked < there_at ? steady_seconds() : there_at;
  for (std::size_t e = 0; e < program_->edges.size(); ++e) {
    const Edge& one = program_->edges[e];
    if (one.from_stage != edge.from || one.to_stage != edge.to || one.gradient != edge.gradient)
      continue;
    const int index = receive_index_[e * at(program_->units) + at(unit)];
    if (index < 0) continue;
    Event& event = worker.events[at(index)];
    event.start = there_at - options_.rehearsed_latency_seconds - round_start_;
    event.end = end - round_start_;
  }
}

/// The next entry for what a unit hands on, once everybody has read what lies in it.
int Runtime::take_entry(Worker& worker, const Instruction& instruction, bool gradient, int& count,
                        std::vector<int>& holders) {
  const int entry = count++ % static_cast<int>(holders.size());
  const int holder = std::exchange(holders[at(entry)], instruction.unit);
  if (holder < 0) return entry;
  for (const Link& link : links_) {
    if (link.from != instruction.stage || link.gradient != gradient) continue;
    const Worker::Wait wait(worker, program_->device_of(link.to, holder));
    const StreamPoint* read = link.channel->wait_released(holder);
    if (read) worker.compute->wait(*read);
  }
  return entry;
}

/// Tells the senders, and at last the source, that this stage is done with a unit.
void Runtime::release_all(Worker& worker, const Instruction& instruction, Copy& copy) {
  const StreamPoint* read = record(worker, instruction, &UnitEvents::released);
  for (const Link& link : links_) {
    if (link.to == instruction.stage) link.channel->release(instruction.unit, read);
  }
  if (worker.compute) {
    StageUnit& unit = unit_of(instruction);
    copy.stage->end(unit);
    if (copy.stage->has_loss(unit.variant)) {
      round_units_[at(instruction.unit)]->loss_sum = copy.stage->loss_sum();
      round_units_[at(instruction.unit)]->correct = copy.stage->correct();
    }
  }
  if (--stages_left_[at(instruction.unit)] == 0) source_->release(instruction.unit);
}

/// Waits in place of the kernels; false when they are to run.
bool Runtime::rehearse(const Instruction& instruction, double start) const {
  if (options_.rehearsal.empty()) return false;
  wait_until(round_start_ + start +
             seconds_of(options_.rehearsal[at(instruction.stage)], instruction.kind));
  return true;
}

void Runtime::execute(Worker& worker, const Instruction& instruction) {
  const int index = worker.at.load(std::memory_order_relaxed);
  Event& event = worker.events[at(index)];
  event.device = worker.device;
  event.index = index;
  event.start = steady_seconds() - round_start_;
  switch (instruction.kind) {
    case Kind::kSend:
    case Kind::kReceive:
      break;
    case Kind::kGradientSync:
      sync_gradients(worker);
      break;
    default: {
      Copy& copy = copy_on(instruction.stage, worker.device);
      if (is_compute(instruction.kind)) {
        StageUnit& unit = unit_of(instruction);
        unit.slot = instruction.slot;
        unit.version_copy = block_of(copy, instruction.stage, instruction.version);
      }
      if (instruction.kind == Kind::kForward) {
        run_forward(worker, instruction, copy);
      } else if (instruction.kind == Kind::kRecompute) {
        if (!rehearse(instruction, event.start)) copy.stage->recompute(unit_of(instruction));
      } else if (instruction.kind == Kind::kReduce) {
        run_reduce(worker, instruction, copy);
      } else if (instruction.kind == Kind::kUpdate) {
        if (!rehearse(instruction, event.start)) run_update(instruction, copy);
      } else {
        run_backward(worker, instruction, copy);
      }
    }
  }
  event.end = steady_seconds() - round_start_;
  if (is_compute(instruction.kind) || instruction.kind == Kind::kUpdate)
    worker.busy_seconds += event.end - event.start;
}

void Runtime::run_forward(Worker& worker, const Instruction& instruction, Copy& copy) {
  StageUnit& unit = unit_of(instruction);
  start_unit(instruction, unit, copy);
  receive_all(worker, instruction, unit, copy, /*gradient=*/false);
  const int entry =
      take_entry(worker, instruction, /*gradient=*/false, copy.forwards, copy.forward_entry);
  Event& event = worker.event();
  event.start = steady_seconds() - round_start_;
  const bool evaluates = program_->rule == UpdateRule::kNone;
  const bool replayed = cut_ && cut_->replayed[at(instruction.stage)][at(instruction.unit)];
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->forward(unit, entry, /*count_statistics=*/!evaluates && !replayed);
  if (copy.stage->has_loss(unit.variant) && !worker.compute) {
    RoundUnit& result = *round_units_[at(instruction.unit)];
    result.loss_sum = copy.stage->loss_sum();
    result.correct = copy.stage->correct();
  }
  if (applies_statistics_at_once(*program_, instruction.stage)) copy.stage->apply_statistics();
  send(worker, instruction, /*gradient=*/false, out);
  if (evaluates) release_all(worker, instruction, copy);
}

void Runtime::run_backward(Worker& worker, const Instruction& instruction, Copy& copy) {
  StageUnit& unit = unit_of(instruction);
  const Stage::Pass pass = instruction.kind == Kind::kBackward        ? Stage::Pass::kFull
                           : instruction.kind == Kind::kBackwardInput ? Stage::Pass::kInput
                                                                      : Stage::Pass::kWeight;
  int entry = 0;
  if (pass != Stage::Pass::kWeight) {
    receive_all(worker, instruction, unit, copy, /*gradient=*/true);
    entry = take_entry(worker, instruction, /*gradient=*/true, copy.backwards, copy.gradient_entry);
  }
  const bool adds = adds_gradient(instruction.kind);
  if (adds) unit.completes = --copy.adding_left == 0;
  Event& event = worker.event();
  event.start = steady_seconds() - round_start_;
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->backward(unit, entry, pass, !copy.accumulating);
  if (adds) copy.accumulating = true;
  if (pass != Stage::Pass::kWeight) send(worker, instruction, /*gradient=*/true, out);
  if (adds) release_all(worker, instruction, copy);
}

void Runtime::run_reduce(Worker& worker, const Instruction& instruction, Copy& copy) {
  const Worker::Wait wait(worker, Worker::kEverybody);
  if (!options_.rehearsal.empty()) {
    groups_[at(instruction.stage)]->meet();
    Event& event = worker.event();
    event.start = steady_seconds() - round_start_;
    rehearse(instruction, event.start);
    return;
  }
  std::vector<Stage*> replicas;
  for (const Copy& other : stages_[at(instruction.stage)]) replicas.push_back(other.stage.get());
  copy.stage->reduce(replicas, copy.accumulating);
}

void Runtime::run_update(const Instruction& instruction, Copy& copy) {
  const int unit = std::max(instruction.unit, 0);
  const int group = group_of(instruction);
  const bool asynchronous = is_asynchronous(program_->rule);
  const int from = block_of(copy, instruction.stage, instruction.version - 1);
  const int to = block_of(copy, instruction.stage, instruction.version);
  if (!program_->gradient_sync) {
    const int read = group_version_[at(instruction.stage)][at(group)];
    copy.stage->finish_gradients(0, block_of(copy, instruction.stage, read));
  }
  const double scale =
      program_->gradient_sync ? clip_factor(gradient_norm_, options_.clip_norm) : 1.0;
  ++copy.updates;
  const std::int64_t number = asynchronous ? copy.updates : source_->updates_before() + 1;
  copy.stage->update(0, from, to, source_->learning_rate(unit), number, scale);
  if (!applies_statistics_at_once(*program_, instruction.stage)) copy.stage->apply_statistics();
  copy.accumulating = false;
  if (!asynchronous) return;
  const int replica = program_->replica_on(instruction.stage, copy.device);
  if (group + 1 < program_->updates(instruction.stage))
    copy.adding_left = units_to_add(instruction.stage, replica, group + 1);
  source_->updated(instruction.stage, replica, unit, instruction.version);
}

std::vector<Stage*> Runtime::first_replicas() const {
  std::vector<Stage*> out;
  for (const auto& replicas : stages_) out.push_back(replicas.front().stage.get());
  return out;
}

/// All stages: tied weights get each other's gradients, then the global norm is the same number
/// everywhere.
void Runtime::sync_gradients(Worker& worker) {
  const auto meet = [&] {
    worker.synchronize();
    const Worker::Wait wait(worker, Worker::kEverybody);
    barrier_->arrive_and_wait();
  };
  const auto each_copy = [&](auto&& body) {
    for (auto& replicas : stages_) {
      for (Copy& copy : replicas) {
        if (copy.device == worker.device) body(copy, &copy == &replicas.front());
      }
    }
  };
  const std::vector<Stage*> all = first_replicas();
  meet();  // all accumulators are complete
  each_copy([&](Copy& copy, bool) { copy.stage->fetch_remote(0, all); });
  meet();  // and have been fetched
  each_copy([&](Copy& copy, bool first) {
    copy.stage->finish_gradients(0, copy.base_version);
    if (first) copy.stage->squared_norms(0, squared_norms_);
  });
  meet();  // all norms are there
  if (worker.device == 0)
    gradient_norm_ = std::sqrt(std::accumulate(squared_norms_.begin(), squared_norms_.end(), 0.0));
  meet();
}

}  // namespace pipetrain
