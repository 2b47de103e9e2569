#include "support/device_kernel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "device/plugin.h"
#include "graph/op.h"
#include "support/emulated_kernels.h"

namespace pipetrain::test {
namespace {

/// One for all tests: a stream brings handles of libraries along, which take long to make. Never
/// destroyed, since the driver may be gone before static objects are.
Stream& stream_under_test() {
  static Stream* const stream = device_under_test()->make_stream().release();
  return *stream;
}

/// Memory of the GPU and the same bytes on the host, which begin as 0xFF. Grows, and stays.
class Mirror {
 public:
  explicit Mirror(Stream& stream) : stream_(stream) {}

  /// Device memory for the host memory at `from`; the same for the same address.
  std::size_t place(const void* from, std::size_t bytes) {
    const auto [found, added] = places_.try_emplace(from, 0);
    if (!added) return found->second;
    // As far from a multiple of 16 bytes as on the host.
    found->second = end_ + reinterpret_cast<std::uintptr_t>(from) % 16;
    end_ = (found->second + bytes + kGuard + 255) / 256 * 256;
    host_.resize(end_, std::byte{0xFF});
    return found->second;
  }
  /// Device memory without a host counterpart.
  std::size_t place(std::size_t bytes) { return place(nullptr, bytes); }
  std::byte* on_host(std::size_t place) { return host_.data() + place; }
  std::byte* on_gpu(std::size_t place) { return memory().data() + place; }

  void send() {
    if (memory().bytes() < end_) memory() = stream_.device().allocate(2 * end_);
    stream_.copy(memory().data(), host_.data(), end_);
  }
  /// Fetches everything. Says whether anything outside of these ranges has changed.
  bool fetch(const std::vector<std::pair<std::size_t, std::size_t>>& written) {
    std::vector<std::byte> before = std::move(host_);
    host_.resize(end_);
    stream_.copy(host_.data(), memory().data(), end_);
    stream_.synchronize();
    for (const auto& [place, bytes] : written)
      std::memcpy(before.data() + place, host_.data() + place, bytes);
    return before != host_;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static DeviceMemory& memory() {
    static auto* const memory = new DeviceMemory;  // as the stream
    return *memory;
  }

  Stream& stream_;
  std::map<const void*, std::size_t> places_;
  std::size_t end_ = kGuard;
  std::vector<std::byte> host_ = std::vector<std::byte>(kGuard, std::byte{0xFF});
};

class KernelOnDevice final : public Kernel {
 public:
  KernelOnDevice(std::unique_ptr<Kernel> kernel, std::string_view op)
      : kernel_(std::move(kernel)), op_(op) {}

  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    Mirror mirror(stream_under_test());
    const std::size_t workspace = mirror.place(kernel_->workspace_bytes());
    std::vector<std::pair<std::size_t, std::size_t>> written = {
        {workspace, kernel_->workspace_bytes()}};
    for (const auto tensors : {inputs, outputs}) {
      for (const Tensor& tensor : tensors) {
        if (!tensor) continue;
        const std::size_t place = mirror.place(tensor.data, tensor.bytes());
        std::memcpy(mirror.on_host(place), tensor.data, tensor.bytes());
      }
    }
    mirror.send();
    std::vector<Tensor> in(inputs.begin(), inputs.end()), out(outputs.begin(), outputs.end());
    for (Tensor& tensor : in) {
      if (tensor) tensor.data = mirror.on_gpu(mirror.place(tensor.data, tensor.bytes()));
    }
    for (Tensor& tensor : out) {
      if (!tensor) continue;
      written.emplace_back(mirror.place(tensor.data, tensor.bytes()), tensor.bytes());
      tensor.data = mirror.on_gpu(written.back().first);
    }
    RunContext there = context;
    there.workspace = mirror.on_gpu(workspace);
    kernel_->run(in, out, there);
    EXPECT_FALSE(mirror.fetch(written)) << op_ << " writes beside its results on the GPU";
    for (const Tensor& tensor : outputs) {
      if (tensor)
        std::memcpy(tensor.data, mirror.on_host(mirror.place(tensor.data, tensor.bytes())),
                    tensor.bytes());
    }
  }
  std::size_t workspace_bytes() const override { return 0; }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::string_view op_;
};

}  // namespace

Device* device_under_test() {
  const char* wanted = std::getenv("PIPETRAIN_TEST_DEVICE");
  return wanted && std::string_view(wanted) == "cuda" ? &cuda_plugin().open(0) : nullptr;
}

std::unique_ptr<Kernel> make_gpu_kernel(const KernelRequest& request) {
  Device* const device = device_under_test();
  if (!device) return make_emulated_kernel(request);
  std::unique_ptr<Kernel> kernel = device->make_kernel(stream_under_test(), request);
  if (!kernel) return nullptr;
  return std::make_unique<KernelOnDevice>(std::move(kernel), request.node.op->name);
}

void update_on_gpu(std::int64_t step, double gradient_scale, double average_decay,
                   std::span<const DeviceUpdate> parameters) {
  if (!device_under_test()) return emulated_update(step, gradient_scale, average_decay, parameters);
  Mirror mirror(stream_under_test());
  std::vector<std::pair<std::size_t, std::size_t>> written;
  const auto send = [&](std::span<const float> values) {
    if (values.empty()) return;
    const std::size_t place = mirror.place(values.data(), values.size_bytes());
    std::memcpy(mirror.on_host(place), values.data(), values.size_bytes());
  };
  for (const DeviceUpdate& one : parameters) {
    for (const std::span<const float> values :
         {std::span<const float>(one.parameter), one.gradient, std::span<const float>(one.state0),
          std::span<const float>(one.state1), std::span<const float>(one.average)})
      send(values);
  }
  mirror.send();
  const auto there = [&]<class T>(std::span<T> values) {
    if (values.empty()) return values;
    const std::size_t place = mirror.place(values.data(), values.size_bytes());
    return std::span<T>(reinterpret_cast<T*>(mirror.on_gpu(place)), values.size());
  };
  std::vector<DeviceUpdate> updates;
  for (const DeviceUpdate& one : parameters) {
    updates.push_back({one.settings, one.learning_rate, there(one.parameter), there(one.gradient),
                       there(one.state0), there(one.state1), there(one.average)});
    for (const std::span<float> values : {one.parameter, one.state0, one.state1, one.average}) {
      if (!values.empty())
        written.emplace_back(mirror.place(values.data(), 0), values.size_bytes());
    }
  }
  device_under_test()->update(stream_under_test(), step, gradient_scale, average_decay, updates);
  EXPECT_FALSE(mirror.fetch(written)) << "an update writes beside its parameters on the GPU";
  for (const DeviceUpdate& one : parameters) {
    for (const std::span<float> values : {one.parameter, one.state0, one.state1, one.average}) {
      if (!values.empty())
        std::memcpy(values.data(), mirror.on_host(mirror.place(values.data(), 0)),
                    values.size_bytes());
    }
  }
}

std::vector<double> sums_of_squares_on_gpu(std::span<const std::span<const float>> values) {
  if (!device_under_test()) return emulated_sums_of_squares(values);
  Mirror mirror(stream_under_test());
  std::vector<double> sums(values.size());
  const std::size_t scratch_bytes = values.size() * Device::kScratch * sizeof(double);
  const std::size_t at = mirror.place(sums.data(), sums.size() * sizeof(double));
  const std::size_t scratch = mirror.place(scratch_bytes);
  for (const std::span<const float> one : values) {
    if (!one.empty())
      std::memcpy(mirror.on_host(mirror.place(one.data(), one.size_bytes())), one.data(),
                  one.size_bytes());
  }
  mirror.send();
  std::vector<std::span<const float>> there;
  for (const std::span<const float> one : values) {
    there.push_back(one.empty() ? one
                                : std::span(reinterpret_cast<const float*>(
                                                mirror.on_gpu(mirror.place(one.data(), 0))),
                                            one.size()));
  }
  device_under_test()->sums_of_squares(stream_under_test(), there,
                                       reinterpret_cast<double*>(mirror.on_gpu(at)),
                                       reinterpret_cast<double*>(mirror.on_gpu(scratch)));
  EXPECT_FALSE(mirror.fetch({{at, sums.size() * sizeof(double)}, {scratch, scratch_bytes}}))
      << "norms write beside their results on the GPU";
  std::memcpy(sums.data(), mirror.on_host(at), sums.size() * sizeof(double));
  return sums;
}

}  // namespace pipetrain::test
