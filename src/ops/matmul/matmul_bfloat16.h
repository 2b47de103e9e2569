// The kernels of MatMul, MatMulPacked and PackMatrix where multiplies_bfloat16()
// (ops/matmul/matmul.h).
#pragma once

#include <memory>

#include "ops/kernel/kernel.h"

namespace pipetrain {

std::unique_ptr<Kernel> make_bfloat16_matmul(const KernelRequest& request);
std::unique_ptr<Kernel> make_bfloat16_packed(const KernelRequest& request);
std::unique_ptr<Kernel> make_bfloat16_pack(const KernelRequest& request);

/// Whether that MatMul is an AddingKernel: with a float result and without a bias.
bool bfloat16_matmul_adds(const KernelRequest& request);

}  // namespace pipetrain
