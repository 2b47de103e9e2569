// The reduction family, by file.
#pragma once

#include <span>

#include "ops/reduce/arg_rule.h"
#include "ops/reduce/reduce_plan.h"
#include "ops/registry/registry.h"

namespace pipetrain::reduce {

std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

/// Whether the CPU's kernel reads the request's bfloat16 input itself.
bool adds_bfloat16(const KernelRequest& request);

/// The reduction that a node of this family performs on its input.
ReducePlan plan_of(const KernelRequest& request);
/// Of an ArgMax or ArgMin.
ArgRule arg_rule(const KernelRequest& request);

}  // namespace pipetrain::reduce
