// gpu/launch.h for the emulator, which runs hand-written kernels on the host: the threads of a
// block are fibers that switch at barriers and warp exchanges.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define PT_FULL_WARP 0xffffffffu
#define PT_LARGE(type) const type&
#define PT_UNROLL

using cudaStream_t = void*;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace pipetrain::emulator {

/// In which order the threads of a block run between two barriers. A kernel whose result depends on
/// it lacks a barrier.
enum class Order { kForward, kBackward, kShuffled };
void set_order(Order order);

/// Runs all blocks. Throws std::runtime_error when threads of a block wait at different places.
void launch(dim3 grid, dim3 block, const std::function<void()>& body);
std::uint64_t launches();

struct Place {
  dim3 thread, block, block_size, grid;
};
const Place& here();
void barrier();
/// Warp shuffle: every thread passes 8 bytes and gets those of thread `source` of its warp, or its
/// own if there is none.
std::uint64_t exchange(std::uint64_t mine, int source);
int lane();

template <class T>
T shuffle(T value, int source) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace pipetrain::emulator

#define threadIdx (pipetrain::emulator::here().thread)
#define blockIdx (pipetrain::emulator::here().block)
#define blockDim (pipetrain::emulator::here().block_size)
#define gridDim (pipetrain::emulator::here().grid)
#define PT_LAUNCH(kernel, grid_size, block_size, stream, ...) \
  (static_cast<void>(stream),                                 \
   pipetrain::emulator::launch((grid_size), (block_size), [&] { kernel(__VA_ARGS__); }))

inline void __syncthreads() { pipetrain::emulator::barrier(); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return pipetrain::emulator::shuffle(value, pipetrain::emulator::lane() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int source) {
  return pipetrain::emulator::shuffle(value, source);
}
