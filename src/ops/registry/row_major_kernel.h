// CPU kernels for nodes with layouts that only GPU kernels support: channels-last feature maps and
// matrices with padded rows.
#pragma once

#include <memory>

#include "ops/registry/registry.h"

namespace pipetrain {

/// Whether a tensor of the node has such a layout.
bool has_layout_of_gpus(const KernelRequest& request);
/// Runs the kernel of the row-major node on copies in the workspace.
std::unique_ptr<Kernel> make_row_major_kernel(Backend backend, const KernelRequest& request);

}  // namespace pipetrain
