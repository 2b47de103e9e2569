// What a device receives and sends: micro-batches from the source, values through links.
#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "pipeline/program/program_cut.h"
#include "pipeline/runtime/device_worker.h"
#include "pipeline/transport/shared_work.h"

namespace pipetrain {
namespace {

/// A wait for a link, unless it is over already.
class LinkWait {
 public:
  LinkWait(Link& link, bool over) : link_(over ? nullptr : &link) {
    if (link_) link_->begin_wait();
  }
  ~LinkWait() {
    if (link_) link_->end_wait();
  }
  LinkWait(const LinkWait&) = delete;
  LinkWait& operator=(const LinkWait&) = delete;

 private:
  Link* link_;
};

}  // namespace

/// Whether the receiver of an edge takes the micro-batch before the round ends. Where devices
/// exchange values, it is ready for all.
bool DeviceWorker::reaches(int edge, int micro_batch) const {
  return !early_end_ || transport_.exchanges() || micro_batch < early_end_->micro_batches_done ||
         early_end_->replayed[at(transport_.edge(edge).to)][at(micro_batch)];
}

/// Binds a micro-batch's inputs: the first thing that a stage does with it.
void DeviceWorker::start_micro_batch(const Instruction& instruction, const StageReplica& replica) {
  MicroBatch& from = [&]() -> MicroBatch& {
    const Wait wait(*this, kData);
    return round_.source->acquire(instruction.micro_batch);
  }();
  if (replica.stage->has_loss(from.variant)) {
    from.has_loss = true;
    round_.results[at(instruction.micro_batch)] = &from;
  }
  StageMicroBatch& micro_batch = round_.micro_batch(instruction.stage, instruction.micro_batch);
  micro_batch.variant = from.variant;
  micro_batch.seed = setup_.options.seed;
  micro_batch.step = from.step;
  micro_batch.first_sample = from.first_sample;
  micro_batch.loss_scale = static_cast<float>(from.loss_scale * round_.loss_scale.value);
  const std::size_t size = replica.stage->table_size(micro_batch.variant);
  if (micro_batch.table.size() < size) micro_batch.table.resize(size);
  std::copy(from.columns.begin(), from.columns.end(), micro_batch.table.begin());
  replica.stage->begin(micro_batch);
}

/// Records one of a micro-batch's events after the work enqueued so far; null on the CPU.
StreamPoint* DeviceWorker::record(
    const Instruction& instruction,
    std::unique_ptr<StreamPoint> RoundState::MicroBatchEvents::*which) {
  if (!compute_) return nullptr;
  RoundState::MicroBatchEvents& events =
      round_.micro_batch_events[at(instruction.stage)][at(instruction.micro_batch)];
  if (std::exchange(events.stream, compute_.get()) != compute_.get()) {
    for (auto* event : {&events.forward, &events.gradient, &events.released})
      *event = compute_->device().make_point();
  }
  compute_->record(*(events.*which));
  return (events.*which).get();
}

void DeviceWorker::send(const Instruction& instruction, bool gradient, const std::byte* base) {
  const auto& values =
      setup_.values[at(round_.micro_batch(instruction.stage, instruction.micro_batch).variant)];
  const StreamPoint* written =
      record(instruction, gradient ? &RoundState::MicroBatchEvents::gradient
                                   : &RoundState::MicroBatchEvents::forward);
  for (const int edge : transport_.edges_from(instruction.stage, gradient)) {
    if (!values[at(edge)] || !reaches(edge, instruction.micro_batch)) continue;
    if (round_.notes_sends && !compute_ && base) note_send(edge, instruction.micro_batch, base);
    transport_.link(edge, instruction.micro_batch)
        .send(*this, instruction.micro_batch, base, written);
    wake(transport_.edge(edge).to, instruction.micro_batch, SharedWork::Notice::kArrival);
  }
}

/// At a send instruction: the compute instruction before it has sent the values, if there are any.
void DeviceWorker::send_nothing(const Instruction& instruction) {
  const int micro_batch = instruction.micro_batch;
  const int edge = transport_.edge_of(round_.program->transfers[at(instruction.transfer)].edge);
  const int variant = round_.micro_batch(instruction.stage, micro_batch).variant;
  if (edge >= 0 && !setup_.values[at(variant)][at(edge)])
    transport_.link(edge, micro_batch).send_nothing(*this, micro_batch);
}

/// Wakes the device that has a stage's part of a micro-batch, if it waits for this.
void DeviceWorker::wake(int stage, int micro_batch, SharedWork::Notice what) {
  if (SharedWork* work = replicas_.shared_work())
    work->notify(round_.program->device_of(stage, micro_batch), what);
}

void DeviceWorker::note_send(int edge, int micro_batch, const std::byte* base) {
  const LinkEdge& stages = transport_.edge(edge);
  SentValues note = {.from = stages.from,
                     .to = stages.to,
                     .micro_batch = micro_batch,
                     .gradient = stages.gradient};
  for (const ExchangedSpan& span : sent(edge, micro_batch, base))
    note.crc32c = crc32c({span.data, span.bytes}, note.crc32c);
  noted_.push_back(note);
}

void DeviceWorker::expect(const Instruction& instruction) {
  const Transfer& moved = round_.program->transfers[at(instruction.transfer)];
  const int edge = transport_.edge_of(moved.edge);
  if (edge >= 0) transport_.link(edge, moved.micro_batch).expect(*this, moved.micro_batch);
}

void DeviceWorker::receive_all(const Instruction& instruction, bool gradient) {
  const int micro_batch = instruction.micro_batch;
  const auto& values =
      setup_.values[at(round_.micro_batch(instruction.stage, micro_batch).variant)];
  for (const int edge : transport_.edges_to(instruction.stage, gradient)) {
    if (!values[at(edge)]) continue;
    const Wait wait(*this, round_.program->device_of(transport_.edge(edge).from, micro_batch));
    const double asked = steady_seconds();
    Link& link = transport_.link(edge, micro_batch);
    const LinkWait link_wait(link, link.is_there(micro_batch));
    work_until([&link, micro_batch] { return link.is_there(micro_batch); },
               SharedWork::Notice::kArrival);
    const double there_at = link.receive(*this, micro_batch);
    note_receive(edge, micro_batch, asked, there_at);
  }
}

/// If the data was there already, nothing waited for it; else the receive ends when the device
/// continues.
void DeviceWorker::note_receive(int edge, int micro_batch, double asked, double there_at) {
  const double end = asked < there_at ? steady_seconds() : there_at;
  const int index = transport_.receive_index(edge, micro_batch);
  if (index < 0) return;
  Event& event = events_[at(index)];
  event.start = there_at - setup_.options.emulated_latency_seconds - round_.start_seconds;
  event.end = end - round_.start_seconds;
}

/// The next output buffer for a micro-batch, once all receivers have read its old content.
int DeviceWorker::take_entry(const Instruction& instruction, bool gradient, int& count,
                             std::vector<int>& holders) {
  const int entry = count++ % static_cast<int>(holders.size());
  const int holder = std::exchange(holders[at(entry)], instruction.micro_batch);
  if (holder < 0) return entry;
  const auto& values = setup_.values[at(round_.micro_batch(instruction.stage, holder).variant)];
  for (const int edge : transport_.edges_from(instruction.stage, gradient)) {
    if (!values[at(edge)] || !reaches(edge, holder)) continue;
    const Wait wait(*this, round_.program->device_of(transport_.edge(edge).to, holder));
    Link& link = transport_.link(edge, holder);
    const LinkWait link_wait(link, link.is_released(holder));
    work_until([&link, holder] { return link.is_released(holder); }, SharedWork::Notice::kRelease);
    link.take(*this, holder);
  }
  return entry;
}

/// Releases a micro-batch's inputs to the senders, and finally to the source.
void DeviceWorker::release_all(const Instruction& instruction, const StageReplica& replica) {
  const StreamPoint* read = record(instruction, &RoundState::MicroBatchEvents::released);
  for (const bool gradient : {false, true}) {
    for (const int edge : transport_.edges_to(instruction.stage, gradient)) {
      transport_.link(edge, instruction.micro_batch).release(*this, instruction.micro_batch, read);
      wake(transport_.edge(edge).from, instruction.micro_batch, SharedWork::Notice::kRelease);
    }
  }
  if (compute_) {
    StageMicroBatch& micro_batch = round_.micro_batch(instruction.stage, instruction.micro_batch);
    replica.stage->end(micro_batch);
    if (replica.stage->has_loss(micro_batch.variant)) {
      round_.results[at(instruction.micro_batch)]->loss_sum = replica.stage->loss_sum();
      round_.results[at(instruction.micro_batch)]->correct = replica.stage->correct();
    }
  }
  round_.leave(instruction.micro_batch);
}

/// Runs tasks, its own and those of other devices, until what the device waits for is there or the
/// round is aborted. Without shared work returns at once.
void DeviceWorker::work_until(const std::function<bool()>& over, SharedWork::Notice what) {
  if (SharedWork* work = replicas_.shared_work())
    stolen_seconds_ += work->wait(device_, replicas_.free_workspace(device_), over, what);
}

std::vector<ExchangedSpan> DeviceWorker::sent(int edge, int micro_batch,
                                              const std::byte* base) const {
  const int from = transport_.edge(edge).from;
  const int variant = round_.micro_batch(from, micro_batch).variant;
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

std::vector<ExchangedSpan> DeviceWorker::received(int edge, int micro_batch,
                                                  std::byte* buffer) const {
  const int variant = round_.source->variant(micro_batch);
  const ValueEdge* values = setup_.values[at(variant)][at(edge)];
  if (!values) return {};
  return replicas_.on(transport_.edge(edge).to, device_).stage->received(variant, *values, buffer);
}

void DeviceWorker::read_buffer(int edge, int micro_batch, std::byte* buffer) {
  const int to = transport_.edge(edge).to;
  StageMicroBatch& stage_micro_batch = round_.micro_batch(to, micro_batch);
  replicas_.on(to, device_)
      .stage->bind_buffer(stage_micro_batch.variant,
                          *setup_.values[at(stage_micro_batch.variant)][at(edge)], buffer,
                          stage_micro_batch);
}

void DeviceWorker::read_sent(int edge, int micro_batch, const std::byte* base,
                             const StreamPoint* written) {
  const auto [from, to, gradient, slots] = transport_.edge(edge);
  StageMicroBatch& stage_micro_batch = round_.micro_batch(to, micro_batch);
  const Stage& sender =
      *replicas_.of(from)[at(round_.program->replica_of(from, micro_batch))].stage;
  replicas_.on(to, device_)
      .stage->bind_received(stage_micro_batch.variant,
                            *setup_.values[at(stage_micro_batch.variant)][at(edge)], sender, base,
                            written, stage_micro_batch);
}

}  // namespace pipetrain
