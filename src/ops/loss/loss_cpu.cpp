// Float losses as vector loops. Partial sums are stored in the workspace and added in double in a
// fixed order, so that the result does not depend on the number of threads.
#include <algorithm>
#include <limits>

#include "ops/kernel/element_types.h"
#include "ops/kernel/log_sum.h"
#include "ops/kernel/vector_math_cpu.h"
#include "ops/loss/loss.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;
constexpr std::int64_t kParallelElements = 1 << 14;

void store(Tensors out, std::size_t index, double value) {
  if (auto* to = data_or_null<float>(out, index)) *to = static_cast<float>(value);
}

// --- softmax cross-entropy ---

// Logits count relative to the greatest of their row, or huge ones would lose the digits in which
// they differ.

/// The greatest of a row, and Σ e^(x - greatest).
struct RowSum {
  float greatest, sum;
};
RowSum row_sum(const float* x, std::int64_t classes) {
  float greatest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : greatest)
  for (std::int64_t c = 0; c < classes; ++c) greatest = x[c] > greatest ? x[c] : greatest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < classes; ++c) {
    sum += vector_math::exp_nonpositive(x[c] - greatest);
  }
  return {greatest, sum};
}

/// The mean of x - greatest.
float mean_below(const float* x, std::int64_t classes, float greatest) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < classes; ++c) sum += x[c] - greatest;
  return sum / static_cast<float>(classes);
}

/// The mean of (x - greatest) times the weights of the classes.
float weighted_mean_below(const CrossEntropy& loss, const float* x, float greatest) {
  const float* __restrict weights = loss.weights.data();
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < loss.classes; ++c) sum += weights[c] * (x[c] - greatest);
  return sum / static_cast<float>(loss.classes);
}

/// Of the classes' weights.
float mean_weight(const CrossEntropy& loss) {
  float sum = 0;
  for (const float weight : loss.weights) sum += weight;
  return sum / static_cast<float>(loss.classes);
}

/// The loss of one row; `log_sum`: ln Σ e^(x - greatest).
float row_loss(const CrossEntropy& loss, const float* x, std::int64_t label, float greatest,
               float log_sum) {
  const auto smoothing = static_cast<float>(loss.smoothing);
  float target = x[label] - greatest;
  if (loss.weights.empty()) {
    if (smoothing > 0) {
      target = (1 - smoothing) * target + smoothing * mean_below(x, loss.classes, greatest);
    }
    return log_sum - target;
  }
  const float of_label = loss.weights[static_cast<std::size_t>(label)];
  const float hard = (1 - smoothing) * of_label * (log_sum - target);
  // Logits of other classes may be minus infinity (masked).
  if (smoothing == 0) return hard;
  return hard + smoothing * (mean_weight(loss) * log_sum - weighted_mean_below(loss, x, greatest));
}

/// The probabilities of a row are e^(x - shift) times the factor.
struct RowScale {
  float shift, factor;
};
RowScale row_scale(const float* x, std::int64_t classes, float log_sum) {
  if (!has_lost_digits(log_sum)) return {log_sum, 1};
  const RowSum row = row_sum(x, classes);
  return {row.greatest, 1 / row.sum};
}

class CrossEntropyCpu final : public Kernel {
 public:
  explicit CrossEntropyCpu(CrossEntropy loss) : loss_(loss) {}

  // The loss of each row, then whether the prediction is correct (0 or 1).
  std::size_t workspace_bytes() const override {
    return 2 * sizeof(float) * static_cast<std::size_t>(loss_.rows);
  }

  void run(Tensors in, Tensors out, const RunContext& context) override {
    const auto* labels = in[1].as<std::int64_t>();
    check_labels(loss_, labels);
    const float* x = in[0].as<float>();
    float* log_sums = data_or_null<float>(out, 2);
    auto* losses = reinterpret_cast<float*>(context.workspace);
    float* correct = losses + loss_.rows;
#pragma omp parallel for schedule(static) if (loss_.rows * loss_.classes > kParallelElements)
    for (std::int64_t row = 0; row < loss_.rows; ++row) {
      const float* logits = x + row * loss_.classes;
      const auto [greatest, sum] = row_sum(logits, loss_.classes);
      const float log_sum = vector_math::log(sum);
      if (log_sums) log_sums[row] = greatest + log_sum;
      losses[row] = correct[row] = 0;
      const std::int64_t label = labels[row];
      if (label == loss_.ignore_index) continue;
      losses[row] = row_loss(loss_, logits, label, greatest, log_sum);
      // The first of several equal largest elements is the prediction.
      const bool is_right = logits[label] == greatest &&
                            std::find(logits, logits + label, greatest) == logits + label;
      correct[row] = is_right ? 1.0f : 0.0f;
    }
    double loss_sum = 0;
    double correct_sum = 0;
    for (std::int64_t row = 0; row < loss_.rows; ++row) {
      loss_sum += losses[row];
      correct_sum += correct[row];
    }
    store(out, 0, loss_sum);
    store(out, 1, correct_sum);
  }

 private:
  CrossEntropy loss_;
};

void cross_entropy_gradient(const CrossEntropy& loss, Tensors in, Tensors out) {
  const auto* labels = in[1].as<std::int64_t>();
  check_labels(loss, labels);
  const float gy = *in[3].as<float>();
  const auto smoothing = static_cast<float>(loss.smoothing);
  const float spread = smoothing / static_cast<float>(loss.classes);
  const float mean = loss.weights.empty() ? 1.0f : mean_weight(loss);
#pragma omp parallel for schedule(static) if (loss.rows * loss.classes > kParallelElements)
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    // The gradient may be written over the logits.
    const float* x = in[0].as<float>() + row * loss.classes;
    float* dx = out[0].as<float>() + row * loss.classes;
    if (labels[row] == loss.ignore_index) {
      std::fill_n(dx, loss.classes, 0.0f);
      continue;
    }
    const auto [shift, factor] = row_scale(x, loss.classes, in[2].as<float>()[row]);
    if (!loss.weights.empty()) {
      const float* __restrict weights = loss.weights.data();
      const float of_label = weights[labels[row]];
      const float total = ((1 - smoothing) * of_label + smoothing * mean) * factor;
#pragma omp simd
      for (std::int64_t c = 0; c < loss.classes; ++c) {
        dx[c] = (vector_math::exp_nonpositive(x[c] - shift) * total - spread * weights[c]) * gy;
      }
      dx[labels[row]] -= (1 - smoothing) * of_label * gy;
      continue;
    }
#pragma omp simd
    for (std::int64_t c = 0; c < loss.classes; ++c) {
      dx[c] = (vector_math::exp_nonpositive(x[c] - shift) * factor - spread) * gy;
    }
    dx[labels[row]] -= (1 - smoothing) * gy;
  }
}

std::unique_ptr<Kernel> make_cross_entropy(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return std::make_unique<CrossEntropyCpu>(
      cross_entropy_of(request.node.attributes, request.inputs[0].shape));
}

std::unique_ptr<Kernel> make_cross_entropy_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [loss = cross_entropy_of(request.node.attributes, request.inputs[0].shape)](
          Tensors in, Tensors out, const RunContext&) { cross_entropy_gradient(loss, in, out); });
}

// --- losses of equal shapes ---

constexpr std::int64_t kBlock = 1024;  // elements of one partial sum

struct BinaryCrossEntropy {
  static float loss(float x, float t) {
    const float positive = x > 0.0f ? x : 0.0f;
    const float tail = vector_math::exp_nonpositive(-vector_math::absolute(x));
    return positive - x * t + vector_math::log1p(tail);
  }
  static float slope(float x, float t) { return vector_math::sigmoid(x) - t; }
};
struct SquaredError {
  static float loss(float x, float t) { return (x - t) * (x - t); }
  static float slope(float x, float t) { return 2.0f * (x - t); }
};
struct AbsoluteError {
  static float loss(float x, float t) { return vector_math::absolute(x - t); }
  static float slope(float x, float t) { return x > t ? 1.0f : (x < t ? -1.0f : 0.0f); }
};

template <class Loss>
class PointwiseLossCpu final : public Kernel {
 public:
  explicit PointwiseLossCpu(std::int64_t count)
      : count_(count), blocks_((count + kBlock - 1) / kBlock) {}

  // Loss and number of correct predictions of each block.
  std::size_t workspace_bytes() const override {
    return 2 * sizeof(float) * static_cast<std::size_t>(blocks_);
  }

  void run(Tensors in, Tensors out, const RunContext& context) override {
    const float* x = in[0].as<float>();
    const float* target = in[1].as<float>();
    auto* losses = reinterpret_cast<float*>(context.workspace);
    float* correct = losses + blocks_;
#pragma omp parallel for schedule(static) if (count_ > kParallelElements)
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const std::int64_t end = std::min(count_, (block + 1) * kBlock);
      float loss_sum = 0;
      float right = 0;
#pragma omp simd reduction(+ : loss_sum, right)
      for (std::int64_t i = block * kBlock; i < end; ++i) {
        loss_sum += Loss::loss(x[i], target[i]);
        right += (x[i] > 0.0f) == (target[i] > 0.5f) ? 1.0f : 0.0f;
      }
      losses[block] = loss_sum;
      correct[block] = right;
    }
    double loss_sum = 0;
    double right = 0;
    for (std::int64_t block = 0; block < blocks_; ++block) {
      loss_sum += losses[block];
      right += correct[block];
    }
    store(out, 0, loss_sum);
    store(out, 1, right);
  }

 private:
  std::int64_t count_;
  std::int64_t blocks_;
};

template <class Loss>
std::unique_ptr<Kernel> make_pointwise(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return std::make_unique<PointwiseLossCpu<Loss>>(request.inputs[0].count());
}

template <class Loss>
std::unique_ptr<Kernel> make_pointwise_gradient(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel([](Tensors in, Tensors out, const RunContext&) {
    const std::int64_t count = in[0].count();
    const float* __restrict x = in[0].as<float>();
    const float* __restrict target = in[1].as<float>();
    const float gy = *in[2].as<float>();
    float* __restrict dx = out[0].as<float>();
#pragma omp parallel for simd schedule(static) if (count > kParallelElements)
    for (std::int64_t i = 0; i < count; ++i) dx[i] = Loss::slope(x[i], target[i]) * gy;
  });
}

constexpr KernelEntry kKernels[] = {
    {"AbsoluteError", make_pointwise<AbsoluteError>},
    {"AbsoluteErrorGrad", make_pointwise_gradient<AbsoluteError>},
    {"BinaryCrossEntropy", make_pointwise<BinaryCrossEntropy>},
    {"BinaryCrossEntropyGrad", make_pointwise_gradient<BinaryCrossEntropy>},
    {"SoftmaxCrossEntropy", make_cross_entropy},
    {"SoftmaxCrossEntropyGrad", make_cross_entropy_gradient},
    {"SquaredError", make_pointwise<SquaredError>},
    {"SquaredErrorGrad", make_pointwise_gradient<SquaredError>},
};

}  // namespace

std::span<const KernelEntry> loss_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
