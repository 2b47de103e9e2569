#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "optim/update.h"

namespace pipetrain {
namespace {

// Pieces are whole multiples of any vector length, so that an element is computed by the same
// instructions however many threads share the work.
constexpr std::size_t kPiece = 1 << 14;
constexpr std::size_t kParallelElements = 1 << 18;

/// Calls body(first, last) for pieces of [0, count), in parallel when that pays.
template <class Body>
void for_pieces(std::size_t count, const Body& body) {
  const auto pieces = static_cast<std::ptrdiff_t>((count + kPiece - 1) / kPiece);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::ptrdiff_t piece = 0; piece < pieces; ++piece) {
    const std::size_t first = static_cast<std::size_t>(piece) * kPiece;
    body(first, std::min(count, first + kPiece));
  }
}

template <class T>
struct Pass {
  T* parameter;
  const T* gradient;
  T* state0;
  T* state1;
  std::size_t count;
  T scale;
  T decay;  // L2
};

template <class T>
void plain_sgd(const Pass<T>& pass, double learning_rate) {
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
void momentum_sgd(const Pass<T>& pass, const OptimizerSettings& settings, double learning_rate,
                  bool first_step) {
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
void adam(const Pass<T>& pass, const OptimizerSettings& settings, double learning_rate,
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
void rms_prop(const Pass<T>& pass, const OptimizerSettings& settings, double learning_rate) {
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
  const double decay = settings.kind == OptimizerKind::kAdamW ? 0 : settings.weight_decay;
  const Pass<T> pass{parameter.data(),     gradient.data(),  state0.data(),
                     state1.data(),        parameter.size(), static_cast<T>(gradient_scale),
                     static_cast<T>(decay)};
  switch (settings.kind) {
    case OptimizerKind::kSgd:
      return slots == 0 ? plain_sgd(pass, learning_rate)
                        : momentum_sgd(pass, settings, learning_rate, /*first_step=*/step == 1);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return adam(pass, settings, learning_rate, step);
    case OptimizerKind::kRmsProp:
      return rms_prop(pass, settings, learning_rate);
  }
}

template <class T>
double squares_of_piece(const T* values, std::size_t first, std::size_t last) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  std::size_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (std::size_t lane = 0; i < last; ++i, ++lane) {
    const double x = values[i];
    lanes[lane] += x * x;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class T>
double squares(std::span<const T> values) {
  // The number of parts is bounded, so that the partial sums need no memory of their own.
  constexpr std::size_t kParts = 256;
  const std::size_t part = std::max(kPiece, (values.size() + kParts - 1) / kParts);
  const auto parts = static_cast<std::ptrdiff_t>((values.size() + part - 1) / part);
  std::array<double, kParts> sums{};
#pragma omp parallel for schedule(static) if (values.size() >= kParallelElements)
  for (std::ptrdiff_t index = 0; index < parts; ++index) {
    const auto at = static_cast<std::size_t>(index);
    sums[at] = squares_of_piece(values.data(), at * part, std::min(values.size(), (at + 1) * part));
  }
  double sum = 0;
  for (std::ptrdiff_t index = 0; index < parts; ++index)
    sum += sums[static_cast<std::size_t>(index)];
  return sum;
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

double sum_of_squares(std::span<const float> values) { return squares(values); }
double sum_of_squares(std::span<const double> values) { return squares(values); }

double clip_factor(double norm, double limit) {
  if (limit <= 0) return 1;
  return std::min(1.0, limit / (norm + 1e-6));
}

}  // namespace pipetrain
