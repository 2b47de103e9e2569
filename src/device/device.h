// A device with its own memory and streams, provided by a plugin. The CPU needs none of this: its
// stages compute in host memory, on the calling thread.
//
//   thread:  copy, kernel, kernel, record a ─┐ (only enqueues work)
//   stream:            copy → kernel → kernel → a
//   another stream:                    wait a ─┴→ copy to its device → …
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace pipetrain {

class Device;
class Kernel;
struct KernelRequest;
struct OptimizerSettings;

/// A point in a stream, like a CUDA event. May be recorded again once nothing waits for its earlier
/// position.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  /// Blocks the calling thread until the work before the recorded point is done.
  virtual void synchronize() = 0;
  /// Whether that work is done. Error (kDevice) when some of it failed.
  virtual bool reached() = 0;
};

/// A point with a timestamp of the device's clock.
class TimedPoint : public StreamPoint {
 public:
  /// Seconds from an earlier point of any stream of the same device to this one. Both must have
  /// been reached.
  virtual double seconds_since(const TimedPoint& earlier) = 0;
};

/// A queue of work that a device runs in order. One thread at a time enqueues; only synchronize()
/// blocks. Memory passed here must stay valid until the work is done.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  /// Work enqueued between the two calls is shown under this name in a profiler. Ranges nest.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}
  /// Copies within a device, between devices, and from and to host memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void record(StreamPoint& event) = 0;
  /// Work enqueued later starts after the last recorded position of the point.
  virtual void wait(const StreamPoint& event) = 0;
  /// Blocks until all work is done. Error (kDevice) when some of it failed.
  virtual void synchronize() = 0;
};

/// Device memory, or page-locked host memory; zeroed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device& device, std::size_t bytes, bool on_host);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(on_host_, other.on_host_);
  }
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool on_host_ = false;
};

/// A parameter of an update, in memory of the device; optimizer states and averages that are not
/// kept are empty.
struct DeviceUpdate {
  const OptimizerSettings* settings;
  double learning_rate;
  std::span<float> parameter;
  std::span<const float> gradient;
  std::span<float> state0, state1, average;
};

/// One device. Calls may come from several threads.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<StreamPoint> make_point() = 0;
  virtual std::unique_ptr<TimedPoint> make_timed_point() = 0;
  /// What kernel times depend on: the device model and the versions of driver and libraries. Equal
  /// for identical devices.
  virtual std::string make() const = 0;
  /// Of the last-level cache.
  virtual std::size_t cache_bytes() const = 0;
  /// Whether it can access the other device's memory directly (peer access).
  virtual bool reaches(const Device& other) const = 0;
  DeviceMemory allocate(std::size_t bytes) { return {*this, bytes, /*on_host=*/false}; }
  DeviceMemory allocate_on_host(std::size_t bytes) { return {*this, bytes, /*on_host=*/true}; }

  /// A kernel that enqueues its work on the stream and returns; null when this device has none for
  /// the node.
  virtual std::unique_ptr<Kernel> make_kernel(Stream& stream, const KernelRequest& request) = 0;

  // Stage operations that are not graph nodes. All are enqueued on the stream.

  virtual void set(Stream& stream, float* to, float value) = 0;
  /// to[i] += from[i]
  virtual void add(Stream& stream, float* to, const float* from, std::size_t count) = 0;
  /// Sum of squares of each span, in an order that depends on its length alone. `sums` and kScratch
  /// places for each at `scratch` are memory of the device.
  static constexpr std::size_t kScratch = 256;
  virtual void sums_of_squares(Stream& stream, std::span<const std::span<const float>> values,
                               double* sums, double* scratch) = 0;
  /// One step of the optimizer for each of these parameters (optim/update.h), and of their moving
  /// averages, which the first step copies.
  virtual void update(Stream& stream, std::int64_t step, double gradient_scale,
                      double average_decay, std::span<const DeviceUpdate> parameters) = 0;
  /// Whether float32 matmul/conv kernels made from now on may use TF32.
  virtual void allow_tensor_floats(bool /*allow*/) {}

 private:
  friend class DeviceMemory;
  /// Error (kResource) when there is not enough.
  virtual std::byte* take(std::size_t bytes, bool on_host) = 0;
  virtual void give_back(std::byte* data, bool on_host) noexcept = 0;
};

}  // namespace pipetrain
