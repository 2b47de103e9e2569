// What differs between the compilers of hand-written kernels. Each has a gpu/launch.h of its own:
// nvcc this one, NVRTC src/cuda/nvrtc, the host's compiler tests/emulator, which runs the threads
// of a block as fibers. NVRTC also uses the gpu/halves.h beside this; the emulator has another.
#pragma once

#include <cuda_runtime.h>

#define PT_LAUNCH(kernel, grid, block, stream, ...) \
  kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
/// Broadcasts the value of the thread with this index to its warp of 32.
#define PT_FULL_WARP 0xffffffffu
/// A large kernel parameter that is read in place (constant memory).
#define PT_LARGE(type) const __grid_constant__ type
/// Before a loop over an array that is to stay in registers.
#define PT_UNROLL _Pragma("unroll")
