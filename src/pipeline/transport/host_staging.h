// Copies between GPUs without peer access: in chunks through a ring of page-locked host memory, so
// that both directions of the copy overlap.
//
//   sender's stream:    chunk 0 → slot 0 │ chunk 1 → slot 1 │ … wait for slot 0 │ chunk 4 → slot 0
//   receiver's stream:                   │ slot 0 → chunk 0 │ slot 1 → chunk 1 …
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "device/device.h"

namespace pipetrain {

/// From one device to another, on the receiver's stream and thread.
class HostStaging {
 public:
  HostStaging(Device& sender, Stream& receiver);

  /// Enqueues a copy on the receiver's stream. `written`: the point of the sender that completes
  /// the values; null: complete.
  void copy(void* to, const void* from, std::size_t bytes, const StreamPoint* written);

  static constexpr std::size_t kSlots = 4, kSlotBytes = std::size_t{4} << 20;

 private:
  struct Slot {
    DeviceMemory memory;                   // of the host; taken when it is first used
    std::unique_ptr<StreamPoint> arrived;  // on the sender's stream: the slot is full
    std::unique_ptr<StreamPoint> left;     // on the receiver's stream: the slot is free
  };
  Stream& receiver_;
  std::unique_ptr<Stream> sender_;  // of the sender's device, but of nobody else
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

}  // namespace pipetrain
