#include "pipeline/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "pipeline/program/program_cut.h"
#include "pipeline/runtime/device_thread.h"
#include "pipeline/runtime/device_worker.h"
#include "pipeline/runtime/last_instructions.h"
#include "pipeline/transport/shared_work.h"
#include "processes/process_group.h"

namespace pipetrain {

Runtime::Runtime(std::vector<RuntimeVariant> variants, std::vector<const Program*> programs,
                 const RuntimeOptions& options)
    : setup_(std::make_unique<RuntimeSetup>(std::move(variants), std::move(programs), options)) {
  for (int device = 0; device < setup_->devices(); ++device) {
    if (setup_->is_here(device)) ++running_;
  }
  round_state_ = std::make_unique<RoundState>(*setup_, running_);
  replicas_ = std::make_unique<StageReplicas>(*setup_);
  sharing_ = std::make_unique<ProcessSharing>(*setup_, *replicas_, *round_state_);
  connect();
  try {
    compile_all();
  } catch (...) {
    stop();
    throw;
  }
}

/// Creates the transport. Its threads may report failures from here on.
void Runtime::connect() {
  const RuntimeOptions& options = setup_->options;
  TransportSettings settings;
  settings.edges = setup_->edges;
  settings.devices = options.devices;
  settings.ranks = setup_->ranks();
  if (!options.devices.empty() && options.emulated_stages.empty())
    settings.collectives = options.collectives;
  settings.processes = options.processes;
  settings.process_of_device = options.process_of_device;
  settings.buckets = options.buckets;
  settings.latency_seconds = options.emulated_latency_seconds;
  settings.timeout_seconds = options.timeout_seconds;
  settings.failed = [this](std::exception_ptr error) { fail(error); };
  settings.state = [this] {
    const std::lock_guard lock(mutex_);
    const bool waits = running_ > 0 && round_ > 0;
    return std::pair(waits ? describe_waits() : std::string(), progress_.load());
  };
  settings.computes = [this] {
    const SharedWork* work = replicas_->shared_work();
    return (work && work->is_working()) ||
           std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
             return worker && worker->waits_for() == DeviceWorker::kNobody;
           });
  };
  settings.notify = [this] {
    progress_.fetch_add(1, std::memory_order_relaxed);
    if (SharedWork* work = replicas_->shared_work()) work->notify_all();
  };
  auto transport = std::make_unique<Transport>(*setup_->programs[0], std::move(settings));
  const std::lock_guard lock(mutex_);
  transport_ = std::move(transport);
}

/// Starts the devices' threads, and returns when all stages, of all processes, are ready.
void Runtime::compile_all() {
  std::vector<LinkEnd*> ends;
  for (int device = 0; device < setup_->devices(); ++device) {
    workers_.push_back(setup_->is_here(device)
                           ? std::make_unique<DeviceWorker>(device, *setup_, *replicas_,
                                                            *round_state_, *sharing_, *transport_)
                           : nullptr);
    ends.push_back(workers_.back().get());
  }
  for (auto& worker : workers_) {
    if (worker) threads_.emplace_back([this, &worker = *worker] { work(worker); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
  if (error_) std::rethrow_exception(error_);
  lock.unlock();
  transport_->connect(std::move(ends));
  replicas_->share_work();
  sharing_->share_memory();
  transport_->expect_signs_of_life();
  std::vector<Stream*> streams;
  for (const auto& worker : workers_) streams.push_back(worker ? worker->stream() : nullptr);
  replicas_->join(*transport_, streams);
}

/// Ends the devices' threads.
void Runtime::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

Runtime::~Runtime() {
  stop();
  transport_->close();
  for (const auto& worker : workers_) {
    try {
      // A failed round may leave pending work that uses the memory of the stages.
      if (worker) worker->synchronize();
    } catch (const Error&) {
      // Reported already, or no longer of interest.
    }
  }
  if (!transport_->may_still_move()) return;
  // Messages in flight may still use the memory, so it is leaked; the process is about to exit.
  using Memory = std::pair<std::unique_ptr<StageReplicas>, std::unique_ptr<Transport>>;
  static auto& kept = *new std::vector<Memory>();
  static std::mutex guard;
  const std::lock_guard lock(guard);
  kept.emplace_back(std::move(replicas_), std::move(transport_));
}

void Runtime::work(DeviceWorker& worker) {
  const RuntimeOptions& options = setup_->options;
  if (options.sharing_devices > 0) {
    become_device(options.devices_before + worker.device() - setup_->first_device_here(),
                  options.sharing_devices, options.threads, options.pin);
  } else {
    become_device(worker.device(), setup_->devices(), options.threads, options.pin);
  }
  try {
    worker.compile();
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
    try {
      worker.run_list(progress_);
    } catch (const ChannelAborted&) {
      // The stage that failed reports.
    } catch (...) {
      fail(std::current_exception());
    }
    worker.end_list();
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
  Transport* transport = nullptr;
  {
    const std::lock_guard lock(mutex_);
    transport = transport_.get();
  }
  if (transport) transport->abort();
  round_state_->barrier.abort();
  if (SharedWork* work = replicas_->shared_work()) work->abort();
  const std::lock_guard lock(source_mutex_);
  if (source_) source_->abort();
}

void Runtime::set_source(MicroBatchSource* source) {
  const std::lock_guard lock(source_mutex_);
  source_ = source;
}

RoundResult Runtime::run(const Program& program, MicroBatchSource& source) {
  for (std::size_t s = 0; s < program.slots_per_stage.size(); ++s) {
    const StageCapacity& capacity = setup_->capacity[s];
    PT_CHECK(program.slots_per_stage[s] <= capacity.slots &&
                 program.versions_per_stage[s] <= capacity.versions,
             kInternal,
             "stage {} has {} slots and {} weight versions, but the program needs {} and {}", s,
             capacity.slots, capacity.versions, program.slots_per_stage[s],
             program.versions_per_stage[s]);
  }
  return run_round(program, nullptr, source);
}

RoundResult Runtime::run(const ProgramCut& cut, MicroBatchSource& source) {
  return run_round(cut.rest, &cut, source);
}

RoundResult Runtime::run_round(const Program& program, const ProgramCut* cut,
                               MicroBatchSource& source) {
  if (!setup_->options.processes) {  // a failure ends all processes
    const std::lock_guard lock(mutex_);
    error_ = nullptr;
  }
  round_state_->start(program, cut, source);
  replicas_->start_round(program, cut);
  transport_->start_round(program, /*keep=*/cut == nullptr);
  for (const auto& worker : workers_) {
    if (worker) worker->start_round();
  }
  set_source(&source);
  wait_for_devices();
  set_source(nullptr);
  if (error_) std::rethrow_exception(error_);
  replicas_->end_round(round_state_->early_end.get());
  RoundResult result = result_of_round();
  if (!setup_->options.devices.empty()) time_receives(program, result.events);
  if (setup_->options.processes) finish_with_others(result);
  return result;
}

/// Runs the lists of all devices, and returns when all have finished or failed.
void Runtime::wait_for_devices() {
  std::unique_lock lock(mutex_);
  running_ = static_cast<int>(threads_.size());
  round_state_->start_seconds = steady_seconds();
  ++round_;
  changed_.notify_all();
  std::uint64_t seen = progress_.load();
  double last_progress = steady_seconds();
  while (running_ > 0) {
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return running_ == 0; });
    if (running_ == 0) break;
    if (error_) {  // from before the devices began
      lock.unlock();
      abort_waits();
      lock.lock();
    }
    const std::uint64_t progress = progress_.load();
    if (progress != seen) {
      seen = progress;
      last_progress = steady_seconds();
    } else if (steady_seconds() - last_progress > setup_->options.timeout_seconds && !error_) {
      std::string text = describe_hang();
      if (text.empty()) continue;
      lock.unlock();
      dump_last_instructions();
      fail(std::make_exception_ptr(Error(ErrorKind::kDevice, text)));
      lock.lock();
    }
  }
}

RoundResult Runtime::result_of_round() {
  RoundState& round = *round_state_;
  RoundResult result;
  result.seconds = steady_seconds() - round.start_seconds;
  result.gradient_norm = round.gradient_norm;
  result.loss_scale = round.loss_scale.value;
  result.skipped = round.skips;
  if (round.program->gradient_sync) {
    round.loss_scale =
        after_step(round.loss_scale, setup_->options.loss_scaling, /*finite=*/!round.skips);
  }
  for (const auto& worker : workers_) {
    result.events.push_back(worker ? worker->events() : std::vector<Event>());
    result.busy_seconds.push_back(worker ? worker->busy_seconds() : 0);
    result.cpu_seconds.push_back(worker ? worker->cpu_seconds() : 0);
    if (worker)
      result.sent.insert(result.sent.end(), worker->noted().begin(), worker->noted().end());
    result.stolen_seconds += worker ? worker->stolen_seconds() : 0;
  }
  return result;
}

void Runtime::finish_with_others(RoundResult& result) {
  try {
    transport_->finish_round();
    result.buckets = transport_->bucket_events(round_state_->start_seconds);
    sharing_->share_results(result);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    throw;
  }
}

std::string Runtime::describe_hang() const {
  const RuntimeOptions& options = setup_->options;
  const std::string waits = describe_waits();
  if (waits.empty()) return {};
  const std::string begin = fmt::format("no progress for {:.0f} s; ", options.timeout_seconds);
  if (!options.processes) return begin + waits;
  const std::string others = options.processes->describe_hang(options.timeout_seconds);
  return others.empty() ? std::string() : begin + waits + "; " + others;
}

/// What every device here waits for; empty while one computes.
std::string Runtime::describe_waits() const {
  const RuntimeOptions& options = setup_->options;
  if (const SharedWork* work = replicas_->shared_work(); work && work->is_working()) return {};
  std::string text;
  for (const auto& worker : workers_) {
    if (!worker) continue;
    const int waits = worker->waits_for();
    if (waits == DeviceWorker::kNobody) return {};
    if (waits == DeviceWorker::kFinished) continue;
    std::string whom;
    if (waits == DeviceWorker::kEverybody) {
      whom = "all others";
    } else if (waits == DeviceWorker::kData) {
      whom = "its data";
    } else if (!workers_[at(waits)]) {
      whom = fmt::format("device {} of {}", waits,
                         options.processes->name_of(options.process_of_device[at(waits)]));
    } else {
      whom = fmt::format("device {}, which is at {}", waits, workers_[at(waits)]->describe_place());
    }
    text += fmt::format("{}device {} is at {} and has waited {:.1f} s for {}",
                        text.empty() ? "" : "; ", worker->device(), worker->describe_place(),
                        steady_seconds() - worker->waits_since(), whom);
  }
  return text.empty() ? "all devices are done" : text;
}

int Runtime::stages() const { return setup_->stages(); }

const ArenaBytes& Runtime::memory(int stage) const { return sharing_->memory(stage); }

bool Runtime::is_shared() const { return setup_->options.processes != nullptr; }

std::vector<StageContent> Runtime::contents() const { return sharing_->contents(); }
std::map<std::string, HostTensor> Runtime::weights_of_others() const {
  return sharing_->weights_of_others();
}
std::vector<StageContent> Runtime::own_contents() const { return sharing_->own_contents(); }

void Runtime::set_round_notes(RoundNotes notes) { sharing_->set_notes(std::move(notes)); }

HostTensor Runtime::read(const std::string& name) const { return replicas_->read(name); }

bool Runtime::write(const std::string& name, const HostTensor& value) {
  return replicas_->write(name, value);
}

StageContent Runtime::content(int stage, int version) const {
  return replicas_->content(stage, version);
}

void Runtime::exchange_averages() { replicas_->exchange_averages(); }

void Runtime::release_activations() { replicas_->release_activations(); }

const LossScale& Runtime::loss_scale() const { return round_state_->loss_scale; }

void Runtime::set_loss_scale(const LossScale& scale) { round_state_->loss_scale = scale; }

void Runtime::note_sends(bool notes) { round_state_->notes_sends = notes; }

void Runtime::restore(int stage, const StageContent& content) {
  replicas_->restore(stage, content);
}

HostTensor Runtime::read_gradient(const std::string& name) const {
  return replicas_->read_gradient(name);
}

std::vector<KernelTimes> Runtime::take_kernel_times() { return replicas_->take_kernel_times(); }

std::optional<NonfiniteValue> Runtime::first_nonfinite() const {
  return sharing_->first_nonfinite();
}

bool Runtime::weights_are_finite() const { return !replicas_->first_nonfinite(); }

std::optional<NonfiniteValue> Runtime::found_nonfinite() const {
  return round_state_->nonfinite.first();
}

}  // namespace pipetrain
