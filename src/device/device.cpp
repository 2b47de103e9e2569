#include "device/device.h"

namespace pipetrain {

DeviceMemory::DeviceMemory(Device& device, std::size_t bytes, bool on_host)
    : device_(&device),
      data_(bytes == 0 ? nullptr : device.take(bytes, on_host)),
      bytes_(bytes),
      on_host_(on_host) {}

DeviceMemory::~DeviceMemory() {
  if (data_) device_->give_back(data_, on_host_);
}

}  // namespace pipetrain
