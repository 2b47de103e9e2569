// PT_HOST_DEVICE marks functions that CUDA kernels share with the host: the only place that tests
// which compiler is in use.
#pragma once

#ifdef __CUDACC__
#define PT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PT_HOST_DEVICE inline
#endif
