#include "pipeline/transport/host_staging.h"

#include <algorithm>

namespace pipetrain {

HostStaging::HostStaging(Device& sender, Stream& receiver)
    : receiver_(receiver), sender_(sender.make_stream()) {
  for (Slot& slot : slots_) {
    slot.arrived = sender.make_point();
    slot.left = receiver.device().make_point();
  }
}

void HostStaging::copy(void* to, const void* from, std::size_t bytes, const StreamPoint* written) {
  if (written) sender_->wait(*written);
  for (std::size_t done = 0; done < bytes; done += kSlotBytes) {
    const std::size_t chunk = std::min(kSlotBytes, bytes - done);
    Slot& slot = slots_[next_++ % kSlots];
    if (slot.memory.bytes() < chunk) {
      receiver_.synchronize();  // both copies of the released buffer are done
      slot.memory = receiver_.device().allocate_on_host(std::min(kSlotBytes, 2 * chunk));
    }
    sender_->wait(*slot.left);
    sender_->copy(slot.memory.data(), static_cast<const std::byte*>(from) + done, chunk);
    sender_->record(*slot.arrived);
    receiver_.wait(*slot.arrived);
    receiver_.copy(static_cast<std::byte*>(to) + done, slot.memory.data(), chunk);
    receiver_.record(*slot.left);
  }
}

}  // namespace pipetrain
