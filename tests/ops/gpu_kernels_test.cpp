// Cases for GPU kernels whose operators have none small enough for the emulator elsewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "support/emulated_kernels.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

const InputSpec kX{{9, 11}}, kTarget{{9, 11}, 0, 1}, kOne{{}, 0.5, 1.5};

TEST(GpuKernels, Losses) {
  for (const std::string loss : {"AbsoluteError", "BinaryCrossEntropy", "SquaredError"}) {
    check_cpu(loss, {}, {kX, kTarget});
    check_cpu(loss + "Grad", {}, {kX, kTarget, kOne});
  }
  const InputSpec labels{{9}, 0, 0, DType::kInt64, {0, 10, 3, -100, 5, 5, 1, -100, 2}};
  const InputSpec log_sums{{9}, 2, 3};
  for (const double smoothing : {0.0, 0.1}) {
    const Attributes attributes = {{"ignore_index", std::int64_t{-100}},
                                   {"label_smoothing", smoothing}};
    check_cpu("SoftmaxCrossEntropy", attributes, {kX, labels});
    check_cpu("SoftmaxCrossEntropyGrad", attributes, {kX, labels, log_sums, kOne});
  }
}

TEST(GpuKernels, SoftmaxGradients) {
  for (const std::int64_t axis : {0, 1, 2}) {
    for (const std::string op : {"Softmax", "LogSoftmax"}) {
      check_cpu(op, {{"axis", axis}}, {{{3, 40, 5}}});
      check_cpu(op + "Grad", {{"axis", axis}}, {{{3, 40, 5}}, {{3, 40, 5}, 0.1, 0.9}});
    }
  }
}

TEST(GpuKernels, AttentionGradients) {
  const InputSpec q{{2, 4, 5, 8}}, k{{2, 2, 7, 8}}, v{{2, 2, 7, 6}}, y{{2, 4, 5, 6}};
  const InputSpec lse{{2, 4, 5}, 1, 2}, mask{{1, 1, 5, 7}},
      lengths{{2}, 0, 0, DType::kInt64, {7, 4}};
  InputSpec absent;
  absent.absent = true;
  for (const Attributes& attributes :
       {Attributes{}, Attributes{{"causal", std::int64_t{1}}}, Attributes{{"softcap", 2.0}}}) {
    check_cpu("AttentionGrad", attributes, {y, q, k, v, mask, lengths, y, lse});
    check_cpu("AttentionGrad", attributes, {y, q, k, v, absent, absent, y, lse});
  }
}

TEST(GpuKernels, ComparisonsAndRemainders) {
  for (const std::string op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}) {
    const InputSpec few{{3, 4}, 0, 0, DType::kFloat32, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}};
    check_cpu(op, {}, {few, {{4}, 0, 0, DType::kFloat32, {1, 1, 2, 0}}});
  }
  check_cpu("Mod", {{"fmod", std::int64_t{1}}}, {{{3, 4}, -5, 5}, {{4}, 1, 2}});
}

TEST(GpuKernels, SumsAndRows) {
  for (const std::size_t count : {2, 3, 5})
    check_cpu("Sum", {}, std::vector<InputSpec>(count, InputSpec{{7, 31}}), 1e-6);
  const InputSpec rows{{2, 3}, 0, 0, DType::kInt64, {0, 4, -1, 2, 2, -5}};
  for (const std::int64_t axis : {0, 1}) check_cpu("Gather", {{"axis", axis}}, {{{5, 5, 6}}, rows});
}

// cuDNN's batch normalization keeps inverse deviations and knows no Relu in its gradient.
TEST(GpuKernels, AroundBatchNormOfALibrary) {
  AroundBatchNorm given{3,
                        4,
                        50,
                        1e-5F,
                        {},
                        {},
                        {1, -2, 0.5F, 1},
                        {0, 1, -3, 0},
                        {4, 0.25F, 1e-7F, 0},
                        {0, 0.5F, -1, 0}};
  for (int i = 0; i < 3 * 4 * 50; ++i) {
    given.dy.push_back(static_cast<float>(i + 1));
    given.x.push_back(static_cast<float>(i * 37 % 101) / 25 - 2);
  }
  const auto [variance, inverse, passed] = emulated_around_batch_norm(given);
  for (std::size_t c = 0; c < 4; ++c) {
    EXPECT_NEAR(variance[c], given.variance[c], 1e-11 + given.variance[c] * 1e-6) << c;
    EXPECT_NEAR(inverse[c] * std::sqrt(given.variance[c] + 1e-5), 1, 1e-6) << c;
  }
  int kept = 0;
  for (std::size_t i = 0; i < given.dy.size(); ++i) {
    const std::size_t c = i / 50 % 4;
    const double y =
        (given.x[i] - given.mean[c]) / std::sqrt(given.variance[c] + 1e-5) * given.scale[c] +
        given.bias[c];
    if (std::abs(y) < 1e-5) continue;
    EXPECT_EQ(passed[i], y > 0 ? given.dy[i] : 0) << i;
    kept += y > 0;
  }
  EXPECT_GT(kept, 100);
  EXPECT_LT(kept, 500);
}

// Each with channels last, too, and so many that threads move groups of eight.
TEST(GpuKernels, Pictures) {
  const InputSpec x{{2, 8, 5, 6}}, more{{2, 40, 3, 2}}, channel{{40}}, positive{{40}, 0.5, 2};
  const Attributes window = {
      {"kernel", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}};
  Attributes back = window;
  back.set("shape", Ints{2, 8, 5, 6});
  const Shape pooled = infer_op("AveragePool", window, {{DType::kFloat32, {2, 8, 5, 6}}})[0].shape;
  const HostTensor index =
      run_op("MaxPool", window, {random_tensor({DType::kFloat32, {2, 8, 5, 6}}, 3)})[1];
  InputSpec places{pooled, 0, 0, DType::kInt32};
  places.values = index.to_doubles();
  for (const std::string op : {"MaxPool", "AveragePool"}) check_cpu(op, window, {x});
  check_cpu("MaxPoolGrad", back, {{pooled}, places});
  check_cpu("AveragePoolGrad", back, {{pooled}});
  check_cpu("BatchNorm", {{"epsilon", 1e-5}}, {more, channel, channel});
  check_cpu("BatchNormGrad", {{"epsilon", 1e-5}}, {more, more, channel, channel, positive}, 1e-4);
  check_cpu("BatchNormInference", {{"epsilon", 1e-5}}, {more, channel, channel, channel, positive});
  check_cpu("Concat", {{"axis", std::int64_t{1}}}, {x, {{2, 3, 5, 6}}, x}, 0);
  check_cpu("Split", {{"axis", std::int64_t{1}}, {"sizes", Ints{3, 5}}}, {x}, 0);
  const Attributes slice = {
      {"starts", Ints{2}}, {"ends", Ints{8}}, {"axes", Ints{1}}, {"steps", Ints{2}}};
  Attributes whole = slice;
  whole.set("shape", Ints{2, 8, 5, 6});
  check_cpu("Slice", slice, {x}, 0);
  check_cpu("SliceGrad", whole, {{{2, 3, 5, 6}}}, 0);
  for (const std::string op : {"Relu", "Gelu"}) check_cpu(op, {}, {x});
  check_cpu("ReluGrad", {}, {x, x});
  check_cpu("Sum", {}, {x, x, x});
  check_cpu("ReduceMean", {{"axes", Ints{2, 3}}, {"keepdims", std::int64_t{1}}}, {x});
}

TEST(GpuKernels, Dropout) {
  RunContext context;
  context.seed = 7;
  context.step = 3;
  context.first_sample = 5;
  context.samples = 3;
  check_cpu("Dropout", {{"ratio", 0.4}, {"key", std::int64_t{99}}}, {{{3, 77}}}, 1e-6, context);
}

}  // namespace
}  // namespace pipetrain::test
