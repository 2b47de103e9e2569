// Cases for GPU kernels whose other tests are too large for the emulator.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

HostTensor as_bfloat16(const HostTensor& wide) {
  HostTensor out(TensorType{DType::kBFloat16, wide.shape()});
  for (std::size_t i = 0; i < wide.span<float>().size(); ++i)
    out.view().as<std::uint16_t>()[i] = float_to_bfloat16(wide.span<float>()[i]);
  return out;
}

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

TEST(GpuKernels, AbsoluteErrorHasNoGradientAtZero) {
  InputSpec x{{4}}, target{{4}};
  x.values = {1, 2, 3, -1};
  target.values = {1, 3, 2, -1};
  check_cpu("AbsoluteErrorGrad", {}, {x, target, kOne});
}

// Both predictions are correct if the first of equal logits wins, and wrong if the last does.
TEST(GpuKernels, CrossEntropyTakesTheFirstOfEqualLogits) {
  InputSpec logits{{2, 4}};
  logits.values = {1, 3, 3, 0, 2, 2, 2, 2};
  const InputSpec labels{{2}, 0, 0, DType::kInt64, {1, 0}};
  const Attributes attributes = {{"ignore_index", std::int64_t{-100}}};
  check_cpu("SoftmaxCrossEntropy", attributes, {logits, labels});
  const HostTensor x = floats({2, 4}, {1, 3, 3, 0, 2, 2, 2, 2});
  expect_values(run_op("SoftmaxCrossEntropy", attributes, {x, int64s({2}, {1, 0})})[1], {}, {2});
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
  for (const std::size_t count : {1, 2, 3, 4, 5, 17, 64}) {
    for (const std::int64_t columns : {31, 32})  // one by one, and eight at once
      check_cpu("Sum", {}, std::vector<InputSpec>(count, InputSpec{{7, columns}}), 1e-6);
  }
  const InputSpec rows{{2, 3}, 0, 0, DType::kInt64, {0, 4, -1, 2, 2, -5}};
  for (const std::int64_t axis : {0, 1}) check_cpu("Gather", {{"axis", axis}}, {{{5, 5, 6}}, rows});
}

// 200 rows are reduced in chunks of 128 first.
TEST(GpuKernels, ReductionsOfSeveralChunks) {
  for (const char* op : {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"}) {
    check_cpu(op, {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}, {{{200, 3}}});
  }
}

// cuDNN's batch normalization returns inverse deviations and supports no Relu in its gradient.
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
                        {0, 0.5F, -1, 0},
                        false};
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
  AroundBatchNorm last = given;
  last.channels_last = true;
  const auto place = [](std::size_t i) { return (i / 200 * 50 + i % 50) * 4 + i / 50 % 4; };
  for (std::size_t i = 0; i < given.x.size(); ++i) {
    last.dy[place(i)] = given.dy[i];
    last.x[place(i)] = given.x[i];
  }
  const std::vector<float> passed_last = emulated_around_batch_norm(last)[2];
  for (std::size_t i = 0; i < passed.size(); ++i) EXPECT_EQ(passed_last[place(i)], passed[i]) << i;
}

// Also channels last, with enough channels for groups of eight.
TEST(GpuKernels, FeatureMaps) {
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
  for (const Ints& shape : {Ints{2, 8, 1, 1}, Ints{8, 1, 1}})
    check_cpu("SumTo", {{"shape", shape}}, {x});
}

/// For an operator without a CPU kernel.
void expect_reference_numbers(std::string_view op, const Attributes& attributes,
                              const std::vector<HostTensor>& inputs) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  KernelRequest request{node, {}, {}};
  std::vector<Tensor> in;
  for (const HostTensor& input : inputs) {
    request.inputs.push_back(input.type());
    in.push_back(input.view());
  }
  request.outputs = infer_op(op, attributes, request.inputs);
  const auto kernel = make_gpu_kernel(request);
  ASSERT_NE(kernel, nullptr) << op;
  HostTensor result(request.outputs[0]);
  const Tensor out = result.view();
  kernel->run(in, {&out, 1}, {});
  expect_close(result, run_node(Backend::kReference, node, inputs, request.outputs)[0], 1e-5, op);
  if (const char* log = std::getenv("PIPETRAIN_EMULATED_LOG"))
    std::ofstream(log, std::ios::app) << op << "\n";
}

// Recurrent kernels of GPUs: every activation, clips, lengths, peepholes; more units and samples
// than a block.
TEST(GpuKernels, Recurrences) {
  const auto lengths = [](std::int64_t samples) {
    InputSpec out{{samples}, 0, 1, DType::kInt32};
    for (std::int64_t n = 0; n < samples; ++n) out.values.push_back(static_cast<double>(n * 2 % 4));
    return out;
  };
  InputSpec none;
  none.absent = true;
  const auto layer = [](const std::string& activations, std::int64_t reverse) {
    return Attributes{{"activations", activations}, {"reverse", reverse}};
  };
  for (const auto& [t, n, h] : {std::array<std::int64_t, 3>{3, 18, 5}, {3, 2, 18}}) {
    const InputSpec r4{{4 * h, h}, -0.3, 0.3}, r3{{3 * h, h}, -0.3, 0.3}, r1{{h, h}, -0.3, 0.3};
    const InputSpec sequence{{t, n, h}}, state{{n, h}}, peepholes{{3 * h}}, ends = lengths(n);
    const InputSpec activated4{{t, n, 4 * h}, 0.1, 0.9}, activated3{{t, n, 3 * h}, 0.1, 0.9};
    const InputSpec gates4{{t, n, 4 * h}, -3, 3}, gates3{{t, n, 3 * h}, -3, 3};
    for (const std::int64_t reverse : {0, 1}) {
      Attributes lstm = layer("Sigmoid,Tanh,Tanh", reverse);
      lstm.set(reverse ? "clip" : "input_forget",
               reverse ? Attributes::Value(0.7) : std::int64_t{1});
      check_cpu("Lstm", lstm, {gates4, r4, state, state, peepholes, ends}, 2e-5);
      check_cpu("LstmGrad", lstm,
                {sequence, state, state, r4, activated4, sequence, state, peepholes, ends}, 2e-5);
      expect_reference_numbers(
          "LstmPeepholeGrad", lstm,
          {random_tensor({DType::kFloat32, {t, n, 4 * h}}, 1),
           random_tensor({DType::kFloat32, {t, n, h}}, 2),
           random_tensor({DType::kFloat32, {n, h}}, 3),
           HostTensor::of<std::int32_t>(
               {n}, std::vector<std::int32_t>(ends.values.begin(), ends.values.end()))});
      check_cpu("RecurrentWeightGrad", lstm, {gates4, sequence, state, none, ends}, 2e-5);
      for (const std::int64_t after : {0, 1}) {
        Attributes gru = layer("Sigmoid,Tanh", reverse);
        gru.set("linear_before_reset", after);
        check_cpu("Gru", gru, {gates3, r3, after ? InputSpec{{h}} : none, state, ends}, 2e-5);
        check_cpu("GruGrad", gru,
                  {sequence, state, r3, activated3, sequence, sequence, state, ends}, 2e-5);
        check_cpu("GruGrad", gru, {sequence, none, r3, activated3, sequence, sequence}, 2e-5);
      }
      check_cpu("RecurrentWeightGrad", layer("", reverse),
                {gates3, sequence, state, sequence, ends}, 2e-5);
    }
    check_cpu("Rnn", layer("Relu", 1), {{{t, n, h}, -2, 2}, r1, state, ends}, 2e-5);
  }
  for (const char* name : {"Sigmoid", "Tanh", "Affine", "LeakyRelu", "ThresholdedRelu",
                           "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus"}) {
    Attributes rnn = layer(name, 0);
    rnn.set("alpha", Reals{0.3});
    rnn.set("beta", Reals{0.6});
    check_cpu("Rnn", rnn, {{{2, 3, 4}, -2, 2}, {{4, 4}, -0.3, 0.3}}, 2e-5);
    check_cpu("RnnGrad", rnn, {{{2, 3, 4}}, none, {{4, 4}, -0.3, 0.3}, {{2, 3, 4}, 0.05, 0.25}},
              2e-5);
  }
}

/// A product with its epilogue, in parts under the emulator; nothing if there is no kernel.
std::vector<HostTensor> run_product(const KernelRequest& request,
                                    const std::vector<HostTensor>& inputs, bool separate_bias) {
  const auto kernel = device_under_test() ? make_gpu_kernel(request)
                                          : make_product_in_parts(request, separate_bias);
  if (!kernel) return {};
  Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  std::vector<Tensor> in, out;
  std::vector<HostTensor> results;
  for (const HostTensor& input : inputs) in.push_back(input.view());
  for (const TensorType& type : request.outputs) {
    results.emplace_back(type);
    out.push_back(results.back().view());
  }
  kernel->run(in, out, context);
  return results;
}

// If the library has the product but not its epilogue; on a GPU, whatever it has.
TEST(GpuKernels, BesideProducts) {
  struct Case {
    std::string op;
    Attributes attributes;
    std::vector<Shape> inputs;
    std::size_t results;
    bool asked;
  };
  const auto function = [](const std::string& name, const std::string& approximate) {
    return Attributes{{"activation", name}, {"approximate", approximate}};
  };
  const auto sums = [](std::int64_t summed) {
    return Attributes{
        {"summed", summed}, {"trans_a", std::int64_t{summed == 0}}, {"trans_b", std::int64_t{0}}};
  };
  Attributes transposed = sums(1);
  transposed.set("trans_a", std::int64_t{1});
  const Case cases[] = {
      {"MatMul", {}, {{9, 5}, {5, 16}, {16}}, 1, false},
      {"MatMul", {}, {{3, 4, 5}, {3, 5, 15}, {15}}, 1, false},
      {"MatMulActivation", function("Relu", "none"), {{9, 5}, {5, 16}, {16}}, 1, false},
      {"MatMulActivation", function("Relu", "none"), {{9, 5}, {5, 16}}, 2, false},
      {"MatMulActivation", function("Gelu", "tanh"), {{9, 5}, {5, 16}, {16}}, 2, true},
      {"MatMulActivation", function("Gelu", "tanh"), {{9, 5}, {5, 15}, {15}}, 1, true},
      {"MatMulActivation", function("Gelu", "tanh"), {{9, 5}, {5, 15}, {15}}, 2, false},
      {"MatMulActivation", function("Gelu", "none"), {{3, 4, 5}, {5, 16}, {16}}, 2, false},
      {"MatMulActivation", function("Gelu", "tanh"), {{3, 4, 5}, {3, 5, 16}}, 2, false},
      {"MatMulSums", sums(0), {{70, 6}, {70, 4}}, 2, true},
      {"MatMulSums", transposed, {{70, 6}, {70, 4}}, 2, true},
      {"MatMulSums", sums(1), {{6, 70}, {70, 4}}, 2, true}};
  for (const Case& c : cases) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Node node;
      node.op = find_op(c.op);
      node.attributes = c.attributes;
      SCOPED_TRACE(c.op + " " + c.attributes.to_text());
      std::vector<HostTensor> inputs, expected;
      KernelRequest request{node, {}, {}};
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        const HostTensor wide = random_tensor({DType::kFloat32, c.inputs[i]}, i + 1);
        inputs.push_back(i < 2 && dtype == DType::kBFloat16 ? as_bfloat16(wide) : wide);
        request.inputs.push_back(inputs.back().type());
      }
      std::vector<TensorType> operands = request.inputs;
      if (c.op == "MatMul") operands.pop_back();  // the bias is float beside narrow operands
      std::vector<TensorType> types = infer_op(c.op, c.attributes, operands);
      // Weights' gradients and those of biases are float.
      if (c.op == "MatMulSums") types[0].dtype = types[1].dtype = DType::kFloat32;
      types.resize(c.results);
      request.outputs = types;
      EXPECT_EQ(library_is_asked(request), c.asked);
      expected = run_node(Backend::kReference, node, inputs, types);
      for (const bool separate_bias : {false, true}) {
        const std::vector<HostTensor> results = run_product(request, inputs, separate_bias);
        ASSERT_EQ(results.size(), expected.size());
        for (std::size_t i = 0; i < results.size(); ++i)
          expect_close(as_float(results[i], DType::kFloat32),
                       as_float(expected[i], DType::kFloat32),
                       types[i].dtype == DType::kFloat32 ? 1e-5 : 0.02, "a product in parts");
      }
    }
  }
}

TEST(GpuKernels, BesideProductsReluKeepsNotANumber) {
  Node node;
  node.op = find_op("MatMulActivation");
  node.attributes = {{"activation", std::string("Relu")}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    HostTensor x = random_tensor({DType::kFloat32, {9, 5}}, 1);
    x.span<float>()[7] = std::numeric_limits<float>::quiet_NaN();
    std::vector<HostTensor> inputs;
    for (const HostTensor& wide : {x, random_tensor({DType::kFloat32, {5, 16}}, 2)})
      inputs.push_back(dtype == DType::kBFloat16 ? as_bfloat16(wide) : wide);
    inputs.push_back(random_tensor({DType::kFloat32, {16}}, 3));
    const KernelRequest request = request_of(node, inputs, {TensorType{dtype, {9, 16}}});
    const std::vector<HostTensor> results = run_product(request, inputs, /*separate_bias=*/false);
    ASSERT_EQ(results.size(), 1U);
    const HostTensor y = as_float(results[0], DType::kFloat32);
    for (std::size_t i = 0; i < y.span<float>().size(); ++i)
      EXPECT_EQ(std::isnan(y.span<float>()[i]), i / 16 == 1) << i;
  }
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
