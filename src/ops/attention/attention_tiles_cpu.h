// Attention over bfloat16 numbers on tiles (ops/matmul/tile_instructions_cpu.h). Include it from
// *_cpu.cpp files and tests only.
#pragma once

#include <memory>

#include "ops/kernel/kernel.h"
#include "ops/matmul/tile_instructions_cpu.h"

namespace pipetrain::attention {

/// Whether the kernels below take these types.
bool fits_tiles(const KernelRequest& request);

/// The kernel of an Attention or an AttentionGrad.
std::unique_ptr<Kernel> make_on_tiles(const KernelRequest& request,
                                      const tiles::Instructions& instructions);

}  // namespace pipetrain::attention
