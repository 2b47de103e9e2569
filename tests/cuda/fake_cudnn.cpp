// A fake cuDNN, preloaded before the real one: accepts any graph, offers one plan for it or none,
// and records the calls. Descriptors store their type and the descriptors that they refer to.
#include <cudnn.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct cudnnContext {
  cudaStream_t stream = nullptr;
  int plans = 0;  // that are alive
};

namespace {

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  cudnnHandle_t handle = nullptr;  // of an operation graph; of what is made of it
  bool lacks = false;              // an address of a tensor
  std::vector<void*> data = {};    // of a pack of tensors
  std::int64_t workspace = 0;      // of a plan
};

std::mutex mutex;
std::string events;
bool offers = true;
std::int64_t workspace = 0;  // of plans that are made
int large_plans = -1;        // how many more have this workspace; -1: all
std::set<void*> read;        // data that plans were run on

/// Also appended to the file that FAKE_CUDNN_EVENTS names.
void note(const std::string& event) {
  events += event + "\n";
  if (const char* file = std::getenv("FAKE_CUDNN_EVENTS"))
    std::ofstream(file, std::ios::app) << event << "\n";
}

}  // namespace

extern "C" {

/// Events since the last call: plans made and run, and incorrect use of the library.
const char* fake_cudnn_events() {
  static std::string told;
  const std::lock_guard lock(mutex);
  told = std::exchange(events, {});
  return told.c_str();
}
void fake_cudnn_offers(int plans) { offers = plans != 0; }
void fake_cudnn_workspace(std::int64_t bytes) { workspace = bytes; }
/// Only the next `plans` have the workspace; -1: all.
void fake_cudnn_large_plans(int plans) { large_plans = plans; }
/// Whether a plan was run on a tensor that begins here.
int fake_cudnn_was_given(void* data) {
  const std::lock_guard lock(mutex);
  return read.contains(data);
}

size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  const std::lock_guard lock(mutex);
  if (handle->plans > 0) note("a handle is destroyed before its plans");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  auto* const content = static_cast<Descriptor*>(descriptor);
  const std::lock_guard lock(mutex);
  if (content->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && content->handle)
    --content->handle->plans;
  delete content;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  auto* const content = static_cast<Descriptor*>(descriptor);
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
    content->handle = *static_cast<const cudnnHandle_t*>(values);
  for (int64_t i = 0; name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS && i < count; ++i)
    content->lacks = content->lacks || !static_cast<void* const*>(values)[i];
  if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
    auto* const* const data = static_cast<void* const*>(values);
    content->data.assign(data, data + count);
  }
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  for (int64_t i = 0; i < count; ++i) {
    const auto* named = static_cast<Descriptor* const*>(values)[i];
    if (named && named->handle) content->handle = named->handle;
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       int64_t* found, void* values) {
  const auto* const content = static_cast<const Descriptor*>(descriptor);
  int64_t there = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    there = offers ? 1 : 0;
    if (values && count > 0 && offers)
      (*static_cast<Descriptor**>(values))->handle = content->handle;
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    there = 1;
  } else if (type == CUDNN_TYPE_INT64) {  // workspaces, indices
    there = 1;
    int64_t value = 0;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) value = content->workspace;
    if (name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) value = workspace;
    if (values && count > 0) *static_cast<int64_t*>(values) = value;
  } else if (type == CUDNN_TYPE_INT32) {
    there = 1;
    if (values && count > 0) *static_cast<int32_t*>(values) = 0;
  }
  if (found) *found = there;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  auto* const content = static_cast<Descriptor*>(descriptor);
  const std::lock_guard lock(mutex);
  if (content->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    note("plan");
    content->workspace = large_plans == 0 ? 0 : workspace;
    if (large_plans > 0) --large_plans;
    if (content->handle) ++content->handle->plans;
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t tensors) {
  const std::lock_guard lock(mutex);
  if (static_cast<const Descriptor*>(tensors)->lacks) {
    note("a plan is run without a tensor");
    return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  }
  const std::vector<void*>& data = static_cast<const Descriptor*>(tensors)->data;
  read.insert(data.begin(), data.end());
  if (!handle->stream) note("a plan is run without a stream");
  if (static_cast<const Descriptor*>(plan)->handle != handle)
    note("a plan is run with another handle");
  note("run");
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
