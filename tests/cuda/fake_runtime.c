/* Stands before libcudart where there is no GPU: the few questions that cuDNN asks before it looks at the description of a device
   that it is given. CAPABILITY: 80, 89 or 90. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

static int capability(void) {
  const char* text = getenv("CAPABILITY");
  return text ? atoi(text) : 90;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  (void)device;
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "none");
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = 85000000000ULL;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->l2CacheSize = 52428800;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability() % 10;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
