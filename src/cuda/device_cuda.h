// A GPU: memory, streams, points, copies. Kernels come from the tables of ops.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/kernel_compiler_cuda.h"
#include "device/libraries_cuda.h"
#include "device/queue_cuda.h"

namespace pipetrain {

/// Error (kDevice) saying what failed when `status` is an error.
void cuda_check(cudaError_t status, const char* what);

/// What a stream of a GPU is for NVIDIA's libraries.
cudaStream_t stream_of(Stream& stream);

class CudaDevice final : public Device {
 public:
  /// Error (kResource) when the device cannot be used.
  explicit CudaDevice(int index);

  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Handles of libraries for a new stream, with the plans of an earlier one where one has left
  /// them; and back when the stream ends.
  std::unique_ptr<CudaLibraries> take_libraries();
  void leave_libraries(std::unique_ptr<CudaLibraries> libraries) noexcept;
  /// Makes this the device of the calling thread.
  void enter() const;
  /// Lets copies go direct where the machine allows it; else the driver takes them through the
  /// host. It starts the other device for this process, so only for devices that are used.
  void use_memory_of(const CudaDevice& other) const;

  std::string name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<StreamPoint> make_point() override;
  std::unique_ptr<TimedPoint> make_timed_point() override;
  std::string make() const override { return make_; }
  std::size_t cache_bytes() const override { return cache_bytes_; }
  bool reaches(const Device& other) const override;
  std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request) override;
  void set(Stream& stream, float* to, float value) override;
  void add(Stream& stream, float* to, const float* from, std::size_t count) override;
  void sums_of_squares(Stream& stream, std::span<const std::span<const float>> values, double* sums,
                       double* scratch) override;
  void update(Stream& stream, std::int64_t step, double gradient_scale, double average_decay,
              std::span<const DeviceUpdate> parameters) override;
  void allow_tensor_floats(bool allow) override { tensor_floats_ = allow; }

 private:
  void update_on_host(Stream& stream, std::int64_t step, double gradient_scale,
                      double average_decay, const DeviceUpdate& one);
  std::byte* take(std::size_t bytes, bool on_host) override;
  void give_back(std::byte* data, bool on_host) noexcept override;

  int index_;
  int multiprocessors_ = 1;
  std::unique_ptr<KernelCompiler> compiler_;
  cudaStream_t clearing_ = nullptr;  // new memory; lives as long as the device: for ever
  bool tensor_floats_ = false;
  std::string name_, make_;
  std::size_t cache_bytes_ = 0;
  std::vector<bool> reached_;  // by index
  std::mutex mutex_;           // of what streams have left
  std::vector<std::unique_ptr<CudaLibraries>> left_;
};

}  // namespace pipetrain
