// Float losses as vector loops. Partial sums are stored in the workspace and added in double in a
// fixed order, so that the result does not depend on the number of threads.
#include <algorithm>
#include <limits>

#include "ops/kernel/element_types.h"
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

struct RowLoss {
  float log_sum;  // ln Σ e^x
  float loss;
  bool correct;
};

/// The effect of class weights on one row.
struct WeightedRow {
  float of_label;   // weight of the label
  float mean;       // of the weights
  float mean_of_x;  // of the logits times their weights
};
WeightedRow weighted_row(const CrossEntropy& loss, const float* x, std::int64_t label) {
  const float* __restrict weights = loss.weights.data();
  float sum = 0, sum_of_x = 0;
#pragma omp simd reduction(+ : sum, sum_of_x)
  for (std::int64_t c = 0; c < loss.classes; ++c) {
    sum += weights[c];
    sum_of_x += weights[c] * x[c];
  }
  const auto classes = static_cast<float>(loss.classes);
  return {weights[label], sum / classes, sum_of_x / classes};
}

float row_mean(const float* x, std::int64_t classes) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < classes; ++c) sum += x[c];
  return sum / static_cast<float>(classes);
}

/// The loss of one row; label -1 stands for "ignored".
RowLoss row_loss(const float* x, std::int64_t classes, std::int64_t label, float smoothing) {
  float maximum = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : maximum)
  for (std::int64_t c = 0; c < classes; ++c) maximum = x[c] > maximum ? x[c] : maximum;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < classes; ++c) {
    sum += vector_math::exp_nonpositive(x[c] - maximum);
  }
  const float log_sum = vector_math::log(sum);
  if (label < 0) return {maximum + log_sum, 0, false};
  float target = x[label] - maximum;
  if (smoothing > 0) {
    target = (1 - smoothing) * target + smoothing * (row_mean(x, classes) - maximum);
  }
  // The first of several equal largest elements is the prediction.
  const bool correct = x[label] == maximum && std::find(x, x + label, maximum) == x + label;
  return {maximum + log_sum, log_sum - target, correct};
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
      const std::int64_t label = labels[row] == loss_.ignore_index ? -1 : labels[row];
      const RowLoss result = row_loss(x + row * loss_.classes, loss_.classes, label,
                                      static_cast<float>(loss_.smoothing));
      losses[row] = result.loss;
      if (!loss_.weights.empty() && label >= 0) {
        const float* logits = x + row * loss_.classes;
        const WeightedRow weighted = weighted_row(loss_, logits, label);
        const auto smoothing = static_cast<float>(loss_.smoothing);
        losses[row] = (1 - smoothing) * weighted.of_label * (result.log_sum - logits[label]);
        // Logits of other classes may be minus infinity (masked).
        if (smoothing > 0)
          losses[row] += smoothing * (weighted.mean * result.log_sum - weighted.mean_of_x);
      }
      correct[row] = result.correct ? 1.0f : 0.0f;
      if (log_sums) log_sums[row] = result.log_sum;
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
#pragma omp parallel for schedule(static) if (loss.rows * loss.classes > kParallelElements)
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    // The gradient may be written over the logits.
    const float* x = in[0].as<float>() + row * loss.classes;
    float* dx = out[0].as<float>() + row * loss.classes;
    if (labels[row] == loss.ignore_index) {
      std::fill_n(dx, loss.classes, 0.0f);
      continue;
    }
    const float log_sum = in[2].as<float>()[row];
    if (!loss.weights.empty()) {
      const WeightedRow weighted = weighted_row(loss, x, labels[row]);
      const float* __restrict weights = loss.weights.data();
      const float total = (1 - smoothing) * weighted.of_label + smoothing * weighted.mean;
#pragma omp simd
      for (std::int64_t c = 0; c < loss.classes; ++c) {
        dx[c] = (vector_math::exp_nonpositive(x[c] - log_sum) * total - spread * weights[c]) * gy;
      }
      dx[labels[row]] -= (1 - smoothing) * weighted.of_label * gy;
      continue;
    }
#pragma omp simd
    for (std::int64_t c = 0; c < loss.classes; ++c) {
      dx[c] = (vector_math::exp_nonpositive(x[c] - log_sum) - spread) * gy;
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
