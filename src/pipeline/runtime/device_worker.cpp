// What each instruction of a program does.
#include "pipeline/runtime/device_worker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "optim/update.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/palette.h"
#include "pipeline/program/program_cut.h"
#include "pipeline/transport/shared_work.h"

namespace pipetrain {
namespace {

/// An instruction in a profiler of GPUs: "stage2/forward mb7".
class NamedRange {
 public:
  NamedRange(Stream* stream, const Instruction& instruction) : stream_(stream) {
    if (!stream_) return;
    char name[64];
    *fmt::format_to_n(name, sizeof name - 1, "stage{}/{} mb{}", instruction.stage,
                      look_of(instruction.kind).word, instruction.micro_batch)
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

void DeviceWorker::compile() {
  if (!setup_.options.devices.empty()) {
    Device& device = *setup_.options.devices[at(device_)];
    compute_ = device.make_stream();
    transfer_ = device.make_stream();
    times_ = std::make_unique<DeviceTimes>(*compute_);
  }
  replicas_.compile(device_, StageStreams{compute_.get(), transfer_.get()});
}

void DeviceWorker::synchronize() const {
  if (!compute_) return;
  transfer_->synchronize();
  compute_->synchronize();
}

void DeviceWorker::start_round() {
  events_.assign(round_.program->device[at(device_)].size(), Event{});
  at_ = -1;
  stolen_seconds_ = 0;
  waits_for_ = kNobody;
  decided_ = 0;
  early_end_ = nullptr;
  log_.begin_round();
  noted_.clear();
}

void DeviceWorker::wait_for(int whom) {
  const double now = steady_seconds();
  waits_since_.store(now, std::memory_order_relaxed);
  waits_for_.store(whom, std::memory_order_relaxed);
  log_.wait_for(whom, now);
}

void DeviceWorker::run_list(std::atomic<std::uint64_t>& progress) {
  cpu_began_ = thread_cpu_seconds();
  const auto& list = round_.program->device[at(device_)];
  std::size_t index = 0;
  try {
    if (times_) times_->start(round_.start_seconds);
    for (; index < list.size(); ++index) {
      at_.store(static_cast<int>(index), std::memory_order_relaxed);
      if (!is_over(list[index])) {
        execute(list[index]);
      } else if (list[index].kind == Kind::kReceive) {
        expect(list[index]);  // an exchange that others need may have it as its other end
      }
      progress.fetch_add(1, std::memory_order_relaxed);
    }
    index = list.empty() ? 0 : list.size() - 1;
    // A device that has nothing after the end has not met it yet.
    if (is_asynchronous(round_.program->rule)) look_for_end(round_.program->micro_batches - 1);
    if (early_end_) end_early();
    synchronize();
    if (times_) times_->finish(events_);
    transport_.finish(device_);
    wait_for(kFinished);
    if (SharedWork* work = replicas_.shared_work())
      stolen_seconds_ += work->finish(device_, replicas_.free_workspace(device_));
  } catch (Error& error) {
    if (!list.empty()) {
      const int stage = list[index].stage;
      error.add_frame(fmt::format("{} {} ran {}", stage < 0 ? "device" : "stage",
                                  stage < 0 ? device_ : stage,
                                  to_text(*round_.program, list[index])));
    }
    throw;
  }
}

/// Finds out whether the round ends before a micro-batch is done.
void DeviceWorker::look_for_end(int micro_batch) {
  if (early_end_ || micro_batch < decided_) return;
  const Wait wait(*this, kEverybody);
  const int end = round_.source->end_before(micro_batch);
  if (end > micro_batch) {
    decided_ = micro_batch + 1;
  } else {
    early_end_ = &round_.end_after(end);
  }
}

/// Whether the round has ended, for the instruction's stage, before it.
bool DeviceWorker::is_over(const Instruction& instruction) {
  if (!is_asynchronous(round_.program->rule) || instruction.micro_batch < 0) return false;
  look_for_end(instruction.micro_batch);
  return early_end_ &&
         replicas_.on(instruction.stage, device_).updated >= early_end_->micro_batches_done;
}

/// Lets go of the micro-batches in flight.
void DeviceWorker::end_early() {
  replicas_.each_on(device_, [&](StageReplica& replica, int stage) {
    const int index = round_.program->replica_on(stage, device_);
    for (int micro_batch = early_end_->micro_batches_done;
         micro_batch < round_.program->micro_batches; ++micro_batch) {
      if (early_end_->replayed[at(stage)][at(micro_batch)] &&
          round_.program->replica_of(stage, micro_batch) == index)
        release_all({.kind = Kind::kBackward, .stage = stage, .micro_batch = micro_batch}, replica);
    }
  });
  synchronize();
  const Wait wait(*this, kEverybody);
  round_.barrier.arrive_and_wait();  // no device waits for an exchange any more
  transport_.drop_exchanges();
}

void DeviceWorker::end_list() {
  transport_.finish(device_);
  try {
    synchronize();  // after a failure: nothing may still use memory that is freed
  } catch (const Error&) {
    // The first failure has been reported.
  }
  wait_for(kFinished);
  cpu_seconds_ = thread_cpu_seconds() - cpu_began_;
}

double DeviceWorker::busy_seconds() const {
  const auto& list = round_.program->device[at(device_)];
  double sum = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (is_compute(list[i].kind) || list[i].kind == Kind::kUpdate)
      sum += events_[i].end - events_[i].start;
  }
  return sum + stolen_seconds_;
}

std::string DeviceWorker::describe_place() const {
  const auto& list = round_.program->device[at(device_)];
  if (waits_for_.load() == kFinished) return "the end of its list";
  const int index = at_.load();
  return index < 0 || index >= static_cast<int>(list.size())
             ? "its start"
             : to_text(*round_.program, list[at(index)]);
}

/// Starts timing the current instruction, once its inputs are there.
void DeviceWorker::begin_work() {
  event().start = steady_seconds() - round_.start_seconds;
  if (times_) times_->begin(at_.load(std::memory_order_relaxed));
}

void DeviceWorker::end_work() const {
  if (times_) times_->end();
}

/// Sleeps instead of running kernels when stages are emulated; false otherwise.
bool DeviceWorker::emulate(const Instruction& instruction, double start) const {
  if (setup_.options.emulated_stages.empty()) return false;
  wait_until(round_.start_seconds + start +
             seconds_of(setup_.options.emulated_stages[at(instruction.stage)], instruction.kind));
  return true;
}

void DeviceWorker::execute(const Instruction& instruction) {
  const NamedRange range(compute_.get(), instruction);
  Event& event = this->event();
  event.device = device_;
  event.index = at_.load(std::memory_order_relaxed);
  const double now = steady_seconds();
  log_.begin(*round_.program, instruction, now);
  event.start = now - round_.start_seconds;
  // The compute instructions time the receives.
  if (instruction.kind != Kind::kReceive) begin_work();
  switch (instruction.kind) {
    case Kind::kSend:
      send_nothing(instruction);
      break;
    case Kind::kReceive:
      expect(instruction);
      break;
    case Kind::kGradientSync:
      sync_gradients();
      break;
    default:
      run_stage(instruction);
  }
  end_work();
  const double end = steady_seconds();
  log_.end(end);
  event.end = end - round_.start_seconds;
}

void DeviceWorker::run_stage(const Instruction& instruction) {
  StageReplica& replica = replicas_.on(instruction.stage, device_);
  if (is_compute(instruction.kind)) {
    StageMicroBatch& micro_batch = round_.micro_batch(instruction.stage, instruction.micro_batch);
    micro_batch.slot = instruction.slot;
    micro_batch.version_copy = replicas_.block_of(replica, instruction.stage, instruction.version);
    micro_batch.leaf = replicas_.leaf_of(instruction);
  }
  if (instruction.kind == Kind::kForward) {
    run_forward(instruction, replica);
  } else if (instruction.kind == Kind::kRecompute) {
    if (!emulate(instruction, event().start))
      replica.stage->recompute(round_.micro_batch(instruction.stage, instruction.micro_batch));
  } else if (instruction.kind == Kind::kReduce) {
    run_reduce(instruction, replica);
  } else if (instruction.kind == Kind::kUpdate) {
    if (!emulate(instruction, event().start)) run_update(instruction, replica);
  } else {
    run_backward(instruction, replica);
  }
}

void DeviceWorker::run_forward(const Instruction& instruction, StageReplica& replica) {
  StageMicroBatch& micro_batch = round_.micro_batch(instruction.stage, instruction.micro_batch);
  start_micro_batch(instruction, replica);
  receive_all(instruction, /*gradient=*/false);
  const int entry =
      take_entry(instruction, /*gradient=*/false, replica.forwards, replica.forward_entry);
  begin_work();
  const bool evaluates = round_.program->rule == UpdateRule::kNone;
  const bool replayed = round_.is_replayed(instruction.stage, instruction.micro_batch);
  const std::byte* out = nullptr;
  if (!emulate(instruction, event().start))
    out = replica.stage->forward(micro_batch, entry, /*count_statistics=*/!evaluates && !replayed);
  end_work();
  if (replica.stage->has_loss(micro_batch.variant) && !compute_) {
    MicroBatch& result = *round_.results[at(instruction.micro_batch)];
    result.loss_sum = replica.stage->loss_sum();
    result.correct = replica.stage->correct();
    look_at_loss(instruction, replica, result.loss_sum);
  }
  look_at_sent(instruction, replica, out);
  if (applies_statistics_at_once(*round_.program, instruction.stage))
    replica.stage->apply_statistics();
  send(instruction, /*gradient=*/false, out);
  if (evaluates) release_all(instruction, replica);
}

void DeviceWorker::run_backward(const Instruction& instruction, StageReplica& replica) {
  StageMicroBatch& micro_batch = round_.micro_batch(instruction.stage, instruction.micro_batch);
  const Stage::Pass pass = instruction.kind == Kind::kBackward        ? Stage::Pass::kFull
                           : instruction.kind == Kind::kBackwardInput ? Stage::Pass::kInput
                                                                      : Stage::Pass::kWeight;
  int entry = 0;
  if (pass != Stage::Pass::kWeight) {
    receive_all(instruction, /*gradient=*/true);
    entry = take_entry(instruction, /*gradient=*/true, replica.backwards, replica.gradient_entry);
  }
  const bool adds = adds_gradient(instruction.kind);
  const std::uint64_t before = replica.leaves;
  const std::uint64_t leaf = std::uint64_t{1} << micro_batch.leaf;
  if (adds) micro_batch.completes = --replica.adding_left == 0;
  if (adds) micro_batch.leaves = replica.leaves |= leaf;
  begin_work();
  const std::byte* out = nullptr;
  if (!emulate(instruction, event().start))
    out = replica.stage->backward(micro_batch, entry, pass, /*first=*/(before & leaf) == 0);
  if (adds) replica.accumulating = true;
  if (pass != Stage::Pass::kWeight) {
    look_at_sent(instruction, replica, out);
    send(instruction, /*gradient=*/true, out);
  }
  // After the send, since no other stage waits for them.
  if (adds && setup_.options.emulated_stages.empty()) {
    replica.stage->complete_gradients(micro_batch);
    const bool flushed = flush_gradients();
    look_at_gradients(instruction, replica, flushed);
  }
  end_work();
  if (adds) release_all(instruction, replica);
}

/// When the device has added its last gradient, all its stages must flush. Returns whether they
/// have.
bool DeviceWorker::flush_gradients() {
  bool adds_more = false;
  replicas_.each_on(device_, [&](const StageReplica& replica, int) {
    adds_more = adds_more || replica.adding_left > 0;
  });
  if (adds_more) return false;
  replicas_.each_on(device_, [&](StageReplica& replica, int stage) {
    replica.stage->flush_gradients();
    look_at_deferred(replica, stage);
  });
  return true;
}

void DeviceWorker::run_reduce(const Instruction& instruction, StageReplica& replica) {
  const Wait wait(*this, kEverybody);
  ReplicaGroup& group = transport_.replica_group(instruction.stage);
  if (!setup_.options.emulated_stages.empty()) {
    group.meet();
    event().start = steady_seconds() - round_.start_seconds;
    emulate(instruction, event().start);
    return;
  }
  group.at_instruction(round_.program->replica_on(instruction.stage, device_), at_);
  replica.stage->reduce(replicas_.all(instruction.stage), replica.accumulating);
  look_at_gradients(instruction, replica, /*flushed=*/true);
}

void DeviceWorker::run_update(const Instruction& instruction, StageReplica& replica) {
  replica.stage->flush_gradients();  // other stages of the device may still add theirs
  look_at_deferred(replica, instruction.stage);
  const Program& program = *round_.program;
  const int stage = instruction.stage;
  const int micro_batch = std::max(instruction.micro_batch, 0);
  const int group = replicas_.group_of(instruction);
  const bool asynchronous = is_asynchronous(program.rule);
  const int from = replicas_.block_of(replica, stage, instruction.version - 1);
  const int to = replicas_.block_of(replica, stage, instruction.version);
  if (!program.gradient_sync) {
    const int read = round_.group_version[at(stage)][at(group)];
    replica.stage->finish_gradients(0, replicas_.block_of(replica, stage, read));
  }
  replica.accumulating = false;
  replica.leaves = 0;
  if (round_.skips) return replica.stage->forget_statistics();
  const double clipped =
      program.gradient_sync ? clip_factor(round_.gradient_norm, setup_.options.clip_norm) : 1.0;
  ++replica.updates;
  const std::int64_t number = asynchronous
                                  ? replica.updates
                                  : round_.source->updates_before() + 1 - round_.loss_scale.skipped;
  {
    std::optional<Wait> wait;  // for the weights that others update
    if (replica.stage->shares_updates()) wait.emplace(*this, kEverybody);
    replica.stage->update(0, from, to, round_.source->learning_rate(micro_batch), number,
                          clipped / round_.loss_scale.value);
  }
  if (!applies_statistics_at_once(program, stage)) replica.stage->apply_statistics();
  if (!asynchronous) return;
  replica.updated = micro_batch + 1;
  const int index = program.replica_on(stage, device_);
  if (group + 1 < program.updates(stage))
    replica.adding_left = replicas_.micro_batches_to_add(stage, index, group + 1);
  round_.source->updated(stage, index, micro_batch, instruction.version);
}

/// All devices: exchanges gradients of tied weights, then computes the global norm, the same
/// everywhere.
void DeviceWorker::sync_gradients() {
  const auto meet = [&] {
    synchronize();
    const Wait wait(*this, kEverybody);
    round_.barrier.arrive_and_wait();
  };
  const std::vector<Stage*> all = replicas_.first_here();
  const bool is_rank_zero = device_ == setup_.first_device_here();
  meet();  // all accumulators are complete
  replicas_.each_on(device_,
                    [&](StageReplica& replica, int) { replica.stage->fetch_remote(0, all); });
  if (is_rank_zero) {
    const Wait wait(*this, kEverybody);
    sharing_.exchange_tied_gradients();
  }
  meet();  // and have been fetched
  replicas_.each_on(device_, [&](StageReplica& replica, int stage) {
    replica.stage->finish_gradients(0, replica.base_version);
    if (&replica == &replicas_.of(stage).front() || replica.stage->shares_updates())
      replica.stage->squared_norms(0, round_.squared_norms);
  });
  meet();  // all norms are there
  if (is_rank_zero) add_up_norms();
  meet();
}

void DeviceWorker::add_up_norms() {
  {
    const Wait wait(*this, kEverybody);
    sharing_.share_norms();
  }
  const double squared =
      std::accumulate(round_.squared_norms.begin(), round_.squared_norms.end(), 0.0);
  round_.gradient_norm = std::sqrt(squared) / round_.loss_scale.value;
  // The sum is double's: it is finite exactly if all gradients, which are floats, are.
  round_.skips = setup_.options.loss_scaling.skips && !std::isfinite(squared);
}

}  // namespace pipetrain
