#include "pipeline/transport/receive_buffers.h"

#include <algorithm>

namespace pipetrain {

void ReceiveBuffers::allocate(const LinkEnd& receiver, int edge, int slots) {
  const auto device = static_cast<std::size_t>(receiver.device());
  buffers_.resize(std::max(buffers_.size(), device + 1));
  const std::size_t bytes = receiver.buffer_bytes(edge);
  for (int slot = 0; slot < slots; ++slot) {
    ReceiveBuffer& buffer = buffers_[device].emplace_back();
    if (Stream* stream = receiver.stream()) {
      buffer.memory = stream->device().allocate(bytes);
      buffer.free = stream->device().make_point();
    } else {
      buffer.host = Buffer(bytes);
    }
  }
}

ReceiveBuffer& ReceiveBuffers::at(int device, int slot) {
  return buffers_.at(static_cast<std::size_t>(device)).at(static_cast<std::size_t>(slot));
}

std::size_t ReceiveBuffers::slots(int device) const {
  return buffers_.at(static_cast<std::size_t>(device)).size();
}

}  // namespace pipetrain
