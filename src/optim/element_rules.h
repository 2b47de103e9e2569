// The element-wise update rule of every optimizer, written once: the loops of update_cpu.cpp and
// the kernel of update_cuda.cu call it for each index (C++17: nvcc compiles this file).
//
// A rule holds the coefficients of one step, computed from a RuleInput. It is called with a
// parameter, its gradient and a reference to each optimizer state, and returns the new parameter.
// Rules that use norms of the whole tensor have two more members, which are called first:
// measured(), for each element, and normalise(), with the norm of the parameter and the norm of the
// results of measured().
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "optim/rule_list.h"

namespace pipetrain {

/// The settings of one step of one parameter (optim/optimizer_table.h makes it from
/// OptimizerSettings, which say what each of them is).
struct RuleInput {
  double learning_rate, gradient_scale;
  std::int64_t step;  // from 1
  /// Weight decay; one of the two is 0: `decay` is added to the gradient, `decoupled_decay` shrinks
  /// the parameter.
  double decay, decoupled_decay;
  double momentum, dampening, beta1, beta2, alpha, epsilon;
  bool nesterov;

  /// The factor of decoupled decay, applied to a parameter before its step.
  double shrink() const { return decoupled_decay == 0 ? 1 : 1 - learning_rate * decoupled_decay; }
  /// Bias correction: the divisor of a moving average with decay `beta` that started at zero.
  double correction(double beta) const { return 1 - std::pow(beta, static_cast<double>(step)); }
};

template <class T>
struct SgdRule {
  T scale, decay, rate;

  SgdRule() = default;
  explicit SgdRule(const RuleInput& in)
      : scale(T(in.gradient_scale)), decay(T(in.decay)), rate(T(in.learning_rate)) {}
  PT_HOST_DEVICE T operator()(T p, T g) const { return p - rate * (g * scale + decay * p); }
};

// With u = momentum and k = 1 - dampening: b = u b + k d, then p -= rate (nesterov ? d + u b : b).
// The first step sets b = d; `keep` is u or 0 and `enter` is k or 1 accordingly. Nesterov momentum
// as in Sutskever et al. 2013.
template <class T>
struct MomentumRule {
  T scale, decay, rate, keep, enter;
  T direct, ahead;  // the direction is direct * d + ahead * b

  MomentumRule() = default;
  explicit MomentumRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        decay(T(in.decay)),
        rate(T(in.learning_rate)),
        keep(in.step == 1 ? T(0) : T(in.momentum)),
        enter(in.step == 1 ? T(1) : T(1 - in.dampening)),
        direct(in.nesterov ? T(1) : T(0)),
        ahead(in.nesterov ? T(in.momentum) : T(1)) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& buffer) const {
    const T d = g * scale + decay * p;
    const T b = keep * buffer + enter * d;
    buffer = b;
    return p - rate * (direct * d + ahead * b);
  }
};

// Kingma and Ba 2015; with decoupled decay, which shrinks the parameter: Loshchilov and Hutter
// 2019.
template <class T>
struct AdamRule {
  T scale, decay, shrink, rate, root_scale, enter1, keep2, enter2, epsilon;

  AdamRule() = default;
  explicit AdamRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        decay(T(in.decay)),
        shrink(T(in.shrink())),
        rate(T(in.learning_rate / in.correction(in.beta1))),
        root_scale(T(1 / std::sqrt(in.correction(in.beta2)))),
        enter1(T(1 - in.beta1)),
        keep2(T(in.beta2)),
        enter2(T(1 - in.beta2)),
        epsilon(T(in.epsilon)) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& mean, T& square) const {
    const T d = g * scale + decay * p;
    const T m = mean + enter1 * (d - mean);
    const T v = keep2 * square + enter2 * (d * d);
    mean = m;
    square = v;
    return shrink * p - rate * m / (std::sqrt(v) * root_scale + epsilon);
  }
};

/// What the three rules of RMSProp share.
template <class T>
struct RmsPropTerms {
  T scale, decay, rate, keep, enter, epsilon;

  RmsPropTerms() = default;
  explicit RmsPropTerms(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        decay(T(in.decay)),
        rate(T(in.learning_rate)),
        keep(T(in.alpha)),
        enter(T(1 - in.alpha)),
        epsilon(T(in.epsilon)) {}
  PT_HOST_DEVICE T decayed(T p, T g) const { return g * scale + decay * p; }
  PT_HOST_DEVICE T mean_square(T square, T d) const { return keep * square + enter * (d * d); }
};

template <class T>
struct RmsPropRule {
  RmsPropTerms<T> terms;

  RmsPropRule() = default;
  explicit RmsPropRule(const RuleInput& in) : terms(in) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& square) const {
    const T d = terms.decayed(p, g);
    const T v = terms.mean_square(square, d);
    square = v;
    return p - terms.rate * d / (std::sqrt(v) + terms.epsilon);
  }
};

template <class T>
struct RmsPropMomentumRule {
  RmsPropTerms<T> terms;
  T momentum;

  RmsPropMomentumRule() = default;
  explicit RmsPropMomentumRule(const RuleInput& in) : terms(in), momentum(T(in.momentum)) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& square, T& buffer) const {
    const T d = terms.decayed(p, g);
    const T v = terms.mean_square(square, d);
    square = v;
    const T b = momentum * buffer + d / (std::sqrt(v) + terms.epsilon);
    buffer = b;
    return p - terms.rate * b;
  }
};

// The mean square about the mean, as in PyTorch. Rounding can make it negative when the gradient
// hardly changes.
template <class T>
struct CenteredRmsPropRule {
  RmsPropTerms<T> terms;

  CenteredRmsPropRule() = default;
  explicit CenteredRmsPropRule(const RuleInput& in) : terms(in) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& square, T& mean) const {
    const T d = terms.decayed(p, g);
    const T v = terms.mean_square(square, d);
    const T m = mean + terms.enter * (d - mean);
    square = v;
    mean = m;
    const T variance = v - m * m;
    return p - terms.rate * d / (std::sqrt(variance < T(0) ? T(0) : variance) + terms.epsilon);
  }
};

// Duchi et al. 2011.
template <class T>
struct AdagradRule {
  T scale, decay, rate, epsilon;

  AdagradRule() = default;
  explicit AdagradRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        decay(T(in.decay)),
        rate(T(in.learning_rate)),
        epsilon(T(in.epsilon)) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& sum) const {
    const T d = g * scale + decay * p;
    const T s = sum + d * d;
    sum = s;
    return p - rate * d / (std::sqrt(s) + epsilon);
  }
};

// Chen et al. 2023, algorithm 2: the direction is the sign of beta1 m + (1 - beta1) g; then
// m = beta2 m + (1 - beta2) g.
template <class T>
struct LionRule {
  T scale, shrink, rate, blend_keep, blend_enter, keep, enter;

  LionRule() = default;
  explicit LionRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        shrink(T(in.shrink())),
        rate(T(in.learning_rate)),
        blend_keep(T(in.beta1)),
        blend_enter(T(1 - in.beta1)),
        keep(T(in.beta2)),
        enter(T(1 - in.beta2)) {}
  PT_HOST_DEVICE T operator()(T p, T g, T& mean) const {
    const T d = g * scale;
    const T c = blend_keep * mean + blend_enter * d;
    // Zero stays zero, and NaN must propagate to the parameter.
    const T sign = c > T(0) ? T(1) : c < T(0) ? T(-1) : c;
    mean = keep * mean + enter * d;
    return shrink * p - rate * sign;
  }
};

// You et al. 2020, algorithm 2 with phi(z) = z. Let r = m^ / (sqrt(v^) + epsilon) + decay * p, with
// Adam's corrected means m^ and v^. Then p -= rate * |p| / |r| * r; where a norm is zero, p -= rate
// * r.
template <class T>
struct LambRule {
  T scale, mean_scale, root_scale, enter1, keep2, enter2, epsilon, decay;
  T rate = 0;  // by normalise()
  double learning_rate;

  LambRule() = default;
  explicit LambRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        mean_scale(T(1 / in.correction(in.beta1))),
        root_scale(T(1 / std::sqrt(in.correction(in.beta2)))),
        enter1(T(1 - in.beta1)),
        keep2(T(in.beta2)),
        enter2(T(1 - in.beta2)),
        epsilon(T(in.epsilon)),
        decay(T(in.decoupled_decay)),
        learning_rate(in.learning_rate) {}
  PT_HOST_DEVICE T direction(T p, T m, T v) const {
    return m * mean_scale / (std::sqrt(v) * root_scale + epsilon) + decay * p;
  }
  PT_HOST_DEVICE T measured(T p, T g, T& mean, T& square) const {
    const T d = g * scale;
    const T m = mean + enter1 * (d - mean);
    const T v = keep2 * square + enter2 * (d * d);
    mean = m;
    square = v;
    return direction(p, m, v);
  }
  void normalise(double parameter_norm, double direction_norm) {
    const double trust =
        parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1;
    rate = T(learning_rate * trust);
  }
  // The direction is recomputed rather than stored, which would need extra memory.
  PT_HOST_DEVICE T operator()(T p, T, T& mean, T& square) const {
    return p - rate * direction(p, mean, square);
  }
};

// You et al. 2017, algorithm 1. With the local rate l = rate * kTrust * |p| / (|g| + decay * |p|),
// or rate where a norm is zero: p -= l (g + decay p).
template <class T>
struct LarsRule {
  static constexpr double kTrust =
      1e-3;  // eta of the paper; other values are equivalent to another rate
  T scale, decay;
  T rate = 0;  // by normalise()
  double learning_rate, whole_decay;

  LarsRule() = default;
  explicit LarsRule(const RuleInput& in)
      : scale(T(in.gradient_scale)),
        decay(T(in.decay)),
        learning_rate(in.learning_rate),
        whole_decay(in.decay) {}
  PT_HOST_DEVICE T measured(T, T g) const { return g * scale; }
  void normalise(double parameter_norm, double gradient_norm) {
    const double trust =
        parameter_norm > 0 && gradient_norm > 0
            ? kTrust * parameter_norm / (gradient_norm + whole_decay * parameter_norm)
            : 1;
    rate = T(learning_rate * trust);
  }
  PT_HOST_DEVICE T operator()(T p, T g) const { return p - rate * (g * scale + decay * p); }
};

// The local rate enters the momentum buffer: b = momentum b + l (g + decay p), and p -= b.
template <class T>
struct LarsMomentumRule : LarsRule<T> {
  T momentum;

  LarsMomentumRule() = default;
  explicit LarsMomentumRule(const RuleInput& in) : LarsRule<T>(in), momentum(T(in.momentum)) {}
  PT_HOST_DEVICE T measured(T, T g, T&) const { return g * this->scale; }
  PT_HOST_DEVICE T operator()(T p, T g, T& buffer) const {
    const T b = momentum * buffer + this->rate * (g * this->scale + this->decay * p);
    buffer = b;
    return p - b;
  }
};

/// All rules. The index in this list is the rule's number in the optimizer table and in kernels.
using ElementRules =
    RuleList<SgdRule, MomentumRule, AdamRule, RmsPropRule, RmsPropMomentumRule, CenteredRmsPropRule,
             AdagradRule, LionRule, LambRule, LarsRule, LarsMomentumRule>;

}  // namespace pipetrain
