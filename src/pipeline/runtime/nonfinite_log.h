// What the devices of this process have found out about the first value that is not finite.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "pipeline/stage/nonfinite.h"

namespace pipetrain {

class NonfiniteLog {
 public:
  explicit NonfiniteLog(int stages) : off_(static_cast<std::size_t>(2 * stages)) {}

  /// Whether a stage should check the values of its passes: no value is recorded, and ignore() was
  /// not called for this pass of the stage.
  bool wants(int stage, bool backward) const {
    return !has_found_.load(std::memory_order_relaxed) &&
           !off_[index(stage, backward)].load(std::memory_order_relaxed);
  }
  void found(NonfiniteValue value);
  /// A stage need not look again: what is not finite there is meant, or cannot be traced.
  void ignore(int stage, bool backward) { off_[index(stage, backward)] = true; }
  /// Called when the loss of a micro-batch is finite. Discards the recorded value if it is from the
  /// forward pass of this micro-batch or from more than `versions` steps before: it did no harm.
  void loss_is_finite(const PassPlace& micro_batch, std::uint64_t versions);
  std::optional<NonfiniteValue> first() const;

 private:
  static std::size_t index(int stage, bool backward) {
    return 2 * static_cast<std::size_t>(stage) + (backward ? 1 : 0);
  }

  mutable std::mutex mutex_;
  std::optional<NonfiniteValue> first_;
  std::atomic<bool> has_found_{false};
  std::vector<std::atomic<bool>> off_;  // [stage][backward]
};

}  // namespace pipetrain
