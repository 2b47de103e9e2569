#include "passes/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "onnx_io/builder.h"
#include "onnx_io/reader.h"
#include "passes/build.h"
#include "passes/execute.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kRows = 3, kClasses = 4;

/// logits = x w, for two inputs and four classes.
OnnxModel linear_classifier() {
  OnnxBuilder builder("linear");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 2}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", kClasses}});
  HostTensor w(TensorType{DType::kFloat32, Shape{2, kClasses}});
  int next = 0;
  for (float& value : w.span<float>()) value = 0.3F * static_cast<float>((++next * 5) % 7 - 3);
  builder.initializer("w", w);
  builder.node("MatMul", {"x", "w"}, {"logits"}, {}, "product");
  const std::string bytes = builder.bytes();
  return read_onnx_bytes(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

TrainingGraph with_loss(const OnnxModel& model, const LossOptions& loss) {
  BuildOptions options;
  options.lower.micro_batch = kRows;
  options.loss = loss;
  return build_training_graph(model, classify_tensors(model, {}), options);
}

// Against the definition, -sum p log softmax(x w), and its derivative, in double.
TEST(Loss, OfMixedLabelsIsTheCrossEntropyWithProbabilities) {
  const OnnxModel model = linear_classifier();
  const TrainingGraph training = with_loss(model, {.mixed_labels = true});
  EXPECT_TRUE(training.loss.mixed);
  EXPECT_EQ(training.loss.classes, kClasses);
  EXPECT_EQ(training.loss.elements_per_sample, 1);
  HostTensor x(TensorType{DType::kFloat32, Shape{kRows, 2}}),
      target(TensorType{DType::kFloat32, Shape{kRows, kClasses}}),
      scale(TensorType{DType::kFloat32, Shape{}});
  const float inputs[] = {1, -2, 0.5F, 3, -1, 0.25F};
  const float shares[] = {0.7F, 0.3F, 0, 0, 0.05F, 0.05F, 0.85F, 0.05F, 0, 0, 0, 1};
  std::copy(std::begin(inputs), std::end(inputs), x.span<float>().begin());
  std::copy(std::begin(shares), std::end(shares), target.span<float>().begin());
  scale.span<float>()[0] = 0.5F;
  const auto w = training.graph[training.parameters[0].value].data.span<const float>();
  double loss = 0, gradient[2 * kClasses] = {};
  for (int r = 0; r < kRows; ++r) {
    double logits[kClasses], sum = 0;
    for (int c = 0; c < kClasses; ++c) {
      logits[c] = static_cast<double>(inputs[2 * r]) * w[c] +
                  static_cast<double>(inputs[2 * r + 1]) * w[kClasses + c];
      sum += std::exp(logits[c]);
    }
    for (int c = 0; c < kClasses; ++c) {
      loss -= shares[r * kClasses + c] * (logits[c] - std::log(sum));
      const double slope = std::exp(logits[c]) / sum - shares[r * kClasses + c];
      for (int i = 0; i < 2; ++i) gradient[i * kClasses + c] += 0.5 * slope * inputs[2 * r + i];
    }
  }
  const auto got = execute(training.graph, Backend::kReference,
                           {{training.inputs[0].value, x},
                            {training.loss.label, target},
                            {training.loss.loss_scale, scale}},
                           {training.loss.loss_sum, training.accumulations[0].contribution});
  EXPECT_NEAR(got[0].span<const float>()[0], loss, 1e-5);
  for (std::size_t i = 0; i < 2 * kClasses; ++i)
    EXPECT_NEAR(got[1].span<const float>()[i], gradient[i], 1e-5);
}

TEST(Loss, OfMixedLabelsHasNoClassWeights) {
  const OnnxModel model = linear_classifier();
  test::expect_error(ErrorKind::kUsage, "class-weights", [&] {
    with_loss(model, {.class_weights = {1, 1, 2, 1}, .mixed_labels = true});
  });
}

}  // namespace
}  // namespace pipetrain
