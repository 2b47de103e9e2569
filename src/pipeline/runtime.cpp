#include "pipeline/runtime.h"

#include <omp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "optim/update.h"
#include "pipeline/annotate.h"
#include "pipeline/program_cut.h"

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
// What a worker waits for, where it is no device.
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
  std::atomic<int> at{-1};              // index of the instruction in progress
  std::atomic<int> waits_for{kNobody};  // a device, or one of the above

  /// Notes whom the worker waits for as long as it exists.
  class Wait {
   public:
    Wait(Worker& worker, int device) : worker_(worker) {
      worker_.waits_for.store(device, std::memory_order_relaxed);
    }
    ~Wait() { worker_.waits_for.store(kNobody, std::memory_order_relaxed); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Worker& worker_;
  };
};

Runtime::Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
                 const RuntimeOptions& options)
    : options_(options), variants_(std::move(variants)) {
  PT_CHECK(!programs.empty() && !variants_.empty(), kInternal,
           "a runtime without programs or networks");
  program_ = programs[0];
  for (const Program* program : programs) {
    PT_CHECK(program->placement == program_->placement, kInternal,
             "programs of one runtime put stages on different devices");
  }
  for (const RuntimeVariant& variant : variants_) {
    slices_.push_back(std::make_unique<Slices>(
        slice_stages(*variant.training, variant.stage_of_forward, program_->stages)));
  }
  capacity_ = stage_capacities(programs);
  for (const auto& slices : slices_) {
    for (const ValueEdge& edge : slices->edges) {
      const bool known = std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
        return link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient;
      });
      if (!known)
        links_.push_back({edge.from, edge.to, edge.gradient, std::make_unique<Channel>()});
    }
  }
  stages_.resize(at(program_->stages));
  groups_.resize(at(program_->stages));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].resize(program_->placement[s].size());
    for (std::size_t r = 0; r < stages_[s].size(); ++r)
      stages_[s][r].device = program_->placement[s][r];
  }
  barrier_ = std::make_unique<Barrier>(program_->devices);
  squared_norms_.assign(variants_[0].training->parameters.size(), 0);
  units_.resize(at(program_->stages));

  running_ = program_->devices;
  for (int device = 0; device < program_->devices; ++device) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->device = device;
  }
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
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const int replicas = static_cast<int>(stages_[s].size());
    if (replicas == 1) continue;
    groups_[s] =
        std::make_unique<ReplicaGroup>(replicas, stages_[s].front().stage->gradient_sizes());
    for (int r = 0; r < replicas; ++r) stages_[s][at(r)].stage->join(*groups_[s], r);
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

void Runtime::compile(int device) {
  for (int s = 0; s < stages(); ++s) {
    for (Copy& copy : stages_[at(s)]) {
      if (copy.device != device) continue;
      std::vector<StageVariant> variants;
      for (std::size_t v = 0; v < variants_.size(); ++v)
        variants.push_back({variants_[v].training, slices_[v].get()});
      copy.stage = std::make_unique<Stage>(s, variants, options_.backend, capacity_[at(s)],
                                           options_.optimizer);
    }
  }
}

void Runtime::work(int device) {
  Worker& worker = *workers_[at(device)];
  prctl(PR_SET_NAME, fmt::format("device {}", device).c_str());
  if (!options_.rehearsal.empty()) prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps end on time
  omp_set_num_threads(options_.threads);
  const int devices = static_cast<int>(workers_.size());
  if (options_.pin && devices * options_.threads <= available_cores())
    pin_to_cores(device * options_.threads, options_.threads);
  try {
    compile(device);
  } catch (...) {
    fail(std::current_exception());
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
    const auto& list = program_->device[at(device)];
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
      fail(std::make_exception_ptr(error));
    } catch (...) {
      fail(std::current_exception());
    }
    worker.waits_for = kFinished;
    worker.cpu_seconds = thread_cpu_seconds() - cpu;
  }
}

void Runtime::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }
  abort_waits();
}

void Runtime::abort_waits() {
  for (const Link& link : links_) link.channel->abort();
  for (const auto& group : groups_) {
    if (group) group->abort();
  }
  barrier_->abort();
}

void Runtime::start_round(const Program& program) {
  program_ = &program;
  for (const Link& link : links_) link.channel->reset(program.units);
  for (const auto& group : groups_) {
    if (group) group->reset();
  }
  barrier_->reset();
  round_units_.assign(at(program.units), nullptr);
  if (stages_left_.size() < at(program.units))
    stages_left_ = std::vector<std::atomic<int>>(at(program.units));
  for (int unit = 0; unit < program.units; ++unit) stages_left_[at(unit)] = program.stages;
  for (auto& units : units_) {
    if (units.size() < at(program.units)) units.resize(at(program.units));
  }
  group_version_ = versions_of_groups(program);
  gradient_norm_ = 0;
  for (int s = 0; s < stages(); ++s) {
    for (int r = 0; r < program.replicas(s); ++r) {
      Copy& copy = this->copy(s, r);
      copy.accumulating = false;
      copy.adding_left = units_to_add(s, r, cut_ ? cut_->units_done / program.group_size(s) : 0);
      copy.forwards = copy.backwards = 0;
      copy.forward_entry.assign(at(capacity_[at(s)].forward_entries), -1);
      copy.gradient_entry.assign(at(capacity_[at(s)].gradient_entries), -1);
    }
  }
  for (std::size_t d = 0; d < workers_.size(); ++d) {
    workers_[d]->events.assign(program.device[d].size(), Event{});
    workers_[d]->busy_seconds = 0;
    workers_[d]->at = -1;
    workers_[d]->waits_for = kNobody;
  }
}

RoundResult Runtime::run(const Program& program, UnitSource& source) {
  cut_ = nullptr;
  start_round(program);
  return run_round(source);
}

RoundResult Runtime::run(const ProgramCut& cut, UnitSource& source) {
  cut_ = &cut;
  start_round(cut.rest);
  return run_round(source);
}

RoundResult Runtime::run_round(UnitSource& source) {
  const Program& program = *program_;
  source_ = &source;
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
      fail(std::make_exception_ptr(Error(ErrorKind::kDevice, text)));
      lock.lock();
    }
  }
  RoundResult result;
  result.seconds = now() - round_start_;
  lock.unlock();
  if (error_) std::rethrow_exception(error_);
  for (int s = 0; s < stages(); ++s) {
    for (Copy& copy : stages_[at(s)]) copy.base_version = block_of(copy, s, program.updates(s));
  }
  result.gradient_norm = gradient_norm_;
  for (auto& worker : workers_) {
    result.events.push_back(worker->events);
    result.busy_seconds.push_back(worker->busy_seconds);
    result.cpu_seconds.push_back(worker->cpu_seconds);
  }
  return result;
}

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
}

Channel& Runtime::channel(const ValueEdge& edge) const {
  for (const Link& link : links_) {
    if (link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient)
      return *link.channel;
  }
  PT_FAIL(kInternal, "no channel from stage {} to stage {}", edge.from, edge.to);
}

void Runtime::send(const Instruction& instruction, bool gradient, const std::byte* base) {
  const StageUnit& unit = unit_of(instruction);
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.from != instruction.stage || edge.gradient != gradient) continue;
    channel(edge).send(instruction.unit, base);
  }
}

void Runtime::receive_all(Worker& worker, const Instruction& instruction, StageUnit& unit,
                          const Copy& copy, bool gradient) {
  for (const ValueEdge& edge : slices_[at(unit.variant)]->edges) {
    if (edge.to != instruction.stage || edge.gradient != gradient) continue;
    const int replica = program_->replica_of(edge.from, instruction.unit);
    const Copy& sender = this->copy(edge.from, replica);
    const Worker::Wait wait(worker, sender.device);
    const std::byte* base = channel(edge).receive(instruction.unit);
    copy.stage->bind_received(unit.variant, edge, *sender.stage, base, unit);
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
    link.channel->wait_released(holder);
  }
  return entry;
}

/// Tells the senders, and at last the source, that this stage is done with a unit.
void Runtime::release_all(const Instruction& instruction) {
  for (const Link& link : links_) {
    if (link.to == instruction.stage) link.channel->release(instruction.unit);
  }
  if (--stages_left_[at(instruction.unit)] == 0) source_->release(instruction.unit);
}

/// Sleeps in place of the kernels; false when they are to run.
bool Runtime::rehearse(const Instruction& instruction, double start) const {
  if (options_.rehearsal.empty()) return false;
  const double end = round_start_ + start +
                     seconds_of(options_.rehearsal[at(instruction.stage)], instruction.kind);
  const auto until = std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(end)));
  std::this_thread::sleep_until(until);
  return true;
}

void Runtime::execute(Worker& worker, const Instruction& instruction) {
  const int index = worker.at.load(std::memory_order_relaxed);
  Event& event = worker.events[at(index)];
  event.device = worker.device;
  event.index = index;
  event.start = now() - round_start_;
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
  event.end = now() - round_start_;
  if (is_compute(instruction.kind) || instruction.kind == Kind::kUpdate)
    worker.busy_seconds += event.end - event.start;
}

void Runtime::run_forward(Worker& worker, const Instruction& instruction, Copy& copy) {
  StageUnit& unit = unit_of(instruction);
  start_unit(instruction, unit, copy);
  receive_all(worker, instruction, unit, copy, /*gradient=*/false);
  const int entry =
      take_entry(worker, instruction, /*gradient=*/false, copy.forwards, copy.forward_entry);
  Event& event = worker.events[at(worker.at.load(std::memory_order_relaxed))];
  event.start = now() - round_start_;
  const bool evaluates = program_->rule == UpdateRule::kNone;
  const bool replayed = cut_ && cut_->replayed[at(instruction.stage)][at(instruction.unit)];
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->forward(unit, entry, /*count_statistics=*/!evaluates && !replayed);
  if (copy.stage->has_loss(unit.variant)) {
    RoundUnit& result = *round_units_[at(instruction.unit)];
    result.loss_sum = copy.stage->loss_sum();
    result.correct = copy.stage->correct();
  }
  if (applies_statistics_at_once(*program_, instruction.stage)) copy.stage->apply_statistics();
  send(instruction, /*gradient=*/false, out);
  if (evaluates) release_all(instruction);
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
  Event& event = worker.events[at(worker.at.load(std::memory_order_relaxed))];
  event.start = now() - round_start_;
  const std::byte* out = nullptr;
  if (!rehearse(instruction, event.start))
    out = copy.stage->backward(unit, entry, pass, !copy.accumulating);
  if (adds) copy.accumulating = true;
  if (pass != Stage::Pass::kWeight) send(instruction, /*gradient=*/true, out);
  if (adds) release_all(instruction);
}

void Runtime::run_reduce(Worker& worker, const Instruction& instruction, Copy& copy) {
  const Worker::Wait wait(worker, kEverybody);
  if (!options_.rehearsal.empty()) {
    groups_[at(instruction.stage)]->meet();
    Event& event = worker.events[at(worker.at.load(std::memory_order_relaxed))];
    event.start = now() - round_start_;
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

StageContent Runtime::content(int stage, int version) const {
  const Copy& copy = this->copy(stage, 0);
  StageContent out = copy.stage->content(block_of(copy, stage, version));
  out.updates = copy.updates;
  for (int older = std::max(0, version - capacity_[at(stage)].versions + 1); older < version;
       ++older)
    out.stashed[older] = copy.stage->parameters(block_of(copy, stage, older));
  return out;
}

void Runtime::restore(int stage, const StageContent& content) {
  for (Copy& copy : stages_[at(stage)]) {
    copy.stage->set_content(content);
    copy.base_version = 0;
    copy.updates = content.updates;
    for (const auto& [version, parameters] : content.stashed)
      copy.stage->set_parameters(version % capacity_[at(stage)].versions, parameters);
  }
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
    const Worker::Wait wait(worker, kEverybody);
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

HostTensor Runtime::read(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (replicas.front().stage->read(name, replicas.front().base_version, out)) break;
  }
  return out;
}

HostTensor Runtime::read_gradient(const std::string& name) const {
  HostTensor out;
  for (const auto& replicas : stages_) {
    if (replicas.front().stage->read_gradient(name, out)) break;
  }
  return out;
}

void Runtime::write(const std::string& name, const HostTensor& value) {
  for (const auto& replicas : stages_) {
    for (const Copy& copy : replicas) copy.stage->write(name, value);
  }
}

std::string Runtime::first_nonfinite() const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Copy& copy = stages_[s].front();
    const std::string name = copy.stage->first_nonfinite(copy.base_version);
    if (!name.empty()) return fmt::format("stage {}, {}", s, name);
  }
  return {};
}

std::string Runtime::describe_hang() const {
  std::string text = fmt::format("no progress for {:.0f} s", options_.timeout_seconds);
  const auto last = [&](const Worker& worker) -> std::string {
    const auto& list = program_->device[at(worker.device)];
    const int index = worker.at.load();
    if (worker.waits_for.load() == kFinished) return "the end of its list";
    return index < 0 || index >= static_cast<int>(list.size())
               ? "its start"
               : to_text(*program_, list[at(index)]);
  };
  for (const auto& worker : workers_) {
    const int waits = worker->waits_for.load();
    if (waits == kNobody) return {};
    if (waits == kFinished) continue;
    if (waits == kEverybody) {
      text += fmt::format("; device {} is at {} and waits for all others", worker->device,
                          last(*worker));
      continue;
    }
    text += fmt::format("; device {} is at {} and waits for device {}, which is at {}",
                        worker->device, last(*worker), waits, last(*workers_[at(waits)]));
  }
  return text;
}

}  // namespace pipetrain
