// Kernels for bfloat16 and float16 tensors: computed in float, rounded when stored.
#pragma once

#include <memory>

#include "ops/registry/registry.h"

namespace pipetrain {

/// Whether an input or output of the node is stored in bfloat16 or float16.
bool has_narrow(const KernelRequest& request);

/// Whether the node only copies elements, of any type.
bool only_moves_narrow(const KernelRequest& request);

/// A kernel that runs the operator's float kernel: inputs are widened before it, outputs rounded
/// after it, in chunks that fit the caches where the operator can be split. Null for Casts with a
/// dedicated kernel.
std::unique_ptr<Kernel> make_narrow_kernel(Backend backend, const KernelRequest& request);

}  // namespace pipetrain
