// Batch normalization of bfloat16 numbers in blocks of 16 channels, for AVX-512 with bfloat16.
#pragma once

#include <memory>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// Whether make_batch_norm_bfloat16() has a kernel for the request.
bool batch_norm_takes_bfloat16(const KernelRequest& request);
std::unique_ptr<Kernel> make_batch_norm_bfloat16(const KernelRequest& request);

}  // namespace pipetrain
