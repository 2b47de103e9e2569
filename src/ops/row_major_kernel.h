// The CPU's kernels for nodes whose pictures lie channels last, a layout that they do not know.
#pragma once

#include <memory>

#include "ops/registry.h"

namespace pipetrain {

/// Whether a tensor of the node lies channels last.
bool has_channels_last(const KernelRequest& request);
/// The kernel of the same node over row-major tensors, between copies in the workspace.
std::unique_ptr<Kernel> make_row_major_kernel(Backend backend, const KernelRequest& request);

}  // namespace pipetrain
