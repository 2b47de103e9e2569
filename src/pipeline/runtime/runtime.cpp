#include "pipeline/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/program_cut.h"
#include "pipeline/runtime/device_thread.h"
#include "pipeline/runtime/runtime_worker.h"
#include "pipeline/transport/communicated_replicas.h"
#include "pipeline/transport/device_replicas.h"
#include "pipeline/transport/exchange.h"
#include "pipeline/transport/remote_links.h"
#include "pipeline/transport/remote_replicas.h"

namespace pipetrain {
namespace {

double busy_seconds(const std::vector<Instruction>& list, const std::vector<Event>& events) {
  double sum = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (is_compute(list[i].kind) || list[i].kind == Kind::kUpdate)
      sum += events[i].end - events[i].start;
  }
  return sum;
}

}  // namespace

Runtime::Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
                 const RuntimeOptions& options)
    : options_(options), variants_(std::move(variants)) {
  PT_CHECK(!programs.empty() && !variants_.empty(), kInternal,
           "a runtime without programs or networks");
  program_ = programs[0];
  for (const Program* program : programs) {
    PT_CHECK(program->placement == program_->placement, kInternal,
             "programs of one runtime put stages on different devices");
    PT_CHECK(!options_.loss_scaling.skips || program->gradient_sync ||
                 program->rule == UpdateRule::kNone,
             kInternal, "skipping steps needs a gradient sync before the updates");
  }
  loss_scale_.value = options_.loss_scaling.initial;
  for (const RuntimeVariant& variant : variants_) {
    slices_.push_back(std::make_unique<Slices>(
        slice_stages(*variant.training, variant.stage_of_forward, program_->stages)));
  }
  PT_CHECK(options_.devices.empty() || options_.devices.size() == at(program_->devices), kInternal,
           "{} devices for a program on {}", options_.devices.size(), program_->devices);
  capacity_ = stage_capacities(programs);
  for (const auto& slices : slices_) {
    for (const ValueEdge& edge : slices->edges) {
      const bool known = std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
        return link.from == edge.from && link.to == edge.to && link.gradient == edge.gradient;
      });
      if (!known)
        links_.push_back({edge.from, edge.to, edge.gradient,
                          std::make_unique<Channel>(options_.rehearsed_latency_seconds)});
    }
  }
  stages_.resize(at(program_->stages));
  groups_.resize(at(program_->stages));
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].resize(program_->placement[s].size());
    for (std::size_t r = 0; r < stages_[s].size(); ++r)
      stages_[s][r].device = program_->placement[s][r];
  }
  programs_ = programs;
  for (int device = 0; device < program_->devices; ++device) {
    workers_.push_back(is_here(device) ? std::make_unique<Worker>() : nullptr);
    if (!workers_.back()) continue;
    workers_.back()->device = device;
    ++running_;
  }
  barrier_ = std::make_unique<Barrier>(running_);
  if (options_.processes) connect_processes();
  if (options_.collectives && !options_.devices.empty() && options_.rehearsal.empty()) {
    exchange_ = std::make_unique<Exchange>(
        *options_.collectives, options_.devices, exchange_ranks(), program_->placement,
        options_.timeout_seconds, [this](std::exception_ptr error) { fail(error); },
        options_.processes);
  }
  squared_norms_.assign(variants_[0].training->parameters.size(), 0);
  units_.resize(at(program_->stages));
  unit_events_.resize(at(program_->stages));

  for (auto& worker : workers_) {
    if (worker) worker->thread = std::thread([this, device = worker->device] { work(device); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
  lock.unlock();
  try {
    if (error_) std::rethrow_exception(error_);
    share_work();
    share_memory();
    if (remote_) remote_->expect_signs_of_life();
  } catch (...) {
    lock.lock();
    stopping_ = true;
    lock.unlock();
    changed_.notify_all();
    for (auto& worker : workers_) {
      if (worker) worker->thread.join();
    }
    throw;
  }
  for (int s = 0; s < stages(); ++s) {
    const Copy* here = copy_here(s);
    if (stages_[at(s)].size() == 1 || !here) continue;
    groups_[at(s)] = group_replicas(s, here->stage->gradient_sizes());
    for (std::size_t r = 0; r < stages_[at(s)].size(); ++r) {
      if (Stage* stage = stages_[at(s)][r].stage.get())
        stage->join(*groups_[at(s)], static_cast<int>(r));
    }
  }
}

/// Without kernels to run, and on devices, whose memory is their own, there is nothing to share.
void Runtime::share_work() {
  if (!options_.devices.empty() || !options_.rehearsal.empty() || options_.processes ||
      program_->devices == 1)
    return;
  shared_work_ = std::make_unique<SharedWork>(program_->devices);
  std::vector<std::size_t> workspaces;
  for (const auto& replicas : stages_)
    workspaces.push_back(replicas.front().stage->workspace().bytes);
  workspaces = shared_workspaces(std::move(workspaces), program_->placement);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    // Replicas tell each other of every gradient as soon as it is complete.
    if (stages_[s].size() > 1) continue;
    const Copy& copy = stages_[s].front();
    copy.stage->share(*shared_work_, copy.device, workspaces[s]);
  }
}

std::unique_ptr<ReplicaGroup> Runtime::group_replicas(int stage,
                                                      const std::vector<std::size_t>& sizes) {
  std::vector<Stream*> streams;
  std::vector<int> devices, processes;
  for (const Copy& copy : stages_[at(stage)]) {
    const Worker* worker = workers_[at(copy.device)].get();
    streams.push_back(worker ? worker->compute.get() : nullptr);
    devices.push_back(copy.device);
    if (options_.processes) processes.push_back(options_.process_of_device[at(copy.device)]);
  }
  const auto elsewhere = [&](int process) { return process != options_.processes->rank(); };
  const bool apart = std::any_of(processes.begin(), processes.end(), elsewhere);
  if (exchange_ && exchange_->reduces(*program_, stage))
    return std::make_unique<CommunicatedReplicas>(sizes, std::move(streams), std::move(devices),
                                                  *exchange_);
  if (apart) {
    int tag = ProcessGroup::kFreeTag + static_cast<int>(links_.size()) * RemoteLinks::kUnits;
    for (int s = 0; s < stage; ++s)
      tag += RemoteReplicas::tags(static_cast<int>(stages_[at(s)].size()));
    return std::make_unique<RemoteReplicas>(*options_.processes, std::move(processes), tag, sizes);
  }
  if (options_.devices.empty())
    return std::make_unique<ReplicaGroup>(static_cast<int>(streams.size()), sizes);
  return std::make_unique<DeviceReplicaGroup>(sizes, std::move(streams));
}

Runtime::~Runtime() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& worker : workers_) {
    if (worker && worker->thread.joinable()) worker->thread.join();
  }
  const bool aborted = remote_ && remote_->aborted();
  remote_.reset();    // its thread hands failures on to the exchange
  exchange_.reset();  // streams no longer wait for other ranks
  for (const auto& worker : workers_) {
    if (!worker) continue;
    for (Stream* stream : {worker->transfer.get(), worker->compute.get()}) {
      try {
        // A failed round leaves work behind that uses the memory of the stages.
        if (stream) stream->synchronize();
      } catch (const Error&) {
        // Told when it happened, or of no interest any more.
      }
    }
  }
  if (!aborted) return;
  // Messages that were under way may still read and write; the process is about to end.
  static auto& kept = *new std::vector<std::vector<std::vector<Copy>>>();
  static std::mutex guard;
  const std::lock_guard lock(guard);
  kept.push_back(std::move(stages_));
  static auto& kept_groups = *new std::vector<std::vector<std::unique_ptr<ReplicaGroup>>>();
  kept_groups.push_back(std::move(groups_));
}

void Runtime::compile(int device) {
  Worker& worker = *workers_[at(device)];
  if (!options_.devices.empty()) {
    worker.compute = options_.devices[at(device)]->make_stream();
    worker.transfer = options_.devices[at(device)]->make_stream();
    worker.times = std::make_unique<DeviceTimes>(*worker.compute);
  }
  for (int s = 0; s < stages(); ++s) {
    for (Copy& copy : stages_[at(s)]) {
      if (copy.device != device) continue;
      std::vector<StageVariant> variants;
      for (std::size_t v = 0; v < variants_.size(); ++v)
        variants.push_back({variants_[v].training, slices_[v].get()});
      copy.stage = std::make_unique<Stage>(
          s, variants, options_.backend, capacity_[at(s)], options_.optimizer,
          StageStreams{worker.compute.get(), worker.transfer.get()});
      if (exchange_) allocate_received(copy, s);
      if (remote_ && !exchange_) allocate_remote(copy, s);
    }
  }
}

void Runtime::work(int device) {
  Worker& worker = *workers_[at(device)];
  if (options_.sharing_devices > 0) {
    become_device(options_.devices_before + device - first_device_here(), options_.sharing_devices,
                  options_.threads, options_.pin);
  } else {
    become_device(device, static_cast<int>(workers_.size()), options_.threads, options_.pin);
  }
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
      if (worker.times) worker.times->start(round_start_);
      for (; index < list.size(); ++index) {
        worker.at.store(static_cast<int>(index), std::memory_order_relaxed);
        execute(worker, list[index]);
        progress_.fetch_add(1, std::memory_order_relaxed);
      }
      index = list.empty() ? 0 : list.size() - 1;
      worker.synchronize();
      if (worker.times) worker.times->finish(worker.events);
      if (exchange_) exchange_->finish(device);
      worker.waits_for = Worker::kFinished;
      if (shared_work_)
        worker.worked_in_waits += shared_work_->finish(device, free_workspace(device));
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
    if (exchange_) exchange_->finish(device);
    try {
      worker.synchronize();  // after a failure: nothing may still use memory that is given up
    } catch (const Error&) {
      // The first failure has been reported.
    }
    worker.waits_for = Worker::kFinished;
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
  if (shared_work_) shared_work_->abort();
  if (exchange_) exchange_->abort();
  if (remote_) remote_->abort();
}

/// Where each edge's receive of each unit stands, to time it when its data are used.
void Runtime::find_receives(const Program& program) {
  receive_index_.assign(program.edges.size() * at(program.units), -1);
  for (const auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Kind::kReceive) continue;
      const Transfer& moved = program.transfers[at(list[i].transfer)];
      receive_index_[at(moved.edge) * at(program.units) + at(moved.unit)] = static_cast<int>(i);
    }
  }
}

void Runtime::start_round(const Program& program) {
  find_receives(program);
  program_ = &program;
  for (const Link& link : links_) link.channel->reset(program.units);
  for (const auto& group : groups_) {
    if (group) group->reset();
  }
  barrier_->reset();
  if (shared_work_) shared_work_->reset();
  if (exchange_) exchange_->start_round(program, /*keep=*/cut_ == nullptr);
  round_units_.assign(at(program.units), nullptr);
  if (stages_left_.size() < at(program.units))
    stages_left_ = std::vector<std::atomic<int>>(at(program.units));
  for (int unit = 0; unit < program.units; ++unit) {
    stages_left_[at(unit)] = program.stages;
    for (int s = 0; remote_ && s < program.stages; ++s)
      stages_left_[at(unit)] -= is_here(program.device_of(s, unit)) ? 0 : 1;
  }
  for (auto& units : units_) {
    if (units.size() < at(program.units)) units.resize(at(program.units));
  }
  for (auto& events : unit_events_) {
    if (!options_.devices.empty() && events.size() < at(program.units))
      events.resize(at(program.units));
  }
  group_version_ = versions_of_groups(program);
  gradient_norm_ = 0;
  skips_ = false;
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
    if (!workers_[d]) continue;
    workers_[d]->events.assign(program.device[d].size(), Event{});
    workers_[d]->at = -1;
    workers_[d]->worked_in_waits = 0;
    workers_[d]->waits_for = Worker::kNobody;
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
  if (remote_) start_remote_round();
  std::unique_lock lock(mutex_);
  if (!remote_) error_ = nullptr;  // processes go down together
  running_ = static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& worker) { return !!worker; }));
  round_start_ = steady_seconds();
  ++round_;
  changed_.notify_all();
  std::uint64_t seen = progress_.load();
  double last_progress = steady_seconds();
  while (running_ > 0) {
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return running_ == 0; });
    if (running_ == 0) break;
    if (remote_ && error_) {  // that came before the round
      lock.unlock();
      abort_waits();
      lock.lock();
    }
    const std::uint64_t progress = progress_.load();
    if (progress != seen) {
      seen = progress;
      last_progress = steady_seconds();
    } else if (steady_seconds() - last_progress > options_.timeout_seconds && !error_) {
      std::string text = describe_hang();
      if (text.empty()) continue;
      lock.unlock();
      fail(std::make_exception_ptr(Error(ErrorKind::kDevice, text)));
      lock.lock();
    }
  }
  RoundResult result;
  result.seconds = steady_seconds() - round_start_;
  lock.unlock();
  if (error_) std::rethrow_exception(error_);
  for (int s = 0; s < stages(); ++s) {
    for (Copy& copy : stages_[at(s)]) copy.base_version = block_of(copy, s, program.updates(s));
  }
  result.gradient_norm = gradient_norm_;
  result.loss_scale = loss_scale_.value;
  result.skipped = skips_;
  if (program.gradient_sync)
    loss_scale_ = after_step(loss_scale_, options_.loss_scaling, /*finite=*/!skips_);
  for (std::size_t d = 0; d < workers_.size(); ++d) {
    const auto& worker = workers_[d];
    result.events.push_back(worker ? worker->events : std::vector<Event>());
    result.busy_seconds.push_back(
        worker ? busy_seconds(program.device[d], worker->events) + worker->worked_in_waits : 0);
    result.cpu_seconds.push_back(worker ? worker->cpu_seconds : 0);
    result.worked_in_waits += worker ? worker->worked_in_waits : 0;
  }
  if (remote_) finish_with_others(result);
  if (!options_.devices.empty()) time_receives(program, result.events);
  return result;
}

void Runtime::finish_with_others(RoundResult& result) {
  try {
    remote_->finish_round();
    share_results(result);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    throw;
  }
}

std::string Runtime::describe_hang() const {
  const std::string waits = describe_waits();
  if (waits.empty()) return {};
  const std::string begin = fmt::format("no progress for {:.0f} s; ", options_.timeout_seconds);
  if (!remote_) return begin + waits;
  const std::string others = options_.processes->describe_hang(options_.timeout_seconds);
  return others.empty() ? std::string() : begin + waits + "; " + others;
}

/// Whom every device here waits for; empty while one computes.
std::string Runtime::describe_waits() const {
  std::string text;
  const auto last = [&](const Worker& worker) -> std::string {
    const auto& list = program_->device[at(worker.device)];
    const int index = worker.at.load();
    if (worker.waits_for.load() == Worker::kFinished) return "the end of its list";
    return index < 0 || index >= static_cast<int>(list.size())
               ? "its start"
               : to_text(*program_, list[at(index)]);
  };
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : "; ") + one; };
  for (const auto& worker : workers_) {
    if (!worker) continue;
    const int waits = worker->waits_for.load();
    if (waits == Worker::kNobody) return {};
    if (waits == Worker::kFinished) continue;
    if (waits == Worker::kEverybody) {
      add(fmt::format("device {} is at {} and waits for all others", worker->device,
                      last(*worker)));
    } else if (!workers_[at(waits)]) {
      add(fmt::format("device {} is at {} and waits for device {} of {}", worker->device,
                      last(*worker), waits,
                      options_.processes->name_of(options_.process_of_device[at(waits)])));
    } else {
      add(fmt::format("device {} is at {} and waits for device {}, which is at {}", worker->device,
                      last(*worker), waits, last(*workers_[at(waits)])));
    }
  }
  return text.empty() ? "all devices are done" : text;
}

}  // namespace pipetrain
