// The plugin's entry point. Distinguishes a machine without driver or GPU from one on which they
// fail.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "cuda/device_cuda.h"
#include "cuda/nccl_cuda.h"
#include "device/build_id.h"
#include "device/plugin.h"

namespace pipetrain {
namespace {

class CudaPlugin final : public DevicePlugin {
 public:
  std::vector<std::string> devices() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary) {
      int driver = 0;
      cudaDriverGetVersion(&driver);  // 0: none
      PT_CHECK(status != cudaErrorStubLibrary && driver > 0, kResource,
               "no driver for NVIDIA GPUs was found");
      PT_FAIL(kResource,
              "the NVIDIA driver is for CUDA {}.{}; this build needs one for CUDA {}.0 or newer",
              driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    }
    PT_CHECK(status != cudaErrorNoDevice && !(status == cudaSuccess && count == 0), kResource,
             "no NVIDIA GPU was found");
    PT_CHECK(status == cudaSuccess, kResource, "the NVIDIA driver does not respond: {}",
             cudaGetErrorString(status));
    std::vector<std::string> names;
    for (int d = 0; d < count; ++d) {
      cudaDeviceProp properties{};
      cuda_check(cudaGetDeviceProperties(&properties, d), "telling what it is");
      names.emplace_back(properties.name);
    }
    return names;
  }

  /// GPUs are numbered as the process sees them.
  std::string identity(int index) override {
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, index), "telling what it is");
    return {properties.uuid.bytes, sizeof properties.uuid.bytes};
  }

  Device& open(int index) override {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CudaDevice>& device = open_[index];
    if (device) return *device;
    device = std::make_unique<CudaDevice>(index);
    for (const auto& [number, other] : open_) {
      if (!other || other == device) continue;
      device->use_memory_of(*other);
      other->use_memory_of(*device);
    }
    return *device;
  }

  bool reaches(int from, int to) override {
    int possible = 0;
    cuda_check(cudaDeviceCanAccessPeer(&possible, from, to), "telling what it reaches");
    if (possible == 0) return false;
    return open(from).reaches(open(to));  // the driver may refuse it after all
  }

  Collectives& collectives() override { return nccl_collectives(); }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<CudaDevice>> open_;
};

DevicePlugin* plugin() {
  // Never destroyed: the driver may be unloaded before static destructors run.
  static auto* const plugin = new CudaPlugin;
  return plugin;
}

}  // namespace
}  // namespace pipetrain

extern "C" __attribute__((visibility("default"))) const pipetrain::PluginEntry pipetrain_plugin;
const pipetrain::PluginEntry pipetrain_plugin = {pipetrain::kBuildId.data(), pipetrain::plugin};
