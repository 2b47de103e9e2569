// What a device hands over and takes over: units from the source, values by links.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "pipeline/runtime/device_worker.h"
#include "pipeline/transport/shared_work.h"

namespace pipetrain {

/// Binds a unit's inputs: the first thing that a stage does with it.
void DeviceWorker::start_unit(const Instruction& instruction, const StageReplica& replica) {
  MicroBatch& from = round_.source->acquire(instruction.unit);
  if (replica.stage->has_loss(from.variant)) round_.results[at(instruction.unit)] = &from;
  StageMicroBatch& unit = round_.unit(instruction.stage, instruction.unit);
  unit.variant = from.variant;
  unit.seed = setup_.options.seed;
  unit.step = from.step;
  unit.first_sample = from.first_sample;
  unit.loss_scale = static_cast<float>(from.loss_scale * round_.loss_scale.value);
  const std::size_t size = replica.stage->table_size(unit.variant);
  if (unit.table.size() < size) unit.table.resize(size);
  std::copy(from.columns.begin(), from.columns.end(), unit.table.begin());
  replica.stage->begin(unit);
}

/// Records one of a unit's events behind the work put in so far; null without devices.
StreamPoint* DeviceWorker::record(const Instruction& instruction,
                                  std::unique_ptr<StreamPoint> RoundState::UnitEvents::*which) {
  if (!compute_) return nullptr;
  RoundState::UnitEvents& events = round_.unit_events[at(instruction.stage)][at(instruction.unit)];
  if (std::exchange(events.stream, compute_.get()) != compute_.get()) {
    for (auto* event : {&events.forward, &events.gradient, &events.released})
      *event = compute_->device().make_point();
  }
  compute_->record(*(events.*which));
  return (events.*which).get();
}

void DeviceWorker::send(const Instruction& instruction, bool gradient, const std::byte* base) {
  const auto& values = setup_.values[at(round_.unit(instruction.stage, instruction.unit).variant)];
  const StreamPoint* written = record(
      instruction, gradient ? &RoundState::UnitEvents::gradient : &RoundState::UnitEvents::forward);
  for (const int edge : transport_.edges_from(instruction.stage, gradient)) {
    if (!values[at(edge)]) continue;
    transport_.link(edge, instruction.unit).send(*this, instruction.unit, base, written);
    if (SharedWork* work = replicas_.shared_work()) work->notify();
  }
}

void DeviceWorker::expect(const Instruction& instruction) {
  const Transfer& moved = round_.program->transfers[at(instruction.transfer)];
  const int edge = transport_.edge_of(moved.edge);
  if (edge >= 0) transport_.link(edge, moved.unit).expect(*this, moved.unit);
}

void DeviceWorker::receive_all(const Instruction& instruction, bool gradient) {
  const int unit = instruction.unit;
  const auto& values = setup_.values[at(round_.unit(instruction.stage, unit).variant)];
  for (const int edge : transport_.edges_to(instruction.stage, gradient)) {
    if (!values[at(edge)]) continue;
    const Wait wait(*this, round_.program->device_of(transport_.edge(edge).from, unit));
    const double asked = steady_seconds();
    Link& link = transport_.link(edge, unit);
    if (replicas_.shared_work()) work_while([&link, unit] { return link.is_there(unit); });
    const double there_at = link.receive(*this, unit);
    note_receive(edge, unit, asked, there_at);
  }
}

/// What was there before it was asked for was waited for by nobody; else the receive is over when
/// the device goes on.
void DeviceWorker::note_receive(int edge, int unit, double asked, double there_at) {
  const double end = asked < there_at ? steady_seconds() : there_at;
  const int index = transport_.receive_index(edge, unit);
  if (index < 0) return;
  Event& event = events_[at(index)];
  event.start = there_at - setup_.options.rehearsed_latency_seconds - round_.start_seconds;
  event.end = end - round_.start_seconds;
}

/// The next entry for what a unit hands on, once everybody has read what lies in it.
int DeviceWorker::take_entry(const Instruction& instruction, bool gradient, int& count,
                             std::vector<int>& holders) {
  const int entry = count++ % static_cast<int>(holders.size());
  const int holder = std::exchange(holders[at(entry)], instruction.unit);
  if (holder < 0) return entry;
  for (const int edge : transport_.edges_from(instruction.stage, gradient)) {
    const Wait wait(*this, round_.program->device_of(transport_.edge(edge).to, holder));
    Link& link = transport_.link(edge, holder);
    if (replicas_.shared_work()) work_while([&link, holder] { return link.is_released(holder); });
    link.take(*this, holder);
  }
  return entry;
}

/// Tells the senders, and at last the source, that this stage is done with a unit.
void DeviceWorker::release_all(const Instruction& instruction, const StageReplica& replica) {
  const StreamPoint* read = record(instruction, &RoundState::UnitEvents::released);
  for (const bool gradient : {false, true}) {
    for (const int edge : transport_.edges_to(instruction.stage, gradient)) {
      transport_.link(edge, instruction.unit).release(*this, instruction.unit, read);
      if (SharedWork* work = replicas_.shared_work()) work->notify();
    }
  }
  if (compute_) {
    StageMicroBatch& unit = round_.unit(instruction.stage, instruction.unit);
    replica.stage->end(unit);
    if (replica.stage->has_loss(unit.variant)) {
      round_.results[at(instruction.unit)]->loss_sum = replica.stage->loss_sum();
      round_.results[at(instruction.unit)]->correct = replica.stage->correct();
    }
  }
  round_.leave(instruction.unit);
}

/// Waits; meanwhile runs pieces of other devices' work.
void DeviceWorker::work_while(const std::function<bool()>& over) {
  worked_in_waits_ +=
      replicas_.shared_work()->wait(device_, replicas_.free_workspace(device_), over);
}

std::vector<ExchangedPiece> DeviceWorker::sent(int edge, int unit, const std::byte* base) const {
  const int from = transport_.edge(edge).from;
  const int variant = round_.unit(from, unit).variant;
  return replicas_.on(from, device_)
      .stage->handed_on(variant, *setup_.values[at(variant)][at(edge)], base);
}

std::size_t DeviceWorker::buffer_bytes(int edge) const {
  const Stage& stage = *replicas_.on(transport_.edge(edge).to, device_).stage;
  std::size_t bytes = 0;
  for (std::size_t v = 0; v < setup_.values.size(); ++v) {
    const ValueEdge* values = setup_.values[v][at(edge)];
    if (values) bytes = std::max(bytes, stage.received_bytes(static_cast<int>(v), *values));
  }
  return bytes;
}

std::vector<ExchangedPiece> DeviceWorker::received(int edge, int unit, std::byte* buffer) const {
  const int variant = round_.source->acquire(unit).variant;
  const ValueEdge* values = setup_.values[at(variant)][at(edge)];
  if (!values) return {};
  return replicas_.on(transport_.edge(edge).to, device_).stage->received(variant, *values, buffer);
}

void DeviceWorker::read_buffer(int edge, int unit, std::byte* buffer) {
  const int to = transport_.edge(edge).to;
  StageMicroBatch& stage_unit = round_.unit(to, unit);
  replicas_.on(to, device_)
      .stage->bind_buffer(stage_unit.variant, *setup_.values[at(stage_unit.variant)][at(edge)],
                          buffer, stage_unit);
}

void DeviceWorker::read_sent(int edge, int unit, const std::byte* base,
                             const StreamPoint* written) {
  const auto [from, to, gradient, slots] = transport_.edge(edge);
  StageMicroBatch& stage_unit = round_.unit(to, unit);
  const Stage& sender = *replicas_.of(from)[at(round_.program->replica_of(from, unit))].stage;
  replicas_.on(to, device_)
      .stage->bind_received(stage_unit.variant, *setup_.values[at(stage_unit.variant)][at(edge)],
                            sender, base, written, stage_unit);
}

}  // namespace pipetrain
