// The element-wise family, by file.
#pragma once

#include <span>

#include "ops/registry/registry.h"

namespace pipetrain::elementwise {

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

/// Factories of the kernels in the tables above; null where there is none for the types.
std::unique_ptr<Kernel> make_reference_broadcast(const KernelRequest& request);
std::unique_ptr<Kernel> make_reference_where(const KernelRequest& request);
std::unique_ptr<Kernel> make_reference_cast(const KernelRequest& request);
std::unique_ptr<Kernel> make_cpu_unary(const KernelRequest& request);
std::unique_ptr<Kernel> make_cpu_gradient(const KernelRequest& request);
/// Of the operators of the two before, over bfloat16, where takes_bfloat16().
std::unique_ptr<Kernel> make_bfloat16(const KernelRequest& request);
bool takes_bfloat16(const KernelRequest& request);
std::unique_ptr<Kernel> make_cpu_broadcast(const KernelRequest& request);
std::unique_ptr<Kernel> make_cpu_where(const KernelRequest& request);

}  // namespace pipetrain::elementwise
