// Two fake GPUs: preloaded before libcudart, and with fake_nccl.cpp used as libnccl.so.2. Memory is
// host memory and copies are immediate; only exchanges (fake_nccl.cpp) complete late, so that later
// events are reached late, as on GPUs.
#include "fake_gpus.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

using fake_gpus::failing_call;
using fake_gpus::Group;
using fake_gpus::meets_in_folder;
using fake_gpus::mutex;
using fake_gpus::over;
using fake_gpus::progress;
using fake_gpus::wait_for;

/// Work enqueued in a stream during capture.
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};
struct CUevent_st {
  std::vector<std::shared_ptr<Group>> groups;
  unsigned flags = 0;
  float at = -1;  // in ms, advanced by launches and records
};

std::string fake_gpus::failing_call;

namespace {

float now = 0;         // milliseconds
std::string launches;  // since the last query
std::mutex telling;    // guards messages of several threads

void tell(const std::string& what) {
  const std::lock_guard lock(telling);
  launches += what;
}

bool fails_at(const char* call) {
  tell(std::string(call) + "\n");
  return failing_call == call;
}

/// Does work, or adds it to the graph of a capturing stream.
void give(cudaStream_t stream, std::function<void()> work) {
  if (stream && stream->captured) {
    stream->captured->work.push_back(std::move(work));
  } else {
    work();
  }
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = -1;  // none was set

/// Like the runtime, which remembers the last error of a thread.
cudaError_t failed(cudaError_t status) { return last_error = status; }

/// Whether a call is one that FAKE_GPU_FAILS names ("record:60": that one, and all behind it).
bool is_to_fail(const char* call) {
  static const std::string wanted =
      std::getenv("FAKE_GPU_FAILS") ? std::getenv("FAKE_GPU_FAILS") : "";
  static std::atomic<int> calls = 0;
  const std::size_t colon = wanted.find(':');
  return colon != std::string::npos && wanted.substr(0, colon) == call &&
         ++calls >= std::atoi(wanted.c_str() + colon + 1);
}

/// Fails calls that are not allowed during capture.
cudaError_t refuse(cudaStream_t stream) {
  stream->invalidated = true;
  return failed(cudaErrorStreamCaptureUnsupported);
}
/// The CUDA version of the driver; 0: none.
int fake_driver() {
  const char* const version = std::getenv("FAKE_DRIVER");
  return version ? std::atoi(version) : CUDART_VERSION;
}
bool busy = false;   // no event is reached
bool peers = false;  // GPUs reach each other

}  // namespace

extern "C" {

// What a test asks for.
const char* fake_launches() {
  static std::string told;
  const std::lock_guard lock(telling);
  told = std::exchange(launches, {});
  return told.c_str();
}
void fake_failing_call(const char* call) { failing_call = call; }
void fake_busy(int on) { busy = on != 0; }
void fake_peers(int on) { peers = on != 0; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return fake_driver() / 1000 < CUDART_VERSION / 1000 ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake_driver();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(static_cast<void*>(properties), 0, sizeof *properties);
  std::strcpy(properties->name, device == 0 ? "fake A" : "fake B");
  const char* const capability = std::getenv("FAKE_CAPABILITY");
  const int number = capability ? std::atoi(capability) : 90;
  properties->major = number / 10;
  properties->minor = number % 10;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int, int) {
  *possible = peers;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  tell(std::to_string(current_device) + " uses memory of " + std::to_string(peer) + "\n");
  return failing_call == "peer" ? failed(cudaErrorNotSupported) : cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (is_to_fail("malloc")) return failed(cudaErrorMemoryAllocation);
  *data = std::malloc(bytes);
  std::memset(*data, 0xAB, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  if (is_to_fail("host")) return failed(cudaErrorMemoryAllocation);
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  // The runtime would use GPU 0 for this thread, which may not be its GPU.
  if (current_device < 0) tell("memory is given back on no GPU\n");
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  tell("the default stream\n");  // which synchronizes with other streams
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  if (!stream || !(stream->flags & cudaStreamNonBlocking)) tell("the default stream\n");
  give(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
// Kernels of the plugin, and loaded ones.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
  now += 5;
  give(stream, [] { tell("hand-written kernel\n"); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (fails_at("begin")) return failed(cudaErrorIllegalState);
  if (mode != cudaStreamCaptureModeThreadLocal || stream->captured)
    return failed(cudaErrorInvalidValue);
  stream->captured = new CUgraph_st;
  stream->invalidated = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  if (!fails_at("end") && !stream->invalidated) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return failed(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  if (fails_at("instantiate")) return failed(cudaErrorMemoryAllocation);
  *ready = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  if (stream->captured) return refuse(stream);
  tell("graph\n");
  for (const auto& work : ready->work) work();
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
  if (std::memcmp(code, "\177ELF", 4) != 0 || failing_call == "load")
    return failed(cudaErrorInvalidKernelImage);
  *library = reinterpret_cast<cudaLibrary_t>(const_cast<void*>(code));
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<char*>(name));
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, std::size_t,
                             cudaStream_t) {
  tell(std::string("compiled ") + static_cast<const char*>(kernel) + " (" + std::to_string(grid.x) +
       " x " + std::to_string(block.x) + ")\n");
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  tell("all streams\n");
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (is_to_fail("copy")) return failed(cudaErrorIllegalAddress);
  give(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = new CUstream_st;
  (*stream)->flags = flags;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_to_fail("synchronize")) return failed(cudaErrorIllegalAddress);
  if (stream->captured) return refuse(stream);
  std::unique_lock lock(mutex);
  wait_for(lock, stream->groups);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->flags = flags;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const std::lock_guard lock(mutex);
  if ((start->flags | end->flags) & cudaEventDisableTiming || start->at < 0 || end->at < 0)
    return failed(cudaErrorInvalidResourceHandle);
  if (!over(end->groups)) return failed(cudaErrorNotReady);
  *milliseconds = end->at - start->at;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (is_to_fail("record")) return failed(cudaErrorIllegalAddress);
  const std::lock_guard lock(mutex);
  event->groups = stream->groups;
  event->at = now;
  now += 1;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  if (meets_in_folder()) progress();
  return over(event->groups) && !busy ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (is_to_fail("synchronize point")) return failed(cudaErrorIllegalAddress);
  std::unique_lock lock(mutex);
  wait_for(lock, event->groups);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  if (is_to_fail("wait")) return failed(cudaErrorIllegalAddress);
  return cudaEventSynchronize(event);
}

}  // extern "C"
