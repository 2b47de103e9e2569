// Device plugins: loaded on first use, never unloaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/communicator.h"
#include "device/device.h"

namespace pipetrain {

/// The interface of a plugin. It is built together with the program and shares its classes.
class DevicePlugin {
 public:
  virtual ~DevicePlugin() = default;
  /// Names of the available devices. Error (kResource) with the reason when there is none.
  virtual std::vector<std::string> devices() = 0;
  /// An id that is unique on the machine and the same in every process, such as a UUID.
  virtual std::string identity(int index) { return std::to_string(index); }
  /// Opens a device until the program ends; the same device each time.
  virtual Device& open(int index) = 0;
  /// Whether one device can copy from another without the host.
  virtual bool reaches(int from, int to) = 0;
  /// NCCL. Error (kResource) with installation advice when it is missing.
  virtual Collectives& collectives() = 0;
};

/// What a plugin's symbol `pipetrain_plugin` is.
struct PluginEntry {
  const char* build_id;
  DevicePlugin* (*plugin)();
};

/// The plugin for NVIDIA's GPUs, libpipetrain_cuda.so, from PIPETRAIN_BACKEND_PATH (a folder), from
/// beside the program or from ../lib/pipetrain. Error (kResource) when there is none, when it
/// cannot be loaded or belongs to another build.
DevicePlugin& cuda_plugin();

/// Whether the plugin file exists.
bool has_cuda_plugin();

/// Which build this program is: that of its plugins (build_id.h), and what the linker says.
std::string_view build_id();

}  // namespace pipetrain
