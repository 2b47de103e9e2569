// Devices that a plugin brings: loaded when one is asked for, and never unloaded.
#pragma once

#include <string>
#include <vector>

#include "device/communicator.h"
#include "device/device.h"

namespace pipetrain {

/// What a plugin offers. It is built together with the program and uses its classes.
class DevicePlugin {
 public:
  virtual ~DevicePlugin() = default;
  /// Names of the devices that are there. Error (kResource) saying why there is none.
  virtual std::vector<std::string> devices() = 0;
  /// What tells a device from all others of its machine, in whichever process.
  virtual std::string identity(int index) { return std::to_string(index); }
  /// Opens a device, for the rest of the program; asked again, it gives the same one.
  virtual Device& open(int index) = 0;
  /// Whether one device can copy from another without the host.
  virtual bool reaches(int from, int to) = 0;
  /// NCCL. Error (kResource) saying how to get it when it is not there.
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

/// Whether there is such a file at all.
bool has_cuda_plugin();

}  // namespace pipetrain
