// What the reference kernels of recurrent layers share: activations, the steps over steps and
// samples, and sums over states, in plain loops in double.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/kernel/element_types.h"
#include "ops/recurrent/recurrent.h"

namespace pipetrain::recurrent {

/// A value as any type of results has stored it.
class Limit {
 public:
  explicit Limit(double value) : stored_{value, static_cast<float>(value)} {
    const auto single = static_cast<float>(value);
    stored_[2] = bfloat16_to_float(float_to_bfloat16(single));
    stored_[3] = half_to_float(float_to_half(single));
  }
  double value() const { return stored_[0]; }
  bool is(double y) const { return std::ranges::find(stored_, y) != stored_.end(); }

 private:
  std::array<double, 4> stored_;
};

/// An activation after its clip. Derivatives are taken from the activated value: all of these
/// functions are monotone, so a clipped input shows by the value at the limit.
class Function {
 public:
  Function(const Activation& activation, double clip)
      : activation_(activation),
        clip_(clip > 0 ? clip : std::numeric_limits<double>::infinity()),
        lowest_(std::min(at_limit(-clip_), at_limit(clip_))),
        highest_(std::max(at_limit(-clip_), at_limit(clip_))) {}

  double operator()(double x) const { return value(std::clamp(x, -clip_, clip_)); }

  double derivative(double y) const {
    if (std::isfinite(clip_) && is_clipped(y)) return 0;
    const double alpha = activation_.alpha;
    switch (activation_.kind) {
      case ActivationKind::kSigmoid:
        return y * (1 - y);
      case ActivationKind::kTanh:
        return 1 - y * y;
      case ActivationKind::kRelu:
        return y > 0 ? 1 : 0;
      case ActivationKind::kAffine:
        return alpha;
      case ActivationKind::kLeakyRelu:
        return y > 0 ? 1 : alpha;
      case ActivationKind::kThresholdedRelu:
        return y != 0 ? 1 : 0;
      case ActivationKind::kScaledTanh:
        return activation_.beta * (alpha - y * y / alpha);
      case ActivationKind::kHardSigmoid:
        return y > 0 && y < 1 ? alpha : 0;
      case ActivationKind::kElu:
        return y > 0 ? 1 : y + alpha;
      case ActivationKind::kSoftsign:
        return (1 - std::abs(y)) * (1 - std::abs(y));
      case ActivationKind::kSoftplus:
        return -std::expm1(-y);
    }
    return 0;
  }

 private:
  bool is_clipped(double y) const {
    return y <= lowest_.value() || y >= highest_.value() || lowest_.is(y) || highest_.is(y);
  }

  /// ThresholdedRelu jumps: its 0 is no limit, and inputs that pass are their own values.
  double at_limit(double x) const {
    return activation_.kind == ActivationKind::kThresholdedRelu ? x : value(x);
  }

  double value(double x) const {
    const double alpha = activation_.alpha;
    switch (activation_.kind) {
      case ActivationKind::kSigmoid:
        return 1 / (1 + std::exp(-x));
      case ActivationKind::kTanh:
        return std::tanh(x);
      case ActivationKind::kRelu:
        return std::max(x, 0.0);
      case ActivationKind::kAffine:
        return alpha * x + activation_.beta;
      case ActivationKind::kLeakyRelu:
        return x > 0 ? x : alpha * x;
      case ActivationKind::kThresholdedRelu:
        return x > alpha ? x : 0;
      case ActivationKind::kScaledTanh:
        return alpha * std::tanh(activation_.beta * x);
      case ActivationKind::kHardSigmoid:
        return std::clamp(alpha * x + activation_.beta, 0.0, 1.0);
      case ActivationKind::kElu:
        return x > 0 ? x : alpha * std::expm1(x);
      case ActivationKind::kSoftsign:
        return x / (1 + std::abs(x));
      case ActivationKind::kSoftplus:
        return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    }
    return 0;
  }

  Activation activation_;
  double clip_;
  Limit lowest_;
  Limit highest_;
};

inline std::vector<Function> functions_of(const Attributes& attributes) {
  std::vector<Function> out;
  for (const Activation& activation : activations_of(attributes)) {
    out.emplace_back(activation, attributes.real("clip", 0));
  }
  return out;
}

/// The geometry, the lengths, and where the state before a step stands.
struct StepOrder {
  Geometry g;
  const std::int32_t* lengths;

  bool active(std::int64_t t, std::int64_t n) const { return !lengths || t < lengths[n]; }
  /// The first step of the sample in the order of computation.
  bool first(std::int64_t t, std::int64_t n) const {
    if (!g.reverse) return t == 0;
    return t + 1 == g.steps || (lengths && t + 1 == lengths[n]);
  }
  std::int64_t at(std::int64_t t, std::int64_t n, std::int64_t j) const {
    return (t * g.samples + n) * g.hidden + j;
  }
  /// An element of the state before step t: from the sequence of states, or the initial one.
  template <class T>
  double before(const T* states, const T* initial, std::int64_t t, std::int64_t n,
                std::int64_t j) const {
    if (first(t, n)) return initial ? initial[n * g.hidden + j] : 0.0;
    return states[at(g.reverse ? t + 1 : t - 1, n, j)];
  }
  /// Calls visit(t, n) for every active step of every sample, in order of computation.
  template <class Visit>
  void forward(Visit visit) const {
    for (std::int64_t order = 0; order < g.steps; ++order) step(g.step(order), visit);
  }
  template <class Visit>
  void backward(Visit visit) const {
    for (std::int64_t order = g.steps; order-- > 0;) step(g.step(order), visit);
  }

 private:
  template <class Visit>
  void step(std::int64_t t, Visit visit) const {
    for (std::int64_t n = 0; n < g.samples; ++n) {
      if (active(t, n)) visit(t, n);
    }
  }
};

using State = std::vector<double>;

template <class T>
State state_from(const T* initial, std::int64_t count) {
  return initial ? State(initial, initial + count) : State(static_cast<std::size_t>(count), 0.0);
}

template <class T>
void write_state(const State& state, T* out) {
  if (out)
    std::transform(state.begin(), state.end(), out, [](double v) { return static_cast<T>(v); });
}

template <class T>
void fill_zero(const Tensor& tensor) {
  if (tensor) std::fill_n(tensor.as<T>(), tensor.count(), T{0});
}

/// Σ_k state[k] r[row, k]
template <class T>
double product(const double* state, const T* r, std::int64_t row, std::int64_t hidden) {
  double sum = 0;
  for (std::int64_t k = 0; k < hidden; ++k) sum += state[k] * r[row * hidden + k];
  return sum;
}

/// Adds Σ_row d[row] r[row, :] to dstate.
template <class T>
void add_transposed(const double* d, const T* r, std::int64_t rows, std::int64_t hidden,
                    double* dstate) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < hidden; ++k) dstate[k] += d[row] * r[row * hidden + k];
  }
}

using Tensors = std::span<const Tensor>;

}  // namespace pipetrain::recurrent
