// How own kernels are started, so that one source serves two compilers: nvcc, with this header, and
// the host's, with the one of tests/emulator, which runs a block's threads as fibers.
#pragma once

#include <cuda_runtime.h>

#define PT_LAUNCH(kernel, grid, block, stream, ...) \
  kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
/// The thread with this index of the warp gives its value to all of a warp of 32.
#define PT_FULL_WARP 0xffffffffu
/// A large parameter, which a kernel reads where it lies.
#define PT_LARGE(type) const __grid_constant__ type
