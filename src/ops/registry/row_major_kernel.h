// The CPU's kernels for nodes whose tensors lie as only kernels of GPUs know them: feature maps
// with their channels last, matrices with padded rows.
#pragma once

#include <memory>

#include "ops/registry/registry.h"

namespace pipetrain {

/// Whether a tensor of the node lies so.
bool has_layout_of_gpus(const KernelRequest& request);
/// The kernel of the same node over row-major tensors, between copies in the workspace.
std::unique_ptr<Kernel> make_row_major_kernel(Backend backend, const KernelRequest& request);

}  // namespace pipetrain
