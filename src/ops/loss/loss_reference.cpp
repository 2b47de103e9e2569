// Plain loops for the losses; every sum is carried in double from the first element to the last.
#include <algorithm>
#include <cmath>

#include "ops/kernel/element_types.h"
#include "ops/kernel/log_sum.h"
#include "ops/loss/loss.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;

template <class T>
void store(Tensors out, std::size_t index, double value) {
  if (T* to = data_or_null<T>(out, index)) *to = static_cast<T>(value);
}

template <class T>
void cross_entropy(const CrossEntropy& loss, Tensors in, Tensors out) {
  const auto* labels = in[1].as<std::int64_t>();
  check_labels(loss, labels);
  T* log_sums = data_or_null<T>(out, 2);
  double loss_sum = 0;
  double correct = 0;
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    const T* x = in[0].as<T>() + row * loss.classes;
    const T* best = std::max_element(x, x + loss.classes);
    double sum = 0;
    double mean = 0;  // of the logits, by the weights of their classes
    double mean_weight = 0;
    const auto weight = [&](std::int64_t c) {
      return loss.weights.empty() ? 1.0 : loss.weights[static_cast<std::size_t>(c)];
    };
    for (std::int64_t c = 0; c < loss.classes; ++c) {
      sum += std::exp(static_cast<double>(x[c]) - static_cast<double>(*best));
      mean += weight(c) * x[c] / static_cast<double>(loss.classes);
      mean_weight += weight(c) / static_cast<double>(loss.classes);
    }
    const double log_sum = static_cast<double>(*best) + std::log(sum);
    if (log_sums) log_sums[row] = static_cast<T>(log_sum);
    if (labels[row] == loss.ignore_index) continue;
    loss_sum += (1 - loss.smoothing) * weight(labels[row]) * (log_sum - x[labels[row]]);
    // Logits of other classes may be minus infinity (masked).
    if (loss.smoothing > 0) loss_sum += loss.smoothing * (mean_weight * log_sum - mean);
    correct += best - x == labels[row] ? 1 : 0;
  }
  store<T>(out, 0, loss_sum);
  store<T>(out, 1, correct);
}

/// The probabilities of a row are e^(x - shift) / sum.
struct RowScale {
  double shift, sum;
};
template <class T>
RowScale row_scale(const T* x, std::int64_t classes, double log_sum) {
  if (!has_lost_digits(static_cast<float>(log_sum))) return {log_sum, 1};
  RowScale out{static_cast<double>(*std::max_element(x, x + classes)), 0};
  for (std::int64_t c = 0; c < classes; ++c)
    out.sum += std::exp(static_cast<double>(x[c]) - out.shift);
  return out;
}

template <class T>
void cross_entropy_gradient(const CrossEntropy& loss, Tensors in, Tensors out) {
  const auto* labels = in[1].as<std::int64_t>();
  check_labels(loss, labels);
  const double gy = *in[3].as<T>();
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    const T* x = in[0].as<T>() + row * loss.classes;
    T* dx = out[0].as<T>() + row * loss.classes;
    if (labels[row] == loss.ignore_index) {
      std::fill_n(dx, loss.classes, T{0});
      continue;
    }
    const auto weight = [&](std::int64_t c) {
      return loss.weights.empty() ? 1.0 : loss.weights[static_cast<std::size_t>(c)];
    };
    const double spread = loss.smoothing / static_cast<double>(loss.classes);
    const auto [shift, sum] = row_scale(x, loss.classes, in[2].as<T>()[row]);
    double total = (1 - loss.smoothing) * weight(labels[row]);  // of the targets
    for (std::int64_t c = 0; c < loss.classes; ++c) total += spread * weight(c);
    for (std::int64_t c = 0; c < loss.classes; ++c) {
      const double probability = std::exp(static_cast<double>(x[c]) - shift) / sum;
      const double target = ((c == labels[row] ? 1 - loss.smoothing : 0.0) + spread) * weight(c);
      dx[c] = static_cast<T>((probability * total - target) * gy);
    }
  }
}

/// ln(1 + e^x) - t x, written so that nothing overflows.
double binary_cross_entropy(double x, double t) {
  return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::fabs(x)));
}
double squared_error(double x, double t) { return (x - t) * (x - t); }
double absolute_error(double x, double t) { return std::fabs(x - t); }

double binary_cross_entropy_slope(double x, double t) { return 1 / (1 + std::exp(-x)) - t; }
double squared_error_slope(double x, double t) { return 2 * (x - t); }
double absolute_error_slope(double x, double t) { return x > t ? 1 : (x < t ? -1 : 0); }

using Pointwise = double (*)(double x, double target);

template <class T, Pointwise loss>
void pointwise(Tensors in, Tensors out) {
  const std::span<const T> x = in[0].span<T>();
  const std::span<const T> target = in[1].span<T>();
  double loss_sum = 0;
  double correct = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    loss_sum += loss(x[i], target[i]);
    correct += (x[i] > 0) == (target[i] > T{0.5}) ? 1 : 0;
  }
  store<T>(out, 0, loss_sum);
  store<T>(out, 1, correct);
}

template <class T, Pointwise slope>
void pointwise_gradient(Tensors in, Tensors out) {
  const std::span<const T> x = in[0].span<T>();
  const std::span<const T> target = in[1].span<T>();
  const double gy = *in[2].as<T>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[0].as<T>()[i] = static_cast<T>(slope(x[i], target[i]) * gy);
  }
}

template <bool kGradient>
std::unique_ptr<Kernel> make_cross_entropy(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([loss = cross_entropy_of(request.node.attributes, request.inputs[0].shape)](
                           Tensors in, Tensors out, const RunContext&) {
      kGradient ? cross_entropy_gradient<T>(loss, in, out) : cross_entropy<T>(loss, in, out);
    });
  });
}

template <Pointwise loss, bool kGradient>
std::unique_ptr<Kernel> make_pointwise(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double>(request.inputs[0].dtype, [&]<class T>() {
    return make_kernel([](Tensors in, Tensors out, const RunContext&) {
      kGradient ? pointwise_gradient<T, loss>(in, out) : pointwise<T, loss>(in, out);
    });
  });
}

constexpr KernelEntry kLossReferenceKernels[] = {
    {"AbsoluteError", make_pointwise<absolute_error, false>},
    {"AbsoluteErrorGrad", make_pointwise<absolute_error_slope, true>},
    {"BinaryCrossEntropy", make_pointwise<binary_cross_entropy, false>},
    {"BinaryCrossEntropyGrad", make_pointwise<binary_cross_entropy_slope, true>},
    {"SoftmaxCrossEntropy", make_cross_entropy<false>},
    {"SoftmaxCrossEntropyGrad", make_cross_entropy<true>},
    {"SquaredError", make_pointwise<squared_error, false>},
    {"SquaredErrorGrad", make_pointwise<squared_error_slope, true>},
};

}  // namespace

std::span<const KernelEntry> loss_reference_kernels() { return kLossReferenceKernels; }

}  // namespace pipetrain
