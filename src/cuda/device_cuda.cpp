#include "cuda/device_cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cuda/kernel_compiler_cuda.h"
#include "device/gpu_capability.h"
#include "device/libraries_cuda.h"
#include "device/recorded_work.h"
#include "graph/op.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/library_kernels_cuda.h"
#include "ops/kernel/logged_kernel.h"
#include "optim/update.h"
#include "optim/update_cuda.h"

namespace pipetrain {

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    cudaGetLastError();  // clears the error, or the next launch would report it
  PT_CHECK(status == cudaSuccess, kDevice, "the GPU failed {}: {} ({})", what,
           cudaGetErrorString(status), cudaGetErrorName(status));
}

namespace {

class CudaPoint final : public TimedPoint {
 public:
  /// `flags`: of the event; without cudaEventDisableTiming it records its time.
  CudaPoint(const CudaDevice& device, unsigned flags) {
    device.enter();
    cuda_check(cudaEventCreateWithFlags(&event, flags), "making an event");
  }
  ~CudaPoint() override { cudaEventDestroy(event); }
  CudaPoint(const CudaPoint&) = delete;
  CudaPoint& operator=(const CudaPoint&) = delete;
  void synchronize() override { cuda_check(cudaEventSynchronize(event), "while it computed"); }
  bool reached() override {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears the error, or the next launch of this thread would report it
      return false;
    }
    cuda_check(status, "while it computed");
    return true;
  }
  double seconds_since(const TimedPoint& earlier) override {
    float milliseconds = 0;
    cuda_check(
        cudaEventElapsedTime(&milliseconds, static_cast<const CudaPoint&>(earlier).event, event),
        "telling the time");
    return static_cast<double>(milliseconds) * 1e-3;
  }

  cudaEvent_t event = nullptr;
};

/// An instantiated CUDA graph.
class CudaGraph final : public RecordedWork {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t graph;
};

/// CUDA graphs are used unless PIPETRAIN_CUDA_GRAPHS says otherwise.
bool wants_graphs() {
  const char* text = std::getenv("PIPETRAIN_CUDA_GRAPHS");
  return !text || std::string_view(text) != "off";
}

class CudaStream final : public Stream, public WorkRecorder {
 public:
  explicit CudaStream(CudaDevice& device) : device_(device), libraries_(device.take_libraries()) {
    device.enter();
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    libraries_->serve(stream_);
    queue_ = {stream_, device.multiprocessors(), libraries_.get()};
  }
  ~CudaStream() override {
    cudaSetDevice(device_.index());
    cudaStreamSynchronize(stream_);
    device_.leave_libraries(std::move(libraries_));
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device& device() override { return device_; }
  void begin_range(const char* name) override { nvtxRangePushA(name); }
  void end_range() override { nvtxRangePop(); }
  CudaQueue& queue() { return queue_; }
  void copy(void* to, const void* from, std::size_t bytes) override {
    // The direction follows from the addresses: this device, another device, or the host.
    device_.enter();
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying");
  }
  void record(StreamPoint& point) override {
    device_.enter();
    cuda_check(cudaEventRecord(static_cast<CudaPoint&>(point).event, stream_), "recording");
  }
  void wait(const StreamPoint& point) override {
    device_.enter();
    cuda_check(cudaStreamWaitEvent(stream_, static_cast<const CudaPoint&>(point).event, 0),
               "waiting for another stream");
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream_), "while it computed"); }

  bool begin_recording() override {
    if (!records_) return false;
    device_.enter();
    // Other threads may make any call meanwhile, such as allocating memory for their stages.
    const bool begun =
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    if (!begun) cudaGetLastError();  // the caller runs without a graph
    return begun;
  }
  std::unique_ptr<RecordedWork> end_recording() override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    if (status == cudaSuccess) status = cudaGraphInstantiate(&ready, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (status == cudaSuccess) return std::make_unique<CudaGraph>(ready);
    cudaGetLastError();  // the caller runs without a graph
    return nullptr;
  }
  void put(RecordedWork& work) override {
    device_.enter();
    cuda_check(cudaGraphLaunch(static_cast<CudaGraph&>(work).graph, stream_), "to start a graph");
    log_kernel("graph launched");
  }

 private:
  CudaDevice& device_;
  bool records_ = wants_graphs();
  std::unique_ptr<CudaLibraries> libraries_;
  cudaStream_t stream_ = nullptr;
  CudaQueue queue_;
};

CudaQueue& queue_of(Stream& stream) { return static_cast<CudaStream&>(stream).queue(); }

/// An NVTX range for profilers; almost free without one.
class ProfiledRange {
 public:
  explicit ProfiledRange(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~ProfiledRange() { nvtxRangePop(); }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;
};

/// Reports failed launches with the name of the node.
class CheckedKernel final : public Kernel {
 public:
  CheckedKernel(CudaDevice& device, std::unique_ptr<Kernel> kernel, std::string name)
      : device_(device), kernel_(std::move(kernel)), name_(std::move(name)) {}
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
           const RunContext& context) override {
    device_.enter();
    const ProfiledRange range(name_);
    kernel_->run(inputs, outputs, context);
    cuda_check(cudaGetLastError(), "to start a kernel");
  }
  std::size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  CudaDevice& device_;
  std::unique_ptr<Kernel> kernel_;
  std::string name_;
};

}  // namespace

namespace {

/// Versions of driver and libraries, and the size of the plugin, which identifies its kernels.
std::string versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  Dl_info plugin{};
  struct stat file {};
  if (dladdr(reinterpret_cast<const void*>(&stream_of), &plugin) == 0 ||
      stat(plugin.dli_fname, &file) != 0)
    file = {};
  return fmt::format("driver {}, CUDA {}, cuBLASLt {}, cuDNN {}, plugin of {} bytes, {}", driver,
                     runtime, cublasLtGetVersion(), cudnnGetVersion(), file.st_size, file.st_mtime);
}

}  // namespace

cudaStream_t stream_of(Stream& stream) { return queue_of(stream).stream; }

CudaDevice::CudaDevice(int index) : index_(index) {
  enter();
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "telling what it is");
  name_ = fmt::format("cuda:{} ({})", index, properties.name);
  multiprocessors_ = properties.multiProcessorCount;
  cache_bytes_ = static_cast<std::size_t>(properties.l2CacheSize);
  make_ = fmt::format("{} x {}, {}", properties.name, multiprocessors_, versions());
  log_kernel("device " + make_);
  constexpr std::string_view architectures = PIPETRAIN_CUDA_ARCHITECTURES;
  PT_CHECK(has_kernels_for(architectures, properties.major, properties.minor), kResource,
           "{} has compute capability {}.{}; this build of pipetrain has kernels for {}", name_,
           properties.major, properties.minor, capabilities_text(architectures));
  cuda_check(cudaStreamCreateWithFlags(&clearing_, cudaStreamNonBlocking), "making a stream");
  compiler_ =
      std::make_unique<CudaKernelCompiler>(fmt::format("{}{}", properties.major, properties.minor));
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "counting devices");
  for (int other = 0; other < count; ++other) {
    int possible = other == index;
    if (other != index && cudaDeviceCanAccessPeer(&possible, index, other) != cudaSuccess)
      cudaGetLastError();
    reached_.push_back(possible != 0);
  }
}

void CudaDevice::use_memory_of(const CudaDevice& other) {
  if (!reaches(other)) return;
  enter();
  const cudaError_t status = cudaDeviceEnablePeerAccess(other.index_, 0);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (status == cudaErrorPeerAccessAlreadyEnabled) return;
  log_warning("cuda", "{} cannot use the memory of {}: {}", name_, other.name_,
              cudaGetErrorString(status));
  reached_[static_cast<std::size_t>(other.index_)] = false;
}

void CudaDevice::enter() const { cuda_check(cudaSetDevice(index_), "to be used"); }

std::unique_ptr<CudaLibraries> CudaDevice::take_libraries() {
  const std::lock_guard lock(mutex_);
  if (left_.empty()) return std::make_unique<CudaLibraries>();
  std::unique_ptr<CudaLibraries> libraries = std::move(left_.back());
  left_.pop_back();
  return libraries;
}

void CudaDevice::leave_libraries(std::unique_ptr<CudaLibraries> libraries) noexcept {
  libraries->leave();
  const std::lock_guard lock(mutex_);
  left_.push_back(std::move(libraries));
}

std::unique_ptr<Stream> CudaDevice::make_stream() { return std::make_unique<CudaStream>(*this); }
std::unique_ptr<StreamPoint> CudaDevice::make_point() {
  return std::make_unique<CudaPoint>(*this, cudaEventDisableTiming);
}
std::unique_ptr<TimedPoint> CudaDevice::make_timed_point() {
  return std::make_unique<CudaPoint>(*this, cudaEventDefault);
}

bool CudaDevice::reaches(const Device& other) const {
  return reached_.at(static_cast<std::size_t>(static_cast<const CudaDevice&>(other).index_));
}

std::unique_ptr<Kernel> CudaDevice::make_kernel(Stream& stream, const KernelRequest& request) {
  enter();
  CudaQueue queue = queue_of(stream);
  queue.tensor_floats = tensor_floats_;
  queue.compiler = compiler_.get();
  std::unique_ptr<Kernel> kernel = logged(make_library_kernel(request, queue), request, "library");
  if (!kernel) kernel = logged(make_cuda_kernel(request, queue), request, "own");
  if (!kernel) return nullptr;
  return std::make_unique<CheckedKernel>(
      *this, std::move(kernel),
      fmt::format("{} {}", request.node.op->name, printable(request.node.name)));
}

void CudaDevice::set(Stream& stream, float* to, float value) {
  enter();
  launch_fill(to, value, 1, queue_of(stream));
  cuda_check(cudaGetLastError(), "to start a kernel");
}

void CudaDevice::add(Stream& stream, float* to, const float* from, std::size_t count) {
  enter();
  launch_add(to, from, static_cast<std::int64_t>(count), queue_of(stream));
  cuda_check(cudaGetLastError(), "to start a kernel");
}

void CudaDevice::sums_of_squares(Stream& stream, std::span<const std::span<const float>> values,
                                 double* sums, double* scratch) {
  enter();
  sums_of_squares_cuda(values, sums, scratch, queue_of(stream));
  cuda_check(cudaGetLastError(), "to start a kernel");
  log_kernel("own norms float32");
}

void CudaDevice::update(Stream& stream, std::int64_t step, double gradient_scale,
                        double average_decay, std::span<const DeviceUpdate> parameters) {
  enter();
  update_cuda(step, gradient_scale, average_decay, parameters, queue_of(stream));
  cuda_check(cudaGetLastError(), "to start a kernel");
  log_kernel("own update float32");
  for (const DeviceUpdate& one : parameters) {
    if (!is_updated_on_gpu(*one.settings))
      update_on_host(stream, step, gradient_scale, average_decay, one);
  }
}

/// For an optimizer whose rule uses norms.
void CudaDevice::update_on_host(Stream& stream, std::int64_t step, double gradient_scale,
                                double average_decay, const DeviceUpdate& one) {
  const auto fetch = [&](std::span<const float> from) {
    std::vector<float> to(from.size());
    stream.copy(to.data(), from.data(), from.size_bytes());
    return to;
  };
  std::vector<float> weights = fetch(one.parameter), first = fetch(one.state0),
                     second = fetch(one.state1), average = fetch(one.average);
  const std::vector<float> slope = fetch(one.gradient);
  stream.synchronize();
  pipetrain::update(*one.settings, one.learning_rate, step, gradient_scale,
                    std::span<float>(weights), std::span<const float>(slope),
                    std::span<float>(first), std::span<float>(second));
  if (!average.empty()) {
    if (step == 1) average = weights;
    update_average(average_decay, average, weights);
  }
  stream.copy(one.parameter.data(), weights.data(), one.parameter.size_bytes());
  stream.copy(one.state0.data(), first.data(), one.state0.size_bytes());
  stream.copy(one.state1.data(), second.data(), one.state1.size_bytes());
  stream.copy(one.average.data(), average.data(), one.average.size_bytes());
  stream.synchronize();
}

std::byte* CudaDevice::take(std::size_t bytes, bool on_host) {
  enter();
  void* data = nullptr;
  const cudaError_t status =
      on_host ? cudaHostAlloc(&data, bytes, cudaHostAllocPortable) : cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    PT_CHECK(!on_host, kResource, "out of page-locked memory: {} requested {}", bytes_text(bytes),
             name_);
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    PT_FAIL(kResource, "{} is out of memory: {} requested, {} of {} free", name_, bytes_text(bytes),
            bytes_text(free), bytes_text(total));
  }
  cuda_check(status, "giving memory");
  if (on_host) {
    std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
  } else {
    // Does not wait for other streams, which may be busy, wait for another NCCL rank, or be
    // capturing.
    cuda_check(cudaMemsetAsync(data, 0, bytes, clearing_), "clearing memory");
    cuda_check(cudaStreamSynchronize(clearing_), "clearing memory");
  }
  return static_cast<std::byte*>(data);
}

void CudaDevice::give_back(std::byte* data, bool on_host) noexcept {
  cudaSetDevice(index_);  // else a thread without a device would initialise GPU 0
  if (on_host) {
    cudaFreeHost(data);
  } else {
    cudaFree(data);
  }
}

}  // namespace pipetrain
