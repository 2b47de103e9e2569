// How values go between devices that do not reach each other: in chunks through a ring of
// page-locked host memory, so that one chunk leaves the sender while another one arrives.
//
//   sender's stream:    chunk 0 → slot 0 │ chunk 1 → slot 1 │ …  wait: slot 0 is free │ chunk 4 →
//   slot 0 receiver's stream:                   │ slot 0 → chunk 0 │ slot 1 → chunk 1 …
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "device/device.h"

namespace pipetrain {

/// From one device into the stream of another one. Used by the thread of that stream.
class HostStaging {
 public:
  HostStaging(Device& sender, Stream& receiver);

  /// Puts a copy into the receiver's stream. `written`: the point of the sender behind which the
  /// values are there; null: they are.
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
