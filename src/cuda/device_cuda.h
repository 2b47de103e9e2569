// A GPU: memory, streams, stream points (events), copies. Kernels come from the tables of ops.
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

/// A CUDA stream with the library handles that belong to it.
cudaStream_t stream_of(Stream& stream);

class CudaDevice final : public Device {
 public:
  /// Error (kResource) when the device cannot be used.
  explicit CudaDevice(int index);

  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Takes library handles for a new stream, with the cached plans of an earlier stream if there
  /// are any; gives them back when the stream ends.
  std::unique_ptr<CudaLibraries> take_libraries();
  void leave_libraries(std::unique_ptr<CudaLibraries> libraries) noexcept;
  /// Makes this the current device of the calling thread.
  void enter() const;
  /// Enables peer access where the machine supports it; otherwise the driver copies through the
  /// host. It initialises the other device in this process, so call it only for devices in use.
  void use_memory_of(const CudaDevice& other);

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
  cudaStream_t clearing_ = nullptr;  // zeroes new memory; never destroyed
  bool tensor_floats_ = false;
  std::string name_, make_;
  std::size_t cache_bytes_ = 0;
  std::vector<bool> reached_;  // by index
  std::mutex mutex_;           // guards the handles left by streams
  std::vector<std::unique_ptr<CudaLibraries>> left_;
};

}  // namespace pipetrain
