// Two fake GPUs and a fake NCCL: preloaded before libcudart, and used as libnccl.so.2. Memory is
// host memory, copies are immediate; an NCCL exchange completes when both ends have arrived, so
// that later events are reached late, as on GPUs. Ranks of several processes meet in the folder
// that FAKE_NCCL_FOLDER names.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Operation {
  bool sends;
  const void* from;
  void* to;
  std::size_t bytes;
  int peer;  // -1: a sum
  bool done = false;
  int number = -1;  // sequence number of the operation with this peer, for the folder
};

using Group = std::vector<std::shared_ptr<Operation>>;

}  // namespace

/// Work enqueued in a stream during capture.
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};
struct CUstream_st {
  std::vector<std::shared_ptr<Group>> groups;
  CUgraph_st* captured = nullptr;
  unsigned flags = 0;
  bool invalidated = false;
};
struct CUevent_st {
  std::vector<std::shared_ptr<Group>> groups;
  unsigned flags = 0;
  float at = -1;  // in ms, advanced by launches and records
};
struct ncclComm {
  std::string id;
  int rank, ranks;
  std::vector<std::shared_ptr<Operation>> issued;
  bool aborted = false;
  std::map<std::pair<bool, int>, int> numbers;  // operations so far, by direction and peer
};

namespace {

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::map<int, ncclComm*>> communicators;
thread_local std::vector<std::pair<ncclComm*, std::shared_ptr<Operation>>> open_group;
thread_local cudaStream_t group_stream = nullptr;
thread_local bool in_group = false;
int ids = 0, aborts = 0;
float now = 0;             // milliseconds
std::string launches;      // since the last query
std::mutex telling;        // guards messages of several threads
std::string failing_call;  // the call to fail: one that makes graphs or loads kernels

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
bool fails = false;
bool busy = false;   // no event is reached
bool peers = false;  // GPUs reach each other

bool over(const std::vector<std::shared_ptr<Group>>& groups) {
  for (const auto& group : groups) {
    for (const auto& operation : *group) {
      if (!operation->done) return false;
    }
  }
  return true;
}

/// The first pending operation of a rank that matches one of a peer.
Operation* first(ncclComm* communicator, bool sends, int peer) {
  for (const auto& operation : communicator->issued) {
    if (!operation->done && operation->peer == peer && (peer < 0 || operation->sends == sends))
      return operation.get();
  }
  return nullptr;
}

const char* const folder = std::getenv("FAKE_NCCL_FOLDER");

/// The file of a rank's message, for all others if `to` is -1.
std::string file_of(const ncclComm& communicator, int from, int to, int number) {
  return std::string(folder) + "/" + std::to_string(communicator.id[0]) + "." +
         std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number);
}
void leave_file(const std::string& file, const void* data, std::size_t bytes) {
  std::ofstream(file + ".new", std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  std::rename((file + ".new").c_str(), file.c_str());
}
bool take_file(const std::string& file, void* data, std::size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  return in && in.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
}

/// The same with peers in other processes; a send is done when its file is written.
void progress_in_folder(ncclComm& communicator) {
  for (const auto& operation : communicator.issued) {
    if (operation->done) continue;
    const int other = 1 - communicator.rank;
    const bool sum = operation->peer < 0, leaves = sum || operation->sends;
    const bool fresh = operation->number < 0;
    if (fresh) operation->number = communicator.numbers[{operation->sends, operation->peer}]++;
    if (leaves && fresh)
      leave_file(file_of(communicator, communicator.rank, operation->peer, operation->number),
                 operation->from, operation->bytes);
    if (!leaves)
      operation->done =
          take_file(file_of(communicator, operation->peer, communicator.rank, operation->number),
                    operation->to, operation->bytes);
    else if (!sum)
      operation->done = true;
    std::vector<float> theirs(sum ? operation->bytes / sizeof(float) : 0);
    if (!sum || !take_file(file_of(communicator, other, -1, operation->number), theirs.data(),
                           operation->bytes))
      continue;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      static_cast<float*>(operation->to)[i] =
          static_cast<const float*>(operation->from)[i] + theirs[i];
    operation->done = true;
  }
}

/// Completes operations whose both ends have arrived.
void progress() {
  if (folder) {
    for (auto& [id, ranks] : communicators) {
      for (auto& [rank, communicator] : ranks) progress_in_folder(*communicator);
    }
    return;
  }
  for (auto& [id, ranks] : communicators) {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [rank, communicator] : ranks) {
        for (auto& [other, answering] : ranks) {
          Operation* send = first(communicator, true, other);
          Operation* receive = first(answering, false, rank);
          if (rank == other || !send || !receive) continue;
          std::memcpy(receive->to, send->from, receive->bytes);
          send->done = receive->done = moved = true;
        }
      }
      std::vector<Operation*> sums;
      for (auto& [rank, communicator] : ranks) {
        Operation* sum = first(communicator, true, -1);
        if (sum) sums.push_back(sum);
      }
      if (ranks.empty() || static_cast<int>(sums.size()) < ranks.begin()->second->ranks) continue;
      for (std::size_t i = 0; i < sums[0]->bytes / sizeof(float); ++i) {
        float total = 0;
        for (const Operation* sum : sums) total += static_cast<const float*>(sum->from)[i];
        for (Operation* sum : sums) static_cast<float*>(sum->to)[i] = total;
      }
      for (Operation* sum : sums) sum->done = true;
      moved = true;
    }
  }
}

void wait_for(std::unique_lock<std::mutex>& lock,
              const std::vector<std::shared_ptr<Group>>& groups) {
  while (folder && !over(groups)) {
    progress();
    changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  changed.wait(lock, [&] { return over(groups); });
}

ncclResult_t add(ncclComm* communicator, Operation operation, cudaStream_t stream) {
  if (failing_call == "exchange") return ncclRemoteError;
  group_stream = stream;
  open_group.emplace_back(communicator, std::make_shared<Operation>(operation));
  return ncclInProgress;
}

}  // namespace

extern "C" {

// What a test asks for.
int fake_aborts() { return aborts; }
const char* fake_launches() {
  static std::string told;
  const std::lock_guard lock(telling);
  told = std::exchange(launches, {});
  return told.c_str();
}
void fake_failing_call(const char* call) { failing_call = call; }
void fake_busy(int on) { busy = on != 0; }
void fake_peers(int on) { peers = on != 0; }
void fake_failure(int on) {
  const std::lock_guard lock(mutex);
  fails = on != 0;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
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
  return cudaSuccess;
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
  if (folder) progress();
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

ncclResult_t ncclGetVersion(int* version) {
  const char* told = std::getenv("FAKE_NCCL_VERSION");
  *version = told ? std::atoi(told) : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  id->internal[0] = static_cast<char>(++ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) return ncclInvalidArgument;
  *out = new ncclComm{std::string(id.internal, 1), rank, ranks, {}, false, {}};
  communicators[(*out)->id][rank] = *out;
  if (folder) leave_file(file_of(**out, rank, rank, 0), "joined", 6);
  return ncclInProgress;
}
static ncclResult_t leave(ncclComm_t communicator) {
  const std::lock_guard lock(mutex);
  communicators[communicator->id].erase(communicator->rank);
  delete communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return leave(communicator); }
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (in_group) return ncclInProgress;  // deferred to the end of the group
  {
    const std::lock_guard lock(mutex);
    for (const auto& operation : communicator->issued) operation->done = true;
    ++aborts;
  }
  changed.notify_all();
  return leave(communicator);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  bool all = static_cast<int>(communicators[communicator->id].size()) == communicator->ranks;
  if (folder) {
    const int other = 1 - communicator->rank;
    all = std::ifstream(file_of(*communicator, other, other, 0)).good();
  }
  // Ranks that have left count as having joined.
  const bool busy = !all && communicator->issued.empty();
  *state = fails && communicator->rank == 1 ? ncclRemoteError : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "some error";
}
const char* ncclGetLastError(ncclComm_t) { return "a cable was pulled"; }
ncclResult_t ncclGroupStart() {
  in_group = true;
  open_group.clear();
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  in_group = false;
  {
    const std::lock_guard lock(mutex);
    auto group = std::make_shared<Group>();
    for (auto& [communicator, operation] : open_group) {
      communicator->issued.push_back(operation);
      group->push_back(operation);
    }
    if (!group->empty()) group_stream->groups.push_back(std::move(group));
    open_group.clear();
    progress();
  }
  changed.notify_all();
  return ncclInProgress;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {true, from, nullptr, count, peer}, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {false, nullptr, to, count, peer}, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, {true, from, to, count * sizeof(float), -1}, stream);
}

}  // extern "C"
