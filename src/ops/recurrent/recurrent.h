// Recurrent layers of one direction: what the definitions and the kernels share.
//
// The input's share of the gates is a MatMul of its own, one product over all time steps; what is
// left is the recurrence. T steps, N samples, H hidden units.
//
//   Lstm(gates, r[, h0, c0, peepholes, lengths]) -> y, last_h, last_c, activated, cells
//     gates: (T, N, 4H), order i o f c     r: (4H, H)     peepholes: (3H), order i o f
//   Gru(gates, r[, hidden_bias, h0, lengths]) -> y, last_h, activated, hidden
//     gates: (T, N, 3H), order z r h       r: (3H, H)     hidden_bias: (H), only if after_reset
//     hidden (T, N, H): h r_h' + hidden_bias with {linear_before_reset: 1}, reset * h without
//   Rnn(gates, r[, h0, lengths]) -> y, last_h
//
//   y, cells: (T, N, H)     h0, c0, last_h, last_c: (N, H)     activated: as gates
//   lengths: (N) int32; from a sample's length on its state does not change, and y is 0
//   {reverse: 1}: from the last step to the first
//
// The gradient operators return the gradient of `gates` for all steps; that of the weights is a
// node of its own, RecurrentWeightGrad, one product over all time steps.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/registry/registry.h"

namespace pipetrain::recurrent {

struct Geometry {
  std::int64_t steps = 0;    // T
  std::int64_t samples = 0;  // N
  std::int64_t hidden = 0;   // H
  bool reverse = false;

  /// The time step that is computed after `order` others.
  std::int64_t step(std::int64_t order) const { return reverse ? steps - 1 - order : order; }
  std::int64_t state() const { return samples * hidden; }
};

/// From the gates (T, N, G H) or their gradient; Error (kModel) when the shape does not fit.
Geometry geometry_of(const Attributes& attributes, const Shape& gates, std::int64_t gate_count);

enum class ActivationKind : std::uint8_t {
  kSigmoid,
  kTanh,
  kRelu,
  kAffine,
  kLeakyRelu,
  kThresholdedRelu,
  kScaledTanh,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus,
};

struct Activation {
  ActivationKind kind = ActivationKind::kTanh;
  double alpha = 0;
  double beta = 0;
};

/// By ONNX's name, in any case ("Tanh", "tanh"), with the standard's default alpha and beta; Error
/// (kModel) for an unknown one.
Activation activation_named(std::string_view name);
/// Whether the activation has an alpha, a beta.
bool has_alpha(ActivationKind kind);
bool has_beta(ActivationKind kind);
/// Attributes activations ("Sigmoid,Tanh,Tanh"), alpha and beta (a number for each).
std::vector<Activation> activations_of(const Attributes& attributes);

/// Whether the activations are those that PyTorch and Keras have, and nothing is clipped.
bool is_usual_lstm(const Attributes& attributes);
bool is_usual_gru(const Attributes& attributes);

/// Whether the CPU's kernel of this Lstm, LstmGrad or RecurrentWeightGrad reads, multiplies and
/// writes bfloat16 numbers as they are.
bool takes_bfloat16(const KernelRequest& request);

std::span<const ImportRule> imports();
std::span<const KernelEntry> reference_kernels();
std::span<const KernelEntry> cpu_kernels();

}  // namespace pipetrain::recurrent
