#include "pipeline/runtime.h"

#include <omp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Gives the calling thread the cores [first, first + count) of those the process may use; OpenMP's
/// threads inherit it.
void pin_to_cores(int first, int count) {
  cpu_set_t allowed, chosen;
  CPU_ZERO(&allowed);
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int seen = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (seen >= first && seen < first + count) CPU_SET(core, &chosen);
    ++seen;
  }
  if (CPU_COUNT(&chosen) == count) sched_setaffinity(0, sizeof chosen, &chosen);
}

int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

}  // namespace

namespace {
constexpr int kNobody = -1;
constexpr int kFinished = -2;
constexpr int kEverybody = -3;  // in a barrier
}  // namespace

struct Runtime::Worker {
  int device = 0;
  std::thread thread;
  std::vector<Event> events;
  double busy_seconds = 0;
  double cpu_seconds = 0;
  std::atomic<int> at{-1};  // index of the instruction in progress
  std::atomic<int> waits_for{
      -1};  // stage it waits for; kNobody while it computes, kFinished after its list
};

Runtime::Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
                 const RuntimeOptions& options)
    : options_(options), variants_(std::move(variants)) {
  PT_CHECK(!programs.empty() && !variants_.empty(), kInternal,
           "a runtime without programs or networks");
  const int stage_count = programs[0]->stages;
  for (const RuntimeVariant& variant : variants_) {
    slices_.push_back(std::make_unique<Slices>(
        slice_stages(*variant.training, variant.stage_of_forward, stage_count)));
  }
  capacity_.resize(static_cast<std::size_t>(stage_count));
  for (const Program* program : programs) {
    for (int s = 0; s < stage_count; ++s) {
      StageCapacity& capacity = capacity_[static_cast<std::size_t>(s)];
      const auto index = static_cast<std::size_t>(s);
      capacity.slots = std::max(capacity.slots, program->slots_per_stage[index]);
      capacity.versions = std::max(capacity.versions, program->versions_per_stage[index]);
      capacity.recompute =
          capacity.recompute || (!program->recompute.empty() && program->recompute[index]);
      // A value that is handed on lives until its last receiver is done with the unit, or this
      // stage's own backward.
      int held = program->slots_per_stage[index];
      for (std::size_t e = 0; e < program->edges.size(); ++e) {
        const Edge& edge = program->edges[e];
        if (edge.from_stage == s && !edge.gradient)
          held = std::max(held, program->slots_per_edge[e]);
      }
      capacity.forward_entries =
          std::max(capacity.forward_entries, std::min(program->units, held + 1));
      capacity.gradient_entries = std::max(capacity.gradient_entries, std::min(program->units, 3));
    }
    for (const auto& list : program->device) {
      for (const Instruction& instruction : list) {
        if (instruction.kind == Kind::kBackwardWeight)
          capacity_[static_cast<std::size_t>(instruction.stage)].split_backward = true;
      }
    }
  }
  int capacity_units = 1;
  for (const Program* program : programs)
    capacity_units = std::max(capacity_units, program->units + 1);
  for (const auto& slices : slices_) {
    for (const ValueEdge& edge : slices->edges) {
      const bool known = std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
        return link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient;
      });
      if (known) continue;
      channels_.push_back(std::make_unique<Channel>(capacity_units));
      links_.push_back({edge.from, edge.to, edge.gradient, channels_.back().get()});
    }
  }
  stages_.resize(static_cast<std::size_t>(stage_count));
  base_version_.assign(static_cast<std::size_t>(stage_count), 0);
  barrier_ = std::make_unique<Barrier>(programs[0]->devices);
  squared_norms_.assign(variants_[0].training->parameters.size(), 0);
  units_.resize(static_cast<std::size_t>(stage_count));

  running_ = programs[0]->devices;
  for (int device = 0; device < programs[0]->devices; ++device) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->device = device;
  }
  program_ = programs[0];
  for (auto& worker : workers_)
    worker->thread = std::thread([this, device = worker->device] { work(device); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
  if (error_) {
    stopping_ = true;
    lock.unlock();
    changed_.notify_all();
    for (auto& worker : workers_) worker->thread.join();
    std::rethrow_exception(error_);
  }
}

Runtime::~Runtime() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void Runtime::work(int device) {
  Worker& worker = *workers_[static_cast<std::size_t>(device)];
  prctl(PR_SET_NAME, fmt::format("stage {}", device).c_str());
  omp_set_num_threads(options_.threads);
  const int devices = static_cast<int>(workers_.size());
  if (options_.pin && devices * options_.threads <= available_cores())
    pin_to_cores(device * options_.threads, options_.threads);
  try {
    for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
      const auto index = static_cast<std::size_t>(s);
      if (program_->device_of_stage[index] != device) continue;
      std::vector<StageVariant> variants;
      for (std::size_t v = 0; v < variants_.size(); ++v)
        variants.push_back({variants_[v].training, slices_[v].get()});
      stages_[index] = std::make_unique<Stage>(s, variants, options_.backend, capacity_[index],
                                               options_.optimizer);
    }
  } catch (...) {
    fail(device, std::current_exception());
  }
  int done = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (--running_ == 0) changed_.notify_all();
      changed_.wait(lock, [&] { return stopping_ || round_ > done; });
      if (stopping_) return;
      done = round_;
    }
    const double cpu = thread_cpu_seconds();
    const auto& list = program_->device[static_cast<std::size_t>(device)];
    std::size_t index = 0;
    try {
      for (; index < list.size(); ++index) {
        worker.at.store(static_cast<int>(index), std::memory_order_relaxed);
        execute(worker, list[index]);
        progress_.fetch_add(1, std::memory_order_relaxed);
      }
    } catch (const ChannelAborted&) {
      // The stage that failed reports.
    } catch (Error& error) {
      error.add_frame(fmt::format("stage {} ran {}",
                                  list[index].stage < 0 ? device : list[index].stage,
                                  to_text(*program_, list[index])));
      fail(device, std::make_exception_ptr(error));
    } catch (...) {
      fail(device, std::current_exception());
    }
    worker.waits_for = kFinished;
    worker.cpu_seconds = thread_cpu_seconds() - cpu;
  }
}

void Runtime::fail(int, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }
  for (auto& channel : channels_) channel->abort();
  barrier_->abort();
}

RoundResult Runtime::run(const Program& program, UnitSource& source) {
  program_ = &program;
  source_ = &source;
  for (auto& channel : channels_) channel->reset();
  barrier_->reset();
  round_units_.assign(static_cast<std::size_t>(program.units), nullptr);
  for (auto& units : units_) {
    if (units.size() < static_cast<std::size_t>(program.units))
      units.resize(static_cast<std::size_t>(program.units));
  }
  accumulating_.assign(stages_.size(), 0);
  gradient_norm_ = 0;
  for (std::size_t d = 0; d < workers_.size(); ++d) {
    workers_[d]->events.assign(program.device[d].size(), Event{});
    workers_[d]->busy_seconds = 0;
    workers_[d]->at = -1;
    workers_[d]->waits_for = kNobody;
  }
  std::unique_lock lock(mutex_);
  error_ = nullptr;
  running_ = static_cast<int>(workers_.size());
  round_start_ = now();
  ++round_;
  changed_.notify_all();
  std::uint64_t seen = progress_.load();
  double last_progress = now();
  while (running_ > 0) {
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return running_ == 0; });
    if (running_ == 0) break;
    const std::uint64_t progress = progress_.load();
    if (progress != seen) {
      seen = progress;
      last_progress = now();
    } else if (now() - last_progress > options_.timeout_seconds && !error_) {
      const std::string text = describe_hang();
      if (text.empty()) continue;
      lock.unlock();
      fail(-1, std::make_exception_ptr(Error(ErrorKind::kDevice, text)));
      lock.lock();
    }
  }
  RoundResult result;
  result.seconds = now() - round_start_;
  lock.unlock();
  if (error_) std::rethrow_exception(error_);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (program.rule != UpdateRule::kStash) continue;
    base_version_[s] = copy_of(static_cast<int>(s), program.units);
  }
  result.gradient_norm = gradient_norm_;
  for (auto& worker : workers_) {
    result.events.push_back(worker->events);
    result.busy_seconds.push_back(worker->busy_seconds);
    result.cpu_seconds.push_back(worker->cpu_seconds);
  }
  return result;
}

/// The copy that holds a version of the round. Versions of kSync rounds stay in one copy.
int Runtime::copy_of(int stage, int version) const {
  const auto index = static_cast<std::size_t>(stage);
  if (program_->rule != UpdateRule::kStash) return base_version_[index];
  return (base_version_[index] + std::max(version, 0)) % capacity_[index].versions;
}

StageUnit& Runtime::unit_of(const Instruction& instruction) {
  return units_[static_cast<std::size_t>(instruction.stage)]
               [static_cast<std::size_t>(instruction.unit)];
}

/// Binds a unit's inputs: the first thing that a stage does with it.
void Runtime::start_unit(const Instruction& instruction, StageUnit& unit) {
  RoundUnit& round_unit = source_->acquire(instruction.unit);
  if (stages_[static_cast<std::size_t>(instruction.stage)]->has_loss(round_unit.variant)) {
    round_units_[static_cast<std::size_t>(instruction.unit)] = &round_unit;
  }
  unit.variant = round_unit.variant;
  unit.seed = options_.seed;
  unit.step = round_unit.step;
  unit.first_sample = round_unit.first_sample;
  unit.loss_scale = static_cast<float>(round_unit.loss_scale);
  const std::size_t size =
      stages_[static_cast<std::size_t>(instruction.stage)]->table_size(unit.variant);
  if (unit.table.size() < size) unit.table.resize(size);
  std::copy(round_unit.columns.begin(), round_unit.columns.end(), unit.table.begin());
}

Channel& Runtime::channel(const ValueEdge& edge) const {
  for (const Link& link : links_) {
    if (link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient)
      return *link.channel;
  }
  PT_FAIL(kInternal, "no channel from stage {} to stage {}", edge.from, edge.to);
}

void Runtime::receive_all(Worker& worker, const Instruction& instruction, StageUnit& unit,
                          bool gradient) {
  for (const ValueEdge& edge : slices_[static_cast<std::size_t>(unit.variant)]->edges) {
    if (edge.to != instruction.stage || edge.gradient != gradient) continue;
    worker.waits_for.store(edge.from, std::memory_order_relaxed);
    const std::byte* base = channel(edge).receive(instruction.unit);
    worker.waits_for.store(kNobody, std::memory_order_relaxed);
    stages_[static_cast<std::size_t>(instruction.stage)]->bind_received(
        unit.variant, edge, *stages_[static_cast<std::size_t>(edge.from)], base, unit);
  }
}

/// Waits until the memory that this unit's handed-on values will overwrite has been read for the
/// last time.
void Runtime::wait_handed_on(Worker& worker, const Instruction& instruction, bool gradient,
                             int entries) {
  for (const Link& link : links_) {
    if (link.from != instruction.stage || link.gradient != gradient) continue;
    worker.waits_for.store(link.to, std::memory_order_relaxed);
    link.channel->wait_released(instruction.unit, entries);
    worker.waits_for.store(kNobody, std::memory_order_relaxed);
  }
}

/// Tells the senders that this stage is done with a unit.
void Runtime::release_all(const Instruction& instruction) {
  for (const Link& link : links_) {
    if (link.to == instruction.stage) link.channel->release(instruction.unit);
  }
  if (instruction.stage == 0) source_->release(instruction.unit);
}

/// Sleeps in place of the kernels; false when they are to run.
bool Runtime::rehearse(const Instruction& instruction) const {
  if (options_.rehearsal.empty()) return false;
  const StageSeconds& seconds = options_.rehearsal[static_cast<std::size_t>(instruction.stage)];
  const double time = instruction.kind == Kind::kForward          ? seconds.forward
                      : instruction.kind == Kind::kRecompute      ? seconds.recompute
                      : instruction.kind == Kind::kBackward       ? seconds.backward
                      : instruction.kind == Kind::kBackwardInput  ? seconds.backward_input
                      : instruction.kind == Kind::kBackwardWeight ? seconds.backward_weight
                                                                  : seconds.update;
  std::this_thread::sleep_for(std::chrono::duration<double>(time));
  return true;
}

void Runtime::execute(Worker& worker, const Instruction& instruction) {
  Event& event = worker.events[static_cast<std::size_t>(worker.at.load(std::memory_order_relaxed))];
  event.device = worker.device;
  event.index = worker.at.load(std::memory_order_relaxed);
  if (instruction.kind == Kind::kReceive || instruction.kind == Kind::kGradientSync ||
      instruction.kind == Kind::kSend) {
    event.start = now() - round_start_;
    if (instruction.kind == Kind::kGradientSync) sync_gradients(worker);
    event.end = now() - round_start_;
    return;
  }
  const auto stage_index = static_cast<std::size_t>(instruction.stage);
  Stage& stage = *stages_[stage_index];
  const StageCapacity& capacity = capacity_[stage_index];
  const bool evaluates = program_->rule == UpdateRule::kNone;
  const auto send = [&](bool gradient, const std::byte* base) {
    const StageUnit& unit = unit_of(instruction);
    for (const ValueEdge& edge : slices_[static_cast<std::size_t>(unit.variant)]->edges) {
      if (edge.from != instruction.stage || edge.gradient != gradient) continue;
      channel(edge).send(instruction.unit, base);
    }
  };
  if (instruction.kind != Kind::kUpdate) {
    StageUnit& unit = unit_of(instruction);
    if (instruction.kind == Kind::kForward) {
      start_unit(instruction, unit);
      receive_all(worker, instruction, unit, /*gradient=*/false);
      wait_handed_on(worker, instruction, /*gradient=*/false, capacity.forward_entries);
    }
    if (instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput) {
      receive_all(worker, instruction, unit, /*gradient=*/true);
      wait_handed_on(worker, instruction, /*gradient=*/true, capacity.gradient_entries);
    }
    unit.slot = instruction.slot;
    unit.version_copy = copy_of(instruction.stage, instruction.version);
  }
  event.start = now() - round_start_;
  switch (instruction.kind) {
    case Kind::kForward: {
      StageUnit& unit = unit_of(instruction);
      const std::byte* out = nullptr;
      if (!rehearse(instruction)) {
        out = stage.forward(unit, instruction.unit % capacity.forward_entries,
                            /*count_statistics=*/!evaluates);
      }
      if (stage.has_loss(unit.variant)) {
        RoundUnit& result = *round_units_[static_cast<std::size_t>(instruction.unit)];
        result.loss_sum = stage.loss_sum();
        result.correct = stage.correct();
      }
      if (program_->rule == UpdateRule::kStash) stage.apply_statistics();
      send(/*gradient=*/false, out);
      if (evaluates) release_all(instruction);
      break;
    }
    case Kind::kRecompute:
      if (!rehearse(instruction)) stage.recompute(unit_of(instruction));
      break;
    case Kind::kBackward:
    case Kind::kBackwardInput:
    case Kind::kBackwardWeight: {
      StageUnit& unit = unit_of(instruction);
      const Stage::Pass pass = instruction.kind == Kind::kBackward        ? Stage::Pass::kFull
                               : instruction.kind == Kind::kBackwardInput ? Stage::Pass::kInput
                                                                          : Stage::Pass::kWeight;
      const std::byte* out = nullptr;
      if (!rehearse(instruction)) {
        out = stage.backward(unit, instruction.unit % capacity.gradient_entries, pass,
                             !accumulating_[stage_index]);
      }
      if (pass != Stage::Pass::kInput) accumulating_[stage_index] = 1;
      if (pass != Stage::Pass::kWeight) send(/*gradient=*/true, out);
      if (pass != Stage::Pass::kInput) release_all(instruction);
      break;
    }
    case Kind::kUpdate: {
      if (rehearse(instruction)) break;
      const int unit = std::max(instruction.unit, 0);
      const bool stash = program_->rule == UpdateRule::kStash;
      const int from = copy_of(instruction.stage, stash ? instruction.version - 1 : 0);
      const int to = copy_of(instruction.stage, instruction.version);
      if (!program_->gradient_sync)
        stage.finish_gradients(0, stash ? unit_of(instruction).version_copy : from);
      const double scale =
          program_->gradient_sync ? clip_factor(gradient_norm_, options_.clip_norm) : 1.0;
      stage.update(0, from, to, source_->learning_rate(unit), source_->update_number(unit), scale);
      if (!stash) stage.apply_statistics();
      accumulating_[stage_index] = 0;
      break;
    }
    case Kind::kSend:
    case Kind::kReceive:
    case Kind::kGradientSync:
      break;
  }
  event.end = now() - round_start_;
  worker.busy_seconds += event.end - event.start;
}

/// All stages: tied weights get each other's gradients, then the global norm is the same number
/// everywhere.
void Runtime::sync_gradients(Worker& worker) {
  const auto meet = [&] {
    worker.waits_for.store(kEverybody, std::memory_order_relaxed);
    barrier_->arrive_and_wait();
    worker.waits_for.store(kNobody, std::memory_order_relaxed);
  };
  const auto each_stage = [&](auto&& body) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (program_->device_of_stage[s] == worker.device) body(s);
    }
  };
  meet();  // all accumulators are complete
  each_stage([&](std::size_t s) { stages_[s]->fetch_remote(0, stages_); });
  meet();  // and have been fetched
  each_stage([&](std::size_t s) {
    stages_[s]->finish_gradients(0, base_version_[s]);
    stages_[s]->squared_norms(0, squared_norms_);
  });
  meet();  // all norms are there
  if (worker.device == 0)
    gradient_norm_ = std::sqrt(std::accumulate(squared_norms_.begin(), squared_norms_.end(), 0.0));
  meet();
}

HostTensor Runtime::read(const std::string& name) const {
  HostTensor out;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s]->read(name, base_version_[s], out)) break;
  }
  return out;
}

void Runtime::write(const std::string& name, const HostTensor& value) {
  for (const auto& stage : stages_) stage->write(name, value);
}

std::string Runtime::first_nonfinite() const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const std::string name = stages_[s]->first_nonfinite(base_version_[s]);
    if (!name.empty()) return fmt::format("stage {}, {}", s, name);
  }
  return {};
}

std::string Runtime::describe_hang() const {
  std::string text = fmt::format("no progress for {:.0f} s", options_.timeout_seconds);
  const auto last = [&](const Worker& worker) -> std::string {
    const auto& list = program_->device[static_cast<std::size_t>(worker.device)];
    const int at = worker.at.load();
    if (worker.waits_for.load() == kFinished) return "the end of its list";
    return at < 0 || at >= static_cast<int>(list.size())
               ? "its start"
               : to_text(*program_, list[static_cast<std::size_t>(at)]);
  };
  for (const auto& worker : workers_) {
    const int waits = worker->waits_for.load();
    if (waits == kNobody) return {};
    if (waits == kFinished) continue;
    if (waits == kEverybody) {
      text += fmt::format("; stage {} is at {} and waits for all others", worker->device,
                          last(*worker));
      continue;
    }
    const Worker& other = *workers_[static_cast<std::size_t>(
        program_->device_of_stage[static_cast<std::size_t>(waits)])];
    text += fmt::format("; stage {} is at {} and waits for stage {}, which is at {}",
                        worker->device, last(*worker), waits, last(other));
  }
  return text;
}

}  // namespace pipetrain
