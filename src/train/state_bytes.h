// A checkpoint as bytes, for memory that only this program reads again.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "train/checkpoint.h"

namespace pipetrain {

class StateBytes {
 public:
  /// `checkpoint` outlives it.
  explicit StateBytes(const Checkpoint& checkpoint);
  std::size_t size() const { return size_; }
  void write(std::byte* to) const;

 private:
  const Checkpoint& checkpoint_;
  std::size_t size_ = 0;
};

/// Reads what a StateBytes of this program has written. Error (kInternal, kData) for other bytes.
Checkpoint read_state(std::span<const std::byte> bytes);

}  // namespace pipetrain
