#include "support/device_kernel.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#include "device/plugin.h"

namespace pipetrain::test {
namespace {

class KernelOnDevice final : public Kernel {
 public:
  KernelOnDevice(std::unique_ptr<Stream> stream, std::unique_ptr<Kernel> kernel)
      : stream_(std::move(stream)), kernel_(std::move(kernel)) {}

  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    std::vector<DeviceMemory> memory;
    const auto place = [&](std::size_t bytes, const void* content) {
      memory.push_back(stream_->device().allocate(bytes + 64));
      stream_->copy(memory.back().data(), content, bytes);
      return memory.back().data();
    };
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    for (auto* tensors : {&in, &out}) {
      for (Tensor& tensor : *tensors) {
        if (tensor) tensor.data = place(tensor.bytes(), tensor.data);
      }
    }
    const std::vector<std::byte> undefined(kernel_->workspace_bytes(), std::byte{0xFF});
    RunContext there = context;
    there.workspace = place(undefined.size(), undefined.data());
    kernel_->run(in, out, there);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i]) stream_->copy(outputs[i].data, out[i].data, out[i].bytes());
    }
    stream_->synchronize();
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel_on(Device& device, const KernelRequest& request) {
  std::unique_ptr<Stream> stream = device.make_stream();
  std::unique_ptr<Kernel> kernel = device.make_kernel(*stream, request);
  if (!kernel) return nullptr;
  return std::make_unique<KernelOnDevice>(std::move(stream), std::move(kernel));
}

Device* device_under_test() {
  const char* wanted = std::getenv("PIPETRAIN_TEST_DEVICE");
  return wanted && std::string_view(wanted) == "cuda" ? &cuda_plugin().open(0) : nullptr;
}

}  // namespace pipetrain::test
