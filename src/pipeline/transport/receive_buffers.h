// Receive buffers: per receiving device as many as its program needs at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/device.h"
#include "pipeline/transport/link.h"
#include "tensor/tensor.h"

namespace pipetrain {

struct ReceiveBuffer {
  Buffer host;                        // of a device that computes in host memory
  DeviceMemory memory;                // of another
  std::unique_ptr<StreamPoint> free;  // on a GPU: after the last reader
  std::byte* data() const { return memory.data() ? memory.data() : host.data(); }
};

class ReceiveBuffers {
 public:
  /// Allocates the buffers of an edge at one receiver.
  void allocate(const LinkEnd& receiver, int edge, int slots);
  ReceiveBuffer& at(int device, int slot);
  std::size_t slots(int device) const;

 private:
  std::vector<std::vector<ReceiveBuffer>> buffers_;  // [devices][slots]
};

}  // namespace pipetrain
