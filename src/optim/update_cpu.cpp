// Optimizers that treat every element by itself; those that need norms are in trust_ratio_cpu.cpp.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "optim/parameter_pass.h"
#include "optim/trust_ratio.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

template <class T>
void plain_sgd(const ParameterPass<T>& pass, double learning_rate) {
  const auto rate = static_cast<T>(learning_rate);
  for_pieces(pass.count, [&pass, rate](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    const T scale = pass.scale, decay = pass.decay;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) p[i] -= rate * (g[i] * scale + decay * p[i]);
  });
}

// With u = momentum and k = 1 - dampening: b = u b + k d, then p -= rate (nesterov ? d + u b : b).
// The first step sets b = d; `keep` is u or 0 and `enter` is k or 1 accordingly.
template <class T>
void momentum_sgd(const ParameterPass<T>& pass, const OptimizerSettings& settings,
                  double learning_rate, bool first_step) {
  const auto rate = static_cast<T>(learning_rate);
  const T keep = first_step ? T(0) : static_cast<T>(settings.momentum);
  const T enter = first_step ? T(1) : static_cast<T>(1 - settings.dampening);
  // The direction is direct * d + ahead * b.
  const T direct = settings.nesterov ? T(1) : T(0);
  const T ahead = settings.nesterov ? static_cast<T>(settings.momentum) : T(1);
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict buffer = pass.state0;
    const T scale = pass.scale, decay = pass.decay;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale + decay * p[i];
      const T b = keep * buffer[i] + enter * d;
      buffer[i] = b;
      p[i] -= rate * (direct * d + ahead * b);
    }
  });
}

template <class T>
void adam(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate,
          std::int64_t step) {
  const auto exponent = static_cast<double>(step);
  const double correction1 = 1 - std::pow(settings.beta1, exponent);
  const double correction2 = 1 - std::pow(settings.beta2, exponent);
  const bool decoupled = settings.kind == OptimizerKind::kAdamW;
  const T shrink = decoupled ? static_cast<T>(1 - learning_rate * settings.weight_decay) : T(1);
  const auto rate = static_cast<T>(learning_rate / correction1);
  const auto root_scale = static_cast<T>(1 / std::sqrt(correction2));
  const auto enter1 = static_cast<T>(1 - settings.beta1);
  const auto keep2 = static_cast<T>(settings.beta2);
  const auto enter2 = static_cast<T>(1 - settings.beta2);
  const auto epsilon = static_cast<T>(settings.epsilon);
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict mean = pass.state0;
    T* __restrict square = pass.state1;
    const T scale = pass.scale, decay = pass.decay;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale + decay * p[i];
      const T m = mean[i] + enter1 * (d - mean[i]);
      const T v = keep2 * square[i] + enter2 * (d * d);
      mean[i] = m;
      square[i] = v;
      p[i] = shrink * p[i] - rate * m / (std::sqrt(v) * root_scale + epsilon);
    }
  });
}

template <class T>
void rms_prop(const ParameterPass<T>& pass, const OptimizerSettings& settings,
              double learning_rate) {
  const auto rate = static_cast<T>(learning_rate);
  const auto keep = static_cast<T>(settings.alpha);
  const auto enter = static_cast<T>(1 - settings.alpha);
  const auto epsilon = static_cast<T>(settings.epsilon);
  const auto momentum = static_cast<T>(settings.momentum);
  const bool buffered = settings.momentum != 0;
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict square = pass.state0;
    const T scale = pass.scale, decay = pass.decay;
    if (!buffered) {
#pragma omp simd
      for (std::size_t i = first; i < last; ++i) {
        const T d = g[i] * scale + decay * p[i];
        const T v = keep * square[i] + enter * (d * d);
        square[i] = v;
        p[i] -= rate * d / (std::sqrt(v) + epsilon);
      }
      return;
    }
    T* __restrict buffer = pass.state1;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale + decay * p[i];
      const T v = keep * square[i] + enter * (d * d);
      square[i] = v;
      const T b = momentum * buffer[i] + d / (std::sqrt(v) + epsilon);
      buffer[i] = b;
      p[i] -= rate * b;
    }
  });
}

// PyTorch's centered RMSprop: the mean square about the mean. Rounding can push that below zero
// when the gradient hardly changes.
template <class T>
void centered_rms_prop(const ParameterPass<T>& pass, const OptimizerSettings& settings,
                       double learning_rate) {
  const auto rate = static_cast<T>(learning_rate);
  const auto keep = static_cast<T>(settings.alpha);
  const auto enter = static_cast<T>(1 - settings.alpha);
  const auto epsilon = static_cast<T>(settings.epsilon);
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict square = pass.state0;
    T* __restrict mean = pass.state1;
    const T scale = pass.scale, decay = pass.decay;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale + decay * p[i];
      const T v = keep * square[i] + enter * (d * d);
      const T m = mean[i] + enter * (d - mean[i]);
      square[i] = v;
      mean[i] = m;
      const T variance = v - m * m;
      p[i] -= rate * d / (std::sqrt(variance < T(0) ? T(0) : variance) + epsilon);
    }
  });
}

template <class T>
void adagrad(const ParameterPass<T>& pass, const OptimizerSettings& settings,
             double learning_rate) {
  const auto rate = static_cast<T>(learning_rate);
  const auto epsilon = static_cast<T>(settings.epsilon);
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict sum = pass.state0;
    const T scale = pass.scale, decay = pass.decay;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale + decay * p[i];
      const T s = sum[i] + d * d;
      sum[i] = s;
      p[i] -= rate * d / (std::sqrt(s) + epsilon);
    }
  });
}

// The direction is the sign of beta1 m + (1 - beta1) g; then m = beta2 m + (1 - beta2) g.
template <class T>
void lion(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate) {
  const auto rate = static_cast<T>(learning_rate);
  const auto shrink = static_cast<T>(1 - learning_rate * settings.weight_decay);
  const auto blend_keep = static_cast<T>(settings.beta1);
  const auto blend_enter = static_cast<T>(1 - settings.beta1);
  const auto keep = static_cast<T>(settings.beta2);
  const auto enter = static_cast<T>(1 - settings.beta2);
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    T* __restrict p = pass.parameter;
    const T* __restrict g = pass.gradient;
    T* __restrict mean = pass.state0;
    const T scale = pass.scale;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T d = g[i] * scale;
      const T c = blend_keep * mean[i] + blend_enter * d;
      // Zero stays zero, and what is not a number must show in the parameter.
      const T sign = c > T(0) ? T(1) : c < T(0) ? T(-1) : c;
      mean[i] = keep * mean[i] + enter * d;
      p[i] = shrink * p[i] - rate * sign;
    }
  });
}

template <class T>
void run(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
         double gradient_scale, std::span<T> parameter, std::span<const T> gradient,
         std::span<T> state0, std::span<T> state1) {
  const int slots = state_slots(settings);
  PT_CHECK(step >= 1, kInternal, "optimizer steps count from 1, got {}", step);
  PT_CHECK(gradient.size() == parameter.size() &&
               (slots < 1 || state0.size() == parameter.size()) &&
               (slots < 2 || state1.size() == parameter.size()),
           kInternal, "{} of {} elements was given {} gradients and states of {} and {}",
           name_of(settings.kind), parameter.size(), gradient.size(), state0.size(), state1.size());
  const bool decoupled = settings.kind == OptimizerKind::kAdamW ||
                         settings.kind == OptimizerKind::kLamb ||
                         settings.kind == OptimizerKind::kLion;
  const double decay = decoupled ? 0 : settings.weight_decay;
  const ParameterPass<T> pass{parameter.data(),     gradient.data(),
                              state0.data(),        state1.data(),
                              parameter.size(),     static_cast<T>(gradient_scale),
                              static_cast<T>(decay)};
  switch (settings.kind) {
    case OptimizerKind::kSgd:
      return slots == 0 ? plain_sgd(pass, learning_rate)
                        : momentum_sgd(pass, settings, learning_rate, /*first_step=*/step == 1);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return adam(pass, settings, learning_rate, step);
    case OptimizerKind::kRmsProp:
      return settings.centered ? centered_rms_prop(pass, settings, learning_rate)
                               : rms_prop(pass, settings, learning_rate);
    case OptimizerKind::kAdagrad:
      return adagrad(pass, settings, learning_rate);
    case OptimizerKind::kLion:
      return lion(pass, settings, learning_rate);
    case OptimizerKind::kLamb:
      return lamb(pass, settings, learning_rate, step);
    case OptimizerKind::kLars:
      return lars(pass, settings, learning_rate);
  }
}

}  // namespace

void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<float> parameter, std::span<const float> gradient,
            std::span<float> state0, std::span<float> state1) {
  run(settings, learning_rate, step, gradient_scale, parameter, gradient, state0, state1);
}

void update(const OptimizerSettings& settings, double learning_rate, std::int64_t step,
            double gradient_scale, std::span<double> parameter, std::span<const double> gradient,
            std::span<double> state0, std::span<double> state1) {
  run(settings, learning_rate, step, gradient_scale, parameter, gradient, state0, state1);
}

namespace {

/// Whether an element whose gradient is zero stays what it is.
bool keeps_without_gradient(const OptimizerSettings& settings, double gradient_scale) {
  return settings.kind == OptimizerKind::kSgd && settings.momentum == 0 &&
         settings.weight_decay == 0 && std::isfinite(gradient_scale);
}

void update_rows(const ParameterUpdate& one, std::int64_t step, double gradient_scale) {
  const auto count = static_cast<std::ptrdiff_t>(one.rows.size());
#pragma omp parallel for schedule(static) if (one.rows.size() * one.row_floats >= kParallelElements)
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    const auto first = static_cast<std::size_t>(one.rows[static_cast<std::size_t>(k)]);
    const std::size_t begin = first * one.row_floats;
    update(*one.settings, one.learning_rate, step, gradient_scale,
           one.parameter.subspan(begin, one.row_floats),
           one.gradient.subspan(begin, one.row_floats), {}, {});
  }
}

}  // namespace

void update_all(std::int64_t step, double gradient_scale,
                std::span<const ParameterUpdate> parameters) {
  const auto update_one = [&](const ParameterUpdate& one) {
    if (one.has_rows && keeps_without_gradient(*one.settings, gradient_scale))
      return update_rows(one, step, gradient_scale);
    update(*one.settings, one.learning_rate, step, gradient_scale, one.parameter, one.gradient,
           one.state0, one.state1);
  };
  std::size_t small = 0;
  for (const ParameterUpdate& one : parameters) {
    if (one.parameter.size() >= kParallelElements) {
      update_one(one);
    } else {
      small += one.parameter.size();
    }
  }
  const auto count = static_cast<std::ptrdiff_t>(parameters.size());
#pragma omp parallel for schedule(dynamic) if (small >= kParallelElements / 8)
  for (std::ptrdiff_t k = 0; k < count; ++k) {
    const ParameterUpdate& one = parameters[static_cast<std::size_t>(k)];
    if (one.parameter.size() < kParallelElements) update_one(one);
  }
}

void update_average(double decay, std::span<float> average, std::span<const float> parameter) {
  const auto enter = static_cast<float>(1 - decay);
  for_pieces(average.size(), [=](std::size_t first, std::size_t last) {
    float* __restrict to = average.data();
    const float* __restrict from = parameter.data();
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) to[i] += enter * (from[i] - to[i]);
  });
}

double sum_of_squares(std::span<const float> values) {
  return sum_of_squares_of(values.size(), [=](std::size_t i) { return values[i]; });
}
double sum_of_squares(std::span<const double> values) {
  return sum_of_squares_of(values.size(), [=](std::size_t i) { return values[i]; });
}

double clip_factor(double norm, double limit) {
  if (limit <= 0) return 1;
  return std::min(1.0, limit / (norm + 1e-6));
}

}  // namespace pipetrain
