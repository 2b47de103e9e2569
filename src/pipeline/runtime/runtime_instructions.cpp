// What each instruction of a program does.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "optim/update.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/palette.h"
#include "pipeline/program/program_cut.h"
#include "pipeline/runtime/runtime_worker.h"
#include "pipeline/transport/communicated_replicas.h"
#include "pipeline/transport/exchange.h"
#include "pipeline/transport/remote_links.h"

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

StageMicroBatch& Runtime::unit_of(const Instruction& instruction) {
  return units_[at(instruction.stage)][at(instruction.unit)];
}

/// Binds a unit's inputs: the first thing that a stage does with it.
void Runtime::start_unit(const Instruction& instruction, StageMicroBatch& unit, const Copy& copy) {
  MicroBatch& round_unit = source_->acquire(instruction.unit);
  if (copy.stage->has_loss(round_unit.variant)) round_units_[at(instruction.unit)] = &round_unit;
  unit.variant = round_unit.variant;
  unit.seed = options_.seed;
  unit.step = round_unit.step;
  unit.first_sample = round_unit.first_sample;
  unit.loss_scale = static_cast<float>(round_unit.loss_scale * loss_scale_.value);
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
  const StageMicroBatch& unit = unit_of(instruction);
  const StreamPoint* written =
      record(worker, instruction, gradient ? &UnitEvents::gradient : &UnitEvents::forward);
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.from != instruction.stage || edge.gradient != gradient) continue;
    if (remote_ && is_remote(edge.from, edge.to, instruction.unit)) {
      send_remote(edge, copy_on(instruction.stage, worker.device), unit.variant, instruction.unit,
                  base);
      continue;
    }
    if (!is_exchanged(edge.from, edge.to, instruction.unit)) {
      channel(edge).send(instruction.unit, base, written);
      if (shared_work_) shared_work_->notify();
      continue;
    }
    const Copy& copy = copy_on(instruction.stage, worker.device);
    exchange_->offer(operation_of(edge, instruction.unit), worker.device,
                     copy.stage->handed_on(unit.variant, edge, base), written);
  }
}

/// Whether a unit goes from one stage to another by exchange: their devices are different ones.
bool Runtime::is_exchanged(int from, int to, int unit) const {
  return exchange_ &&
         exchange_->crosses(program_->device_of(from, unit), program_->device_of(to, unit));
}

/// Index of an edge of the program; -1: it has none.
int Runtime::program_edge(int from, int to, bool gradient) const {
  for (std::size_t e = 0; e < program_->edges.size(); ++e) {
    const Edge& edge = program_->edges[e];
    if (edge.from_stage == from && edge.to_stage == to && edge.gradient == gradient)
      return static_cast<int>(e);
  }
  return -1;
}

/// The exchange that moves a unit's values over an edge.
int Runtime::operation_of(const ValueEdge& edge, int unit) const {
  const int e = program_edge(edge.from, edge.to, edge.gradient);
  PT_CHECK(e >= 0, kInternal, "the schedule moves nothing from stage {} to stage {}", edge.from,
           edge.to);
  return exchange_->operation_of(e, unit);
}

/// Room for all that a stage may hold at once of what other devices hand it.
void Runtime::allocate_received(Copy& copy, int stage) {
  copy.received.resize(links_.size());
  for (std::size_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    if (link.to != stage) continue;
    const auto& senders = program_->placement[at(link.from)];
    if (std::none_of(senders.begin(), senders.end(),
                     [&](int device) { return exchange_->crosses(device, copy.device); }))
      continue;
    std::size_t bytes = 0;
    for (std::size_t v = 0; v < slices_.size(); ++v) {
      for (const ValueEdge& edge : slices_[v]->edges) {
        if (edge.from == link.from && edge.to == link.to && edge.gradient == link.gradient)
          bytes = std::max(bytes, copy.stage->received_bytes(static_cast<int>(v), edge));
      }
    }
    int slots = 0;
    for (const Program* program : programs_) {
      for (std::size_t e = 0; e < program->edges.size(); ++e) {
        const Edge& edge = program->edges[e];
        if (edge.from_stage == link.from && edge.to_stage == link.to &&
            edge.gradient == link.gradient)
          slots = std::max(slots, program->slots_per_edge[e]);
      }
    }
    for (int slot = 0; slot < slots; ++slot) {
      Device& device = *options_.devices[at(copy.device)];
      copy.received[l].push_back({device.allocate(bytes), device.make_point()});
    }
  }
}

/// Says where a unit's values are to be received: as early as the program has the receive, so that
/// what this device exchanges later need not wait.
void Runtime::offer_receive(Worker& worker, const Instruction& instruction) {
  const int operation = exchange_->operation_at(worker.device, worker.at);
  if (operation < 0) return;
  const Transfer& moved = program_->transfers[at(instruction.transfer)];
  Copy& copy = copy_on(moved.to_stage, worker.device);
  const int variant = source_->acquire(moved.unit).variant;
  std::vector<ExchangedPiece> pieces;
  const StreamPoint* free = nullptr;
  for (const ValueEdge& edge : slices_[at(variant)]->edges) {
    if (edge.from != moved.from_stage || edge.to != moved.to_stage ||
        edge.gradient != moved.gradient)
      continue;
    ReceiveBuffer& buffer = buffer_of(copy, edge, instruction.slot);
    pieces = copy.stage->received(variant, edge, buffer.memory.data());
    free = buffer.free.get();
  }
  exchange_->offer(operation, worker.device, std::move(pieces), free);
}

Runtime::ReceiveBuffer& Runtime::buffer_of(Copy& copy, const ValueEdge& edge, int slot) {
  for (std::size_t l = 0; l < links_.size(); ++l) {
    if (links_[l].from == edge.from && links_[l].to == edge.to &&
        links_[l].gradient == edge.gradient)
      return copy.received[l].at(at(slot));
  }
  PT_FAIL(kInternal, "no link from stage {} to stage {}", edge.from, edge.to);
}

/// Makes the stage's stream wait for a unit's values, which come into a buffer of their own.
void Runtime::receive_exchanged(Worker& worker, const ValueEdge& edge, StageMicroBatch& unit,
                                Copy& copy, int number) {
  worker.compute->wait(*exchange_->wait(operation_of(edge, number), worker.device));
  const int e = program_edge(edge.from, edge.to, edge.gradient);
  const int index = receive_index_[at(e) * at(program_->units) + at(number)];
  const Instruction& receive = program_->device[at(worker.device)][at(index)];
  copy.stage->bind_buffer(unit.variant, edge, buffer_of(copy, edge, receive.slot).memory.data(),
                          unit);
}

void Runtime::receive_all(Worker& worker, const Instruction& instruction, StageMicroBatch& unit,
                          Copy& copy, bool gradient) {
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.to != instruction.stage || edge.gradient != gradient) continue;
    const int replica = program_->replica_of(edge.from, instruction.unit);
    const Copy& sender = this->copy(edge.from, replica);
    const Worker::Wait wait(worker, sender.device);
    const double asked = steady_seconds();
    if (is_exchanged(edge.from, edge.to, instruction.unit)) {
      receive_exchanged(worker, edge, unit, copy, instruction.unit);
      note_receive(worker, edge, instruction.unit, asked, steady_seconds());
      continue;
    }
    double there_at = 0;
    const StreamPoint* written = nullptr;
    Channel& channel = this->channel(edge);
    if (shared_work_)
      work_while(worker, [&channel, unit = instruction.unit] { return channel.is_there(unit); });
    const std::byte* base = channel.receive(instruction.unit, &there_at, &written);
    note_receive(worker, edge, instruction.unit, asked, there_at);
    if (!sender.stage) {  // another process has: these are bytes of our own
      copy.stage->bind_buffer(unit.variant, edge, const_cast<std::byte*>(base), unit);
      continue;
    }
    copy.stage->bind_received(unit.variant, edge, *sender.stage, base, written, unit);
  }
}

/// Waits; meanwhile runs pieces of other devices' work.
void Runtime::work_while(Worker& worker, const std::function<bool()>& over) {
  worker.worked_in_waits += shared_work_->wait(worker.device, free_workspace(worker.device), over);
}

/// The largest workspace of a device that runs no kernel just now.
Workspace Runtime::free_workspace(int device) const {
  Workspace out;
  for (const auto& replicas : stages_) {
    for (const Copy& copy : replicas) {
      if (copy.device != device) continue;
      const Workspace one = copy.stage->workspace();
      if (one.bytes >= out.bytes) out = one;
    }
  }
  return out;
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
    if (is_exchanged(link.from, link.to, holder)) {
      // It is free as soon as it has left.
      const int edge = program_edge(link.from, link.to, gradient);
      worker.compute->wait(*exchange_->wait(exchange_->operation_of(edge, holder), worker.device));
      continue;
    }
    if (shared_work_)
      work_while(worker, [&link, holder] { return link.channel->is_released(holder); });
    const StreamPoint* read = link.channel->wait_released(holder);
    if (read) worker.compute->wait(*read);
  }
  return entry;
}

/// Tells the senders, and at last the source, that this stage is done with a unit.
void Runtime::release_all(Worker& worker, const Instruction& instruction, Copy& copy) {
  const StreamPoint* read = record(worker, instruction, &UnitEvents::released);
  for (std::size_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    if (link.to != instruction.stage || is_exchanged(link.from, link.to, instruction.unit))
      continue;
    link.channel->release(instruction.unit, read);
    if (shared_work_) shared_work_->notify();
    if (remote_ && is_remote(link.from, link.to, instruction.unit))
      remote_->release(static_cast<int>(l), instruction.unit);
  }
  if (exchange_) free_received(worker, instruction, copy);
  if (worker.compute) {
    StageMicroBatch& unit = unit_of(instruction);
    copy.stage->end(unit);
    if (copy.stage->has_loss(unit.variant)) {
      round_units_[at(instruction.unit)]->loss_sum = copy.stage->loss_sum();
      round_units_[at(instruction.unit)]->correct = copy.stage->correct();
    }
  }
  if (--stages_left_[at(instruction.unit)] == 0) source_->release(instruction.unit);
}

/// Lets the next units be received where this one was.
void Runtime::free_received(Worker& worker, const Instruction& instruction, Copy& copy) {
  const int variant = unit_of(instruction).variant;
  for (const ValueEdge& edge : slices_[at(variant)]->edges) {
    if (edge.to != instruction.stage || !is_exchanged(edge.from, edge.to, instruction.unit))
      continue;
    const int e = program_edge(edge.from, edge.to, edge.gradient);
    const int index =
        e < 0 ? -1 : receive_index_[at(e) * at(program_->units) + at(instruction.unit)];
    if (index < 0) continue;
    const Instruction& receive = program_->device[at(worker.device)][at(index)];
    worker.compute->record(*buffer_of(copy, edge, receive.slot).free);
  }
}

/// Waits in place of the kernels; false when they are to run.
bool Runtime::rehearse(const Instruction& instruction, double start) const {
  if (options_.rehearsal.empty()) return false;
  wait_until(round_start_ + start +
             seconds_of(options_.rehearsal[at(instruction.stage)], instruction.kind));
  return true;
}

namespace {

/// An instruction in a profiler of GPUs: "stage2/forward mb7".
class NamedRange {
 public:
  NamedRange(Stream* stream, const Instruction& instruction) : stream_(stream) {
    if (!stream_) return;
    char name[64];
    *fmt::format_to_n(name, sizeof name - 1, "stage{}/{} mb{}", instruction.stage,
                      look_of(instruction.kind).word, instruction.unit)
         .out = '\0';
    stream_->begin_range(name);
  }
  ~NamedRange() {
    if (stream_) stream_->end_range();
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  Stream* stream_;
};

}  // namespace

void Runtime::execute(Worker& worker, const Instruction& instruction) {
  const NamedRange range(worker.compute.get(), instruction);
  const int index = worker.at.load(std::memory_order_relaxed);
  Event& event = worker.events[at(index)];
  event.device = worker.device;
  event.index = index;
  event.start = steady_seconds() - round_start_;
  // Receives are timed by those who compute.
  if (instruction.kind != Kind::kReceive) worker.begin_work(round_start_);
  switch (instruction.kind) {
    case Kind::kSend:
      break;
    case Kind::kReceive:
      if (exchange_) offer_receive(worker, instruction);
      break;
    case Kind::kGradientSync:
      sync_gradients(worker);
      break;
    default: {
      Copy& copy = copy_on(instruction.stage, worker.device);
      if (is_compute(instruction.kind)) {
        StageMicroBatch& unit = unit_of(instruction);
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
  worker.end_work();
  event.end = steady_seconds() - round_start_;
}

void Runtime::run_forward(Worker& worker, const Instruction& instruction, Copy& copy) {
  StageMicroBatch& unit = unit_of(instruction);
  start_unit(instruction, unit, copy);
  receive_all(worker, instruction, unit, copy, /*gradient=*/false);
  const int entry =
      take_entry(worker, instruction, /*gradient=*/false, copy.forwards, copy.forward_entry);
  worker.begin_work(round_start_);
  const Event& event = worker.event();
  const bool evaluates = program_->rule == UpdateRule::kNone;
  const bool replayed = cut_ && cut_->replayed[at(instruction.stage)][at(instruction.unit)];
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->forward(unit, entry, /*count_statistics=*/!evaluates && !replayed);
  worker.end_work();
  if (copy.stage->has_loss(unit.variant) && !worker.compute) {
    MicroBatch& result = *round_units_[at(instruction.unit)];
    result.loss_sum = copy.stage->loss_sum();
    result.correct = copy.stage->correct();
  }
  if (applies_statistics_at_once(*program_, instruction.stage)) copy.stage->apply_statistics();
  send(worker, instruction, /*gradient=*/false, out);
  if (evaluates) release_all(worker, instruction, copy);
}

void Runtime::run_backward(Worker& worker, const Instruction& instruction, Copy& copy) {
  StageMicroBatch& unit = unit_of(instruction);
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
  worker.begin_work(round_start_);
  const Event& event = worker.event();
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->backward(unit, entry, pass, !copy.accumulating);
  if (adds) copy.accumulating = true;
  if (pass != Stage::Pass::kWeight) send(worker, instruction, /*gradient=*/true, out);
  // Behind the send, since nobody waits for them.
  if (adds && options_.rehearsal.empty()) {
    copy.stage->complete_gradients(unit);
    settle_gradients(worker.device);
  }
  worker.end_work();
  if (adds) release_all(worker, instruction, copy);
}

/// Once nothing more is added on a device: now its stages have to be done.
void Runtime::settle_gradients(int device) {
  const auto here = [&](auto&& each) {
    for (auto& replicas : stages_) {
      for (Copy& copy : replicas) {
        if (copy.device == device) each(copy);
      }
    }
  };
  bool adds_more = false;
  here([&](const Copy& copy) { adds_more = adds_more || copy.adding_left > 0; });
  if (!adds_more) here([](const Copy& copy) { copy.stage->settle_gradients(); });
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
  if (auto* group = dynamic_cast<CommunicatedReplicas*>(groups_[at(instruction.stage)].get()))
    group->expect(program_->replica_on(instruction.stage, worker.device),
                  exchange_->operation_at(worker.device, worker.at));
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
  copy.accumulating = false;
  if (skips_) return copy.stage->forget_statistics();
  const double clipped =
      program_->gradient_sync ? clip_factor(gradient_norm_, options_.clip_norm) : 1.0;
  ++copy.updates;
  const std::int64_t number =
      asynchronous ? copy.updates : source_->updates_before() + 1 - loss_scale_.skipped;
  copy.stage->update(0, from, to, source_->learning_rate(unit), number,
                     clipped / loss_scale_.value);
  if (!applies_statistics_at_once(*program_, instruction.stage)) copy.stage->apply_statistics();
  if (!asynchronous) return;
  const int replica = program_->replica_on(instruction.stage, copy.device);
  if (group + 1 < program_->updates(instruction.stage))
    copy.adding_left = units_to_add(instruction.stage, replica, group + 1);
  source_->updated(instruction.stage, replica, unit, instruction.version);
}

std::vector<Stage*> Runtime::first_replicas() const {
  std::vector<Stage*> out;
  for (int s = 0; s < stages(); ++s) {
    const Copy* here = copy_here(s);
    out.push_back(here ? here->stage.get() : nullptr);
  }
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
  const bool speaks = remote_ && worker.device == first_device_here();
  each_copy([&](Copy& copy, bool) { copy.stage->fetch_remote(0, all); });
  if (speaks) {
    const Worker::Wait wait(worker, Worker::kEverybody);
    exchange_tied_gradients();
  }
  meet();  // and have been fetched
  each_copy([&](Copy& copy, bool first) {
    copy.stage->finish_gradients(0, copy.base_version);
    if (first) copy.stage->squared_norms(0, squared_norms_);
  });
  meet();  // all norms are there
  if (speaks) {
    const Worker::Wait wait(worker, Worker::kEverybody);
    share_norms();
  }
  if (worker.device == first_device_here()) {
    const double squared = std::accumulate(squared_norms_.begin(), squared_norms_.end(), 0.0);
    gradient_norm_ = std::sqrt(squared) / loss_scale_.value;
    // The sum is double's: it is finite exactly if all gradients, which are floats, are.
    skips_ = options_.loss_scaling.skips && !std::isfinite(squared);
  }
  meet();
}

}  // namespace pipetrain
