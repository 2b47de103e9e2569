#include "data/loading/loader.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace pipetrain {

Loader::Loader(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
               std::uint64_t end_step, int workers, const TakeMemory& memory)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      next_step_(first_step),
      taken_step_(first_step),
      first_step_(first_step),
      end_step_(end_step),
      slots_(static_cast<std::size_t>(std::max(workers, 1)) + 1) {
  for (Slot& slot : slots_) {
    slot.memory = BatchMemory(memory);
    for (std::size_t column = 0; column < dataset_->columns().size(); ++column)
      slot.memory.column(column,
                         dataset_->columns()[column].batch_type(sampler_.options().batch_size));
  }
  for (int worker = 0; worker < std::max(workers, 1); ++worker) {
    threads_.emplace_back([this](std::stop_token stop) { read_ahead(std::move(stop)); });
  }
}

Loader::~Loader() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (in_use_) {
    in_use_->full = false;
    in_use_ = nullptr;
    ++next_step_;
    changed_.notify_all();
  }
  if (next_step_ >= end_step_) return nullptr;
  Slot& slot = this->slot(next_step_);
  if (!slot.full) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return slot.full; });
    waited_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (slot.failure) std::rethrow_exception(slot.failure);
  in_use_ = &slot;
  return &slot.batch;
}

void Loader::read_ahead(std::stop_token stop) {
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

void Loader::fill(Slot& slot, std::uint64_t step) {
  Batch& batch = slot.batch;
  batch.step = step;
  batch.epoch = sampler_.epoch_of(step);
  batch.indices = sampler_.batch_indices(step);
  batch.samples = batch.indices.size();
  batch.columns.clear();
  for (std::size_t column = 0; column < dataset_->columns().size(); ++column) {
    batch.columns.push_back(
        slot.memory.column(column, dataset_->columns()[column].batch_type(batch.samples)));
  }
  gather_batch(*dataset_, step, batch.indices, batch.columns);
}

}  // namespace pipetrain
