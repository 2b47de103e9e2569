// The CPU's kernels of recurrent layers, one file for each kind of layer. Each returns null for
// what only the reference kernels compute.
#pragma once

#include "ops/recurrent/recurrent.h"

namespace pipetrain::recurrent {

using Tensors = std::span<const Tensor>;

std::unique_ptr<Kernel> make_lstm(const KernelRequest& request);
std::unique_ptr<Kernel> make_lstm_gradient(const KernelRequest& request);
std::unique_ptr<Kernel> make_gru(const KernelRequest& request);
std::unique_ptr<Kernel> make_gru_gradient(const KernelRequest& request);
std::unique_ptr<Kernel> make_rnn(const KernelRequest& request);
std::unique_ptr<Kernel> make_rnn_gradient(const KernelRequest& request);
std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request);

/// Whether the node has no such input.
inline bool is_absent(const KernelRequest& request, std::size_t input) {
  return input >= request.inputs.size() || request.inputs[input].dtype == DType::kUndefined;
}

}  // namespace pipetrain::recurrent
