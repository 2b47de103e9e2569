// Kernels over bfloat16 and float16 tensors: arithmetic is float's, only what is stored is rounded.
#pragma once

#include <memory>

#include "ops/registry/registry.h"

namespace pipetrain {

/// Whether an input or output of the node is stored in bfloat16 or float16.
bool has_narrow(const KernelRequest& request);

/// Whether the node copies elements of one type, whatever they are.
bool only_moves_narrow(const KernelRequest& request);

/// A kernel that runs the operator's float kernel: what it reads is widened before, what it writes
/// is rounded behind, in pieces that stay in the caches where the operator can work piece by piece.
/// Null for Casts that have a kernel of their own.
std::unique_ptr<Kernel> make_narrow_kernel(Backend backend, const KernelRequest& request);

}  // namespace pipetrain
