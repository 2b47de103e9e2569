#include "data/loader.h"

#include <chrono>

#include "base/error.h"

namespace pipetrain {

Loader::Loader(std::shared_ptr<const Dataset> dataset, Sampler sampler, std::uint64_t first_step,
               std::uint64_t end_step)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      next_step_(first_step),
      first_step_(first_step),
      end_step_(end_step) {
  for (Slot& slot : slots_) {
    for (const Column& column : dataset_->columns()) {
      slot.memory.emplace_back(column.batch_type(sampler_.options().batch_size));
    }
  }
  thread_ = std::jthread([this](std::stop_token stop) { read_ahead(std::move(stop)); });
}

Loader::~Loader() = default;

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (in_use_) {
    in_use_->full = false;
    in_use_ = nullptr;
    changed_.notify_all();
  }
  if (next_step_ >= end_step_) return nullptr;
  Slot& slot = slots_[(next_step_ - first_step_) % 2];
  if (!slot.full) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return slot.full || failure_; });
    waited_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  // A batch that was read before the failure is still good.
  if (!slot.full) std::rethrow_exception(failure_);
  ++next_step_;
  in_use_ = &slot;
  return &slot.batch;
}

void Loader::read_ahead(std::stop_token stop) {
  for (std::uint64_t step = first_step_; step < end_step_; ++step) {
    Slot& slot = slots_[(step - first_step_) % 2];
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !slot.full; })) return;
    }
    if (stop.stop_requested()) return;
    std::exception_ptr failure;
    try {
      with_context([&] { return fmt::format("reading the data of step {}", step); },
                   [&] { fill(slot, step); });
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    slot.full = !failure;
    changed_.notify_all();
    if (failure) return;
  }
}

void Loader::fill(Slot& slot, std::uint64_t step) {
  Batch& batch = slot.batch;
  batch.step = step;
  batch.epoch = sampler_.epoch_of(step);
  batch.indices = sampler_.batch_indices(step);
  batch.samples = batch.indices.size();
  batch.columns.clear();
  for (std::size_t column = 0; column < slot.memory.size(); ++column) {
    batch.columns.push_back(
        {dataset_->columns()[column].batch_type(batch.samples), slot.memory[column].view().data});
  }
  gather_batch(*dataset_, batch.indices, batch.columns);
}

}  // namespace pipetrain
