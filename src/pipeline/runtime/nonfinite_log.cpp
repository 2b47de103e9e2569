#include "pipeline/runtime/nonfinite_log.h"

#include <utility>

namespace pipetrain {

void NonfiniteLog::found(NonfiniteValue value) {
  const std::lock_guard lock(mutex_);
  // Others may have looked at the same time.
  if (!first_ || comes_before(value, *first_)) first_ = std::move(value);
  has_found_ = true;
}

void NonfiniteLog::loss_is_finite(const PassPlace& micro_batch, std::uint64_t versions) {
  if (!has_found_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (!first_) return;
  const bool is_same = !first_->backward && first_->place == micro_batch;
  if (!is_same && first_->place->step + versions >= micro_batch.step) return;
  ignore(first_->stage, first_->backward);
  first_.reset();
  has_found_ = false;
}

std::optional<NonfiniteValue> NonfiniteLog::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

}  // namespace pipetrain
