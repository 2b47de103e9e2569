// Convolutions of oneDNN, of float and, where the processor has instructions for their products, of
// bfloat16 numbers: sums are float, and results are rounded once. Include it from *_cpu.cpp files
// only.
#pragma once

#include <memory>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The kernel for a Conv, ConvInputGrad or ConvWeightGrad, whose tensors are reordered where they
/// lie in another format than oneDNN is fastest in; null where oneDNN has none. That of a
/// ConvWeightGrad is an AddingKernel.
std::unique_ptr<Kernel> make_onednn_forward(const KernelRequest& request);
std::unique_ptr<Kernel> make_onednn_input_gradient(const KernelRequest& request);
std::unique_ptr<Kernel> make_onednn_weight_gradient(const KernelRequest& request);

/// Whether that of a ConvWeightGrad adds to a sum in the time in which it writes.
bool onednn_weight_gradient_adds(const KernelRequest& request);

/// Whether oneDNN has code of its own for a Conv, ConvInputGrad or ConvWeightGrad, neither plain
/// loops nor a product for every group. Of bfloat16 numbers: on processors with instructions for
/// their products.
bool onednn_has_vector_code(const KernelRequest& request);

}  // namespace pipetrain
