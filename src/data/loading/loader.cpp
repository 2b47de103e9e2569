#include "data/loading/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {

/// The batches, which the workers and the caller share.
class Loader::Ring {
 public:
  Ring(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
       std::uint64_t end_step, int workers, const TakeMemory& memory, double timeout_seconds)
      : dataset_(std::move(dataset)),
        sampler_(std::move(sampler)),
        next_step_(first_step),
        taken_step_(first_step),
        first_step_(first_step),
        end_step_(end_step),
        timeout_seconds_(timeout_seconds),
        workers_(workers),
        slots_(static_cast<std::size_t>(workers) + 1) {
    for (Slot& slot : slots_) {
      slot.memory = BatchMemory(memory);
      slot.memory.columns(*dataset_, sampler_.options().batch_size);
    }
  }

  const Batch* next();
  void abort();
  void read_ahead(const std::stop_token& stop);
  double waited_seconds() const { return waited_seconds_; }
  /// Waits for the workers, which have been asked to stop; false: one did not come back in time.
  bool ends();

 private:
  struct Slot {
    Batch batch;
    BatchMemory memory;
    std::exception_ptr failure;
    bool full = false;
    double taken_at = 0;  // by a worker; 0: not yet
  };
  void wait_for(std::unique_lock<std::mutex>& lock, const Slot& slot);
  void read_steps(const std::stop_token& stop);
  void fill(Slot& slot, std::uint64_t step);
  Slot& slot(std::uint64_t step) { return slots_[(step - first_step_) % slots_.size()]; }

  std::shared_ptr<const Dataset> dataset_;
  Sampler sampler_;
  std::uint64_t next_step_;   // that next() gives
  std::uint64_t taken_step_;  // that the next free worker fills
  std::uint64_t first_step_;
  std::uint64_t end_step_;
  double timeout_seconds_;
  double waited_seconds_ = 0;
  bool aborted_ = false;
  int workers_;  // that have not ended
  std::vector<Slot> slots_;
  Slot* in_use_ = nullptr;
  std::mutex mutex_;
  std::condition_variable_any changed_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
               std::uint64_t end_step, int workers, const TakeMemory& memory,
               double timeout_seconds)
    : ring_(std::make_unique<Ring>(std::move(dataset), std::move(sampler), first_step, end_step,
                                   std::max(workers, 1), memory, timeout_seconds)) {
  for (int worker = 0; worker < std::max(workers, 1); ++worker) {
    threads_.emplace_back(
        [ring = ring_.get()](const std::stop_token& stop) { ring->read_ahead(stop); });
  }
}

Loader::~Loader() {
  for (std::jthread& thread : threads_) thread.request_stop();
  if (ring_->ends()) return;
  // Nobody knows when they come back: they keep what they use, and the program ends without them.
  for (std::jthread& thread : threads_) thread.detach();
  static std::mutex guard;
  static auto& kept = *new std::vector<std::unique_ptr<Ring>>();
  const std::lock_guard lock(guard);
  kept.push_back(std::move(ring_));
}

const Batch* Loader::next() { return ring_->next(); }

void Loader::abort() { ring_->abort(); }

double Loader::waited_seconds() const { return ring_->waited_seconds(); }

const Batch* Loader::Ring::next() {
  std::unique_lock lock(mutex_);
  if (in_use_) {
    in_use_->full = false;
    in_use_->taken_at = 0;
    in_use_ = nullptr;
    ++next_step_;
    changed_.notify_all();
  }
  if (next_step_ >= end_step_) return nullptr;
  Slot& slot = this->slot(next_step_);
  if (!slot.full) {
    const double begin = steady_seconds();
    wait_for(lock, slot);
    waited_seconds_ += steady_seconds() - begin;
    if (!slot.full) return nullptr;  // aborted
  }
  if (slot.failure) std::rethrow_exception(slot.failure);
  in_use_ = &slot;
  return &slot.batch;
}

void Loader::Ring::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void Loader::Ring::wait_for(std::unique_lock<std::mutex>& lock, const Slot& slot) {
  const auto ready = [&] { return slot.full || aborted_; };
  if (timeout_seconds_ <= 0) return changed_.wait(lock, ready);
  if (changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds_), ready)) return;
  PT_FAIL(kDevice, "no progress for {:.0f} s; training waits for the data of step {}, {}",
          timeout_seconds_, next_step_,
          slot.taken_at > 0
              ? fmt::format("which have been read for {:.1f} s", steady_seconds() - slot.taken_at)
              : "which no thread reads");
}

bool Loader::Ring::ends() {
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return workers_ == 0; };
  constexpr std::chrono::milliseconds kMoment(500);
  if (aborted_) return changed_.wait_for(lock, kMoment, ended);
  if (timeout_seconds_ <= 0) return true;  // they are waited for without end
  double since = steady_seconds();
  for (const Slot& slot : slots_) {
    if (slot.taken_at > 0 && !slot.full) since = std::min(since, slot.taken_at);
  }
  const std::chrono::duration<double> left(since + timeout_seconds_ - steady_seconds());
  return changed_.wait_for(lock, left, ended);
}

void Loader::Ring::read_ahead(const std::stop_token& stop) {
  read_steps(stop);
  const std::lock_guard lock(mutex_);
  --workers_;
  changed_.notify_all();
}

void Loader::Ring::read_steps(const std::stop_token& stop) {
  while (true) {
    std::uint64_t step = 0;
    {
      // A step's slot is free when the batch before it in the same slot has been given back.
      std::unique_lock lock(mutex_);
      const auto ready = [&] {
        return taken_step_ >= end_step_ || taken_step_ - next_step_ < slots_.size();
      };
      if (!changed_.wait(lock, stop, ready) || taken_step_ >= end_step_) return;
      step = taken_step_++;
      slot(step).taken_at = steady_seconds();
    }
    if (stop.stop_requested()) return;
    Slot& slot = this->slot(step);
    std::exception_ptr failure;
    try {
      with_context([&] { return fmt::format("reading the data of step {}", step); },
                   [&] { fill(slot, step); });
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    slot.failure = failure;
    slot.full = true;
    changed_.notify_all();
    if (failure) taken_step_ = end_step_;  // later steps are not needed
  }
}

void Loader::Ring::fill(Slot& slot, std::uint64_t step) {
  Batch& batch = slot.batch;
  batch.step = step;
  batch.epoch = sampler_.epoch_of(step);
  batch.indices = sampler_.batch_indices(step);
  batch.samples = batch.indices.size();
  batch.columns = slot.memory.columns(*dataset_, batch.samples);
  gather_batch(*dataset_, step, batch.indices, batch.columns);
}

}  // namespace pipetrain
