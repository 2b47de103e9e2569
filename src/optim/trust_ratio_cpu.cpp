#include <cmath>

#include "optim/trust_ratio.h"

namespace pipetrain {

// Let r = m^ / (sqrt(v^) + epsilon) + decay * p, with Adam's corrected means m^ and v^. Then
// p -= rate * |p| / |r| * r.
template <class T>
void lamb(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate,
          std::int64_t step) {
  const auto exponent = static_cast<double>(step);
  const auto mean_scale = static_cast<T>(1 / (1 - std::pow(settings.beta1, exponent)));
  const auto root_scale = static_cast<T>(1 / std::sqrt(1 - std::pow(settings.beta2, exponent)));
  const auto enter1 = static_cast<T>(1 - settings.beta1);
  const auto keep2 = static_cast<T>(settings.beta2);
  const auto enter2 = static_cast<T>(1 - settings.beta2);
  const auto epsilon = static_cast<T>(settings.epsilon);
  const auto decay = static_cast<T>(settings.weight_decay);
  const T scale = pass.scale;
  T* __restrict p = pass.parameter;
  const T* __restrict g = pass.gradient;
  T* __restrict mean = pass.state0;
  T* __restrict square = pass.state1;
  const auto direction = [=](std::size_t i, T m, T v) {
    return m * mean_scale / (std::sqrt(v) * root_scale + epsilon) + decay * p[i];
  };
  const double parameter_norm =
      std::sqrt(sum_of_squares_of(pass.count, [=](std::size_t i) { return p[i]; }));
  const double direction_norm = std::sqrt(sum_of_squares_of(pass.count, [=](std::size_t i) {
    const T d = g[i] * scale;
    const T m = mean[i] + enter1 * (d - mean[i]);
    const T v = keep2 * square[i] + enter2 * (d * d);
    mean[i] = m;
    square[i] = v;
    return direction(i, m, v);
  }));
  const double trust =
      parameter_norm > 0 && direction_norm > 0 ? parameter_norm / direction_norm : 1;
  const auto rate = static_cast<T>(learning_rate * trust);
  // The direction is computed again rather than kept, which would need memory of its own.
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) p[i] -= rate * direction(i, mean[i], square[i]);
  });
}

// With the local rate l = rate * kTrustCoefficient * |p| / (|g| + decay * |p|) the buffer becomes
// b = momentum b + l (g + decay p), and p -= b.
template <class T>
void lars(const ParameterPass<T>& pass, const OptimizerSettings& settings, double learning_rate) {
  const T scale = pass.scale, decay = pass.decay;
  T* __restrict p = pass.parameter;
  const T* __restrict g = pass.gradient;
  const double parameter_norm =
      std::sqrt(sum_of_squares_of(pass.count, [=](std::size_t i) { return p[i]; }));
  const double gradient_norm =
      std::sqrt(sum_of_squares_of(pass.count, [=](std::size_t i) { return g[i] * scale; }));
  const double trust = parameter_norm > 0 && gradient_norm > 0
                           ? kTrustCoefficient * parameter_norm /
                                 (gradient_norm + settings.weight_decay * parameter_norm)
                           : 1;
  const auto rate = static_cast<T>(learning_rate * trust);
  const auto momentum = static_cast<T>(settings.momentum);
  T* __restrict buffer = settings.momentum != 0 ? pass.state0 : nullptr;
  for_pieces(pass.count, [=](std::size_t first, std::size_t last) {
    if (!buffer) {
#pragma omp simd
      for (std::size_t i = first; i < last; ++i) p[i] -= rate * (g[i] * scale + decay * p[i]);
      return;
    }
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) {
      const T b = momentum * buffer[i] + rate * (g[i] * scale + decay * p[i]);
      buffer[i] = b;
      p[i] -= b;
    }
  });
}

template void lamb(const ParameterPass<float>&, const OptimizerSettings&, double, std::int64_t);
template void lamb(const ParameterPass<double>&, const OptimizerSettings&, double, std::int64_t);
template void lars(const ParameterPass<float>&, const OptimizerSettings&, double);
template void lars(const ParameterPass<double>&, const OptimizerSettings&, double);

}  // namespace pipetrain
