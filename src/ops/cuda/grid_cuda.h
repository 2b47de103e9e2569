// Thread indices of hand-written kernels, and block-wide reductions (C++17: nvcc compiles this
// file).
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/grid_size_cuda.h"

namespace pipetrain {

/// First element of a thread, and the stride to its next (grid-stride loop).
__device__ __forceinline__ std::int64_t first_of_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t step_of_thread() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

struct SumOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct ProductOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a * b;
  }
};
/// NaN wins.
struct MaxOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};
struct MinOf {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};

/// The value of the thread whose lane differs in the bits of `mask` (shuffle xor).
template <class T>
__device__ __forceinline__ T from_lane(T value, int mask) {
  if constexpr (sizeof(T) == 8) {
    long long bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = __shfl_xor_sync(PT_FULL_WARP, bits, mask);
    std::memcpy(&value, &bits, sizeof bits);
    return value;
  } else {
    return __shfl_xor_sync(PT_FULL_WARP, value, mask);
  }
}

/// Combines the values of all threads of a block of kThreads, in a fixed order; every thread gets
/// the result. All threads must call it.
template <int kThreads, class T, class F>
__device__ T over_block(T value, F combine) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  __shared__ T parts[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, from_lane(value, distance));
  __syncthreads();  // slower threads may still read the parts of the last call
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < kThreads / 32; ++i) value = combine(value, parts[i]);
  return value;
}

/// Combines the values of the kThreads threads that share a row: a warp, or a block. Every thread
/// gets the result.
template <int kThreads, class T, class F>
__device__ __forceinline__ T over_row(T value, F combine) {
  if constexpr (kThreads == 32) {
    for (int distance = 16; distance > 0; distance /= 2)
      value = combine(value, from_lane(value, distance));
    return value;
  } else {
    return over_block<kThreads>(value, combine);
  }
}

}  // namespace pipetrain
