// Batch normalization against values computed by hand, central differences, and the CPU kernels
// against the reference in every layout.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "base/vectors.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {
      {4, 3, 2, 5}, {8, 16},         {6, 5},          {3, 16, 7, 7},  {2, 32, 1, 1},   {5, 8, 1, 1},
      {2, 4, 9},    {2, 3, 2, 3, 4}, {2, 16, 40, 33}, {70, 16, 3, 1}, {3, 2, 130, 130}};
  return list;
}

Attributes epsilon(double value) { return {{"epsilon", value}}; }

TEST(BatchNormTest, KnownNumbers) {
  // Channel 0 holds 1, 2, 3, 6 (mean 3, variance 3.5), channel 1 holds 5 everywhere.
  const HostTensor x = floats({2, 2, 2}, {1, 2, 5, 5, 3, 6, 5, 5});
  const HostTensor scale = floats({2}, {2, 3});
  const HostTensor bias = floats({2}, {10, 20});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("BatchNorm", epsilon(0.5), {x, scale, bias}, backend);
    expect_values(out[0], {2, 2, 2}, {8, 9, 20, 20, 10, 13, 20, 20});
    expect_values(out[1], {2}, {3, 5});
    expect_values(out[2], {2}, {3.5, 0});
    const auto fixed = run_op("BatchNormInference", epsilon(0),
                              {x, scale, bias, floats({2}, {1, 3}), floats({2}, {4, 16})}, backend);
    expect_values(fixed[0], {2, 2, 2}, {10, 11, 21.5, 21.5, 12, 15, 21.5, 21.5});
  }
}

TEST(BatchNormTest, Gradients) {
  for (const Shape& x : shapes()) {
    if (x.count() > 1000) continue;
    const Shape channel{x[1]};
    check_gradients("BatchNorm", epsilon(1e-3), {{x}, {channel}, {channel}});
    const InputSpec mean{.shape = channel, .differentiate = false};
    const InputSpec variance{.shape = channel, .low = 0.5, .high = 2, .differentiate = false};
    check_gradients("BatchNormInference", epsilon(1e-3),
                    {{x}, {channel}, {channel}, mean, variance});
  }
}

TEST(BatchNormTest, CpuAgreesWithReference) {
  for (const Shape& shape : shapes()) {
    const InputSpec x{.shape = shape, .low = -2, .high = 5};
    const InputSpec channel{.shape = {shape[1]}};
    const InputSpec positive{.shape = {shape[1]}, .low = 0.5, .high = 2};
    check_cpu("BatchNorm", epsilon(1e-5), {x, channel, channel}, 1e-4);
    check_cpu("BatchNormInference", epsilon(1e-5), {x, channel, channel, channel, positive});
    check_cpu("BatchNormGrad", epsilon(1e-5), {{shape}, x, channel, channel, positive}, 1e-4);
    check_cpu("BatchNormInferenceGrad", epsilon(1e-5), {{shape}, x, channel, channel, positive},
              1e-4);
    const Attributes clipped{{"epsilon", 1e-5}, {"clip_min", -0.5}, {"clip_max", 0.75}};
    check_cpu("BatchNorm", clipped, {x, channel, channel}, 1e-4);
    check_cpu("BatchNormGrad", clipped, {{shape}, x, channel, channel, positive, channel}, 1e-4);
  }
}

TEST(BatchNormTest, AddsAResidualBeforeItClips) {
  const Attributes rectified{{"epsilon", 1e-5}, {"clip_min", 0.0}, {"clip_open", std::int64_t{1}}};
  for (const Shape& shape : shapes()) {
    const HostTensor x = random_tensor({DType::kFloat64, shape}, 1);
    const HostTensor residual = random_tensor({DType::kFloat64, shape}, 2);
    const HostTensor scale = random_tensor({DType::kFloat64, {shape[1]}}, 3);
    const HostTensor bias = random_tensor({DType::kFloat64, {shape[1]}}, 4);
    const auto z = run_op("BatchNorm", epsilon(1e-5), {x, scale, bias});
    const HostTensor sum = run_op("Add", {}, {z[0], residual})[0];
    const HostTensor y = run_op("Relu", {}, {sum})[0];
    std::vector<HostTensor> in = {x, scale, bias, residual};
    expect_close(run_op("BatchNorm", epsilon(1e-5), in)[0], sum, 1e-12);
    expect_close(run_op("BatchNorm", rectified, in)[0], y, 1e-12);
    for (HostTensor& input : in) input = as_float(input, DType::kFloat32);
    const auto on_cpu = [&](const Attributes& attributes) {
      return as_float(run_op("BatchNorm", attributes, in, Backend::kCpu)[0], DType::kFloat64);
    };
    expect_close(on_cpu(epsilon(1e-5)), sum, 1e-4);
    expect_close(on_cpu(rectified), y, 1e-4);
  }
}

TEST(BatchNormTest, VarianceSurvivesALargeMean) {
  // 1000 + {-1, +1}: sums of squares without a shift would lose all digits of the variance in
  // float32.
  std::vector<float> values(2 * 8 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 10001.0F : 9999.0F;
  const HostTensor ones = floats({8}, std::vector<float>(8, 1.0F));
  const auto out =
      run_op("BatchNorm", epsilon(0), {floats({2, 8, 8, 8}, values), ones, ones}, Backend::kCpu);
  expect_values(out[1], {8}, std::vector<double>(8, 10000), 1e-6);
  expect_values(out[2], {8}, std::vector<double>(8, 1), 1e-5);
}

TEST(BatchNormTest, ThreadsDoNotChangeBits) {
  const HostTensor x = random_tensor({DType::kFloat32, {8, 16, 32, 32}}, 1);
  const HostTensor channel = random_tensor({DType::kFloat32, {16}}, 2);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run_op("BatchNorm", epsilon(1e-5), {x, channel, channel}, Backend::kCpu);
  omp_set_num_threads(3);
  const auto three = run_op("BatchNorm", epsilon(1e-5), {x, channel, channel}, Backend::kCpu);
  omp_set_num_threads(before);
  for (std::size_t i = 0; i < one.size(); ++i) expect_same_bits(three[i], one[i], "threads");
}

TEST(BatchNormTest, ClippedIsARectifierBehindIt) {
  const HostTensor x = random_tensor({DType::kFloat32, {3, 8, 5, 4}}, 1);
  const HostTensor dy = random_tensor({DType::kFloat32, {3, 8, 5, 4}}, 2);
  const HostTensor scale = random_tensor({DType::kFloat32, {8}}, 3);
  const HostTensor bias = random_tensor({DType::kFloat32, {8}}, 4);
  const Attributes clipped{{"epsilon", 1e-5}, {"clip_min", 0.0}, {"clip_open", std::int64_t{1}}};
  const auto z = run_op("BatchNorm", epsilon(1e-5), {x, scale, bias});
  const HostTensor y = run_op("Relu", {}, {z[0]})[0];
  const HostTensor dz = run_op("ReluGrad", {}, {dy, y})[0];
  expect_close(run_op("BatchNorm", clipped, {x, scale, bias})[0], y, 1e-6);
  const auto expected = run_op("BatchNormGrad", epsilon(1e-5), {dz, x, scale, z[1], z[2]});
  const auto actual = run_op("BatchNormGrad", clipped, {dy, x, scale, z[1], z[2], bias});
  for (std::size_t i = 0; i < 3; ++i) expect_close(actual[i], expected[i], 1e-6);
}

const std::vector<Attributes>& activations() {
  static const std::vector<Attributes> list = {
      {{"epsilon", 1e-5}, {"activation", std::string("Silu")}},
      {{"epsilon", 1e-5}, {"activation", std::string("HardSwish")}},
      {{"epsilon", 1e-5}, {"activation", std::string("LeakyRelu")}, {"alpha", 0.25}},
      {{"epsilon", 1e-5},
       {"activation", std::string("Gelu")},
       {"approximate", std::string("tanh")}}};
  return list;
}

/// The reference's BatchNorm, its activation and both gradients, one after the other: y, mean,
/// variance, dx, dscale, dbias.
std::vector<HostTensor> one_after_the_other(const Attributes& attributes, const HostTensor& x,
                                            const HostTensor& dy, const HostTensor& scale,
                                            const HostTensor& bias) {
  const std::string op = attributes.text("activation", "");
  const auto z = run_op("BatchNorm", epsilon(1e-5), {x, scale, bias});
  std::vector<HostTensor> out = {run_op(op, attributes, {z[0]})[0], z[1], z[2]};
  const HostTensor dz = run_op(op + "Grad", attributes, {dy, z[0]})[0];
  for (HostTensor& gradient : run_op("BatchNormGrad", epsilon(1e-5), {dz, x, scale, z[1], z[2]}))
    out.push_back(std::move(gradient));
  return out;
}

TEST(BatchNormTest, AnActivationIsAnOperatorBehindIt) {
  for (const Shape& shape : shapes()) {
    const HostTensor x = random_tensor({DType::kFloat64, shape}, 1, -2, 3);
    const HostTensor dy = random_tensor({DType::kFloat64, shape}, 2);
    const HostTensor scale = random_tensor({DType::kFloat64, {shape[1]}}, 3);
    const HostTensor bias = random_tensor({DType::kFloat64, {shape[1]}}, 4);
    for (const Attributes& attributes : activations()) {
      const auto expected = one_after_the_other(attributes, x, dy, scale, bias);
      const auto check = [&](Backend backend, DType type, double tolerance) {
        const auto as = [&](const HostTensor& tensor) { return as_float(tensor, type); };
        auto actual = run_op("BatchNorm", attributes, {as(x), as(scale), as(bias)}, backend);
        const auto gradients =
            run_op("BatchNormGrad", attributes,
                   {as(dy), as(x), as(scale), actual[1], actual[2], as(bias)}, backend);
        actual.insert(actual.end(), gradients.begin(), gradients.end());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expect_close(as_float(actual[i], DType::kFloat64), expected[i], tolerance,
                       fmt::format("{} {} output {}", attributes.to_text(), shape.text(), i));
        }
      };
      check(Backend::kReference, DType::kFloat64, 1e-10);
      check(Backend::kCpu, DType::kFloat32, 2e-4);
    }
  }
}

// In blocks: the bits of the operators one after the other, but for sums of float32, which are
// added up in other groups, and for bfloat16 where all is computed in float and rounded once.
TEST(BatchNormTest, AnActivationInBlocks) {
  for (const Shape& shape : {Shape{3, 16, 7, 7}, Shape{2, 48, 33, 20}, Shape{2, 16, 50, 90}}) {
    const HostTensor x = random_tensor({DType::kFloat32, shape}, 1, -2, 3);
    const HostTensor dy = random_tensor({DType::kFloat32, shape}, 2);
    const HostTensor scale = random_tensor({DType::kFloat32, {shape[1]}}, 3);
    const HostTensor bias = random_tensor({DType::kFloat32, {shape[1]}}, 4);
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const auto map = [&](const HostTensor& tensor) {
        return as_float(to_layout(tensor, Layout::kBlocked16), type);
      };
      const TensorType maps = map(x).type(), channels = scale.type();
      const std::vector<TensorType> all = {maps, channels, channels};
      for (const Attributes& attributes : activations()) {
        const std::string op = attributes.text("activation", "");
        const auto z = run_in_layouts("BatchNorm", epsilon(1e-5), {map(x), scale, bias}, all);
        const HostTensor y = run_in_layouts(op, attributes, {z[0]}, {maps})[0];
        const HostTensor dz = run_in_layouts(op + "Grad", attributes, {map(dy), z[0]}, {maps})[0];
        const auto expected =
            run_in_layouts("BatchNormGrad", epsilon(1e-5), {dz, map(x), scale, z[1], z[2]}, all);
        const auto fused = run_in_layouts("BatchNorm", attributes, {map(x), scale, bias}, all);
        const bool same = type == DType::kFloat32 || has_avx512_bfloat16();
        const auto compare = [&](const HostTensor& actual, const HostTensor& wanted, bool bits) {
          if (bits) return expect_same_bits(actual, wanted, op);
          const auto rows = [](const HostTensor& tensor) {
            return as_float(to_layout(tensor, Layout::kRowMajor), DType::kFloat32);
          };
          expect_close(rows(actual), rows(wanted), type == DType::kFloat32 ? 1e-5 : 0.03, op);
        };
        compare(fused[0], y, same);
        const std::vector<HostTensor> in = {map(dy), map(x), scale, z[1], z[2], bias};
        const auto gradients = run_in_layouts("BatchNormGrad", attributes, in, all);
        for (std::size_t i = 0; i < 3; ++i)
          compare(gradients[i], expected[i], type == DType::kBFloat16 && has_avx512_bfloat16());
        const auto of_channels =
            run_in_layouts("BatchNormGrad", attributes, in, {{}, channels, channels});
        for (std::size_t i = 1; i < 3; ++i) expect_same_bits(of_channels[i], gradients[i], op);
      }
    }
  }
}

TEST(BatchNormTest, BlockedLayouts) {
  for (const Shape& shape : {Shape{3, 16, 7, 7}, Shape{2, 32, 1, 1}, Shape{2, 48, 33, 20}}) {
    const HostTensor x = random_tensor({DType::kFloat32, shape}, 1);
    const HostTensor dy = random_tensor({DType::kFloat32, shape}, 2);
    const HostTensor scale = random_tensor({DType::kFloat32, {shape[1]}}, 3);
    const HostTensor bias = random_tensor({DType::kFloat32, {shape[1]}}, 4);
    const auto y = run_op("BatchNorm", epsilon(1e-5), {x, scale, bias});
    const auto fixed = run_op("BatchNormInference", epsilon(1e-5), {x, scale, bias, y[1], y[2]});
    const auto gradients = run_op("BatchNormGrad", epsilon(1e-5), {dy, x, scale, y[1], y[2]});
    const auto fixed_gradients =
        run_op("BatchNormInferenceGrad", epsilon(1e-5), {dy, x, scale, y[1], y[2]});
    for (const Layout layout : {Layout::kBlocked8, Layout::kBlocked16}) {
      const auto check = [&](std::string_view op, std::vector<HostTensor> inputs,
                             const std::vector<HostTensor>& expected) {
        std::vector<TensorType> types;
        for (const HostTensor& tensor : expected) types.push_back(in_layout(tensor.type(), layout));
        for (HostTensor& input : inputs) input = to_layout(input, layout);
        const auto actual = run_in_layouts(op, epsilon(1e-5), inputs, types);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expect_close(to_layout(actual[i], Layout::kRowMajor), expected[i], 1e-5,
                       fmt::format("{} output {}", op, i));
        }
      };
      check("BatchNorm", {x, scale, bias}, y);
      check("BatchNormInference", {x, scale, bias, y[1], y[2]}, fixed);
      check("BatchNormGrad", {dy, x, scale, y[1], y[2]}, gradients);
      check("BatchNormInferenceGrad", {dy, x, scale, y[1], y[2]}, fixed_gradients);
    }
  }
}

/// The results of an operator over bfloat16 maps in blocks of 16 channels.
std::vector<HostTensor> run_narrow(std::string_view op, const Attributes& attributes,
                                   std::vector<HostTensor> inputs) {
  std::vector<TensorType> types, outputs;
  for (HostTensor& input : inputs) {
    types.push_back(input.type());
    if (input.shape().rank() == 1) continue;
    input = as_float(to_layout(input, Layout::kBlocked16), DType::kBFloat16);
  }
  for (TensorType type : infer_op(op, attributes, types)) {
    if (type.shape.rank() == 4)
      type = in_layout({DType::kBFloat16, type.shape}, Layout::kBlocked16);
    outputs.push_back(type);
  }
  return run_in_layouts(op, attributes, inputs, outputs);
}

// Against the reference kernel in double on the same numbers: results are rounded once.
TEST(BatchNormTest, BFloat16InBlocksOfChannels) {
  const Attributes plain = epsilon(1e-5);
  const Attributes rectified{{"epsilon", 1e-5}, {"clip_min", 0.0}, {"clip_open", std::int64_t{1}}};
  const Attributes clipped{{"epsilon", 1e-5}, {"clip_min", -0.5}, {"clip_max", 0.75}};
  for (const Shape& shape :
       {Shape{3, 16, 7, 7}, Shape{2, 32, 1, 1}, Shape{2, 48, 33, 20}, Shape{5, 16, 70, 71}}) {
    const auto map = [&](std::uint64_t seed) {
      const HostTensor wide = random_tensor({DType::kFloat32, shape}, seed, -2, 3);
      return as_float(as_float(wide, DType::kBFloat16), DType::kFloat32);
    };
    const auto channels = [&](std::uint64_t seed) {
      return random_tensor({DType::kFloat32, {shape[1]}}, seed, 0.25, 2);
    };
    for (const Attributes& attributes : {plain, rectified, clipped}) {
      const bool clips = attributes.has("clip_min");
      const HostTensor x = map(1), scale = channels(3), bias = channels(4), mean = channels(5);
      const HostTensor variance = channels(6);
      std::vector<HostTensor> backward = {map(2), x, scale, mean, variance};
      if (clips) backward.push_back(bias);
      const std::vector<std::pair<std::string_view, std::vector<HostTensor>>> cases = {
          {"BatchNorm", {x, scale, bias}},
          {"BatchNorm", {x, scale, bias, map(7)}},
          {"BatchNormInference", {x, scale, bias, mean, variance}},
          {"BatchNormGrad", backward},
          {"BatchNormInferenceGrad", backward}};
      for (const auto& [op, inputs] : cases) {
        std::vector<HostTensor> wide;
        for (const HostTensor& input : inputs) wide.push_back(as_float(input, DType::kFloat64));
        const auto expected = run_op(op, attributes, wide);
        const auto actual = run_narrow(op, attributes, inputs);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const HostTensor map = to_layout(actual[i], Layout::kRowMajor);
          expect_close(as_float(map, DType::kFloat64), expected[i], i == 0 ? 0.004 : 1e-5,
                       fmt::format("{} output {} of {}", op, i, x.type().text()));
        }
      }
    }
  }
}

TEST(BatchNormTest, OutputsNobodyReads) {
  const HostTensor x = random_tensor({DType::kFloat32, {2, 3, 4, 4}}, 1);
  const HostTensor dy = random_tensor({DType::kFloat32, {2, 3, 4, 4}}, 2);
  const HostTensor scale = random_tensor({DType::kFloat32, {3}}, 3);
  const HostTensor variance = random_tensor({DType::kFloat32, {3}}, 4, 0.5, 2);
  const auto all = run_op("BatchNormGrad", epsilon(1e-5), {dy, x, scale, scale, variance});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    Node node;
    node.op = find_op("BatchNormGrad");
    node.attributes = epsilon(1e-5);
    const auto without_x = run_node(backend, node, {dy, x, scale, scale, variance},
                                    {{}, all[1].type(), all[2].type()});
    expect_close(without_x[1], all[1], 1e-5);
    expect_close(without_x[2], all[2], 1e-5);
    const auto only_x =
        run_node(backend, node, {dy, x, scale, scale, variance}, {all[0].type(), {}, {}});
    expect_close(only_x[0], all[0], 1e-5);
  }
}

struct Form {
  std::int64_t opset;
  bool training_mode;
  std::size_t outputs;
};

std::string imported(const ImportMode& mode, const Form& form) {
  const HostTensor x = random_tensor({DType::kFloat32, {2, 3, 4, 4}}, 1);
  const HostTensor channel = random_tensor({DType::kFloat32, {3}}, 2, 0.5, 2);
  Attributes attributes{{"epsilon", 1e-3}, {"momentum", 0.8}};
  if (form.opset >= 14) attributes.set("training_mode", std::int64_t{form.training_mode});
  const Imported node = import_node(
      "BatchNormalization", form.opset, attributes,
      {data(x), data(channel), data(channel), data(channel), data(channel)}, form.outputs, mode);
  if (form.outputs > 1) {
    EXPECT_EQ(node.outputs[1], node.inputs[3]);
    EXPECT_EQ(node.outputs[2], node.inputs[4]);
  }
  if (node.ops() == "BatchNorm") {
    const Attributes& made = node.graph.nodes[0].attributes;
    EXPECT_EQ(made.real("epsilon"), 1e-3);
    EXPECT_EQ(made.real("momentum"), 0.8);
    EXPECT_EQ(made.integer("running_mean"), node.inputs[3].index);
    EXPECT_EQ(made.integer("running_variance"), node.inputs[4].index);
  }
  return node.ops();
}

TEST(BatchNormTest, ImportFollowsTheMode) {
  const Form inference{15, false, 1};
  const Form training{15, true, 3};
  const Form old_inference{9, false, 1};
  const Form old_training{9, false, 5};
  const ImportMode train;
  const ImportMode as_file{.batch_norm = BatchNormMode::kAsFile};
  const ImportMode frozen{.batch_norm = BatchNormMode::kFrozen};
  const ImportMode evaluation{.training = false};
  for (const Form& form : {inference, training, old_inference, old_training}) {
    EXPECT_EQ(imported(train, form), "BatchNorm");
    EXPECT_EQ(imported(frozen, form), "BatchNormInference");
    EXPECT_EQ(imported(evaluation, form), "BatchNormInference");
  }
  EXPECT_EQ(imported(as_file, inference), "BatchNormInference");
  EXPECT_EQ(imported(as_file, training), "BatchNorm");
  EXPECT_EQ(imported(as_file, old_inference), "BatchNormInference");
  EXPECT_EQ(imported(as_file, old_training), "BatchNorm");
}

// A large epsilon shows where it is added; the specification's default is 1e-5.
TEST(BatchNormTest, EpsilonIsAddedToTheVariance) {
  check_cpu("BatchNorm", {{"epsilon", 0.1}}, {{{2, 3, 4, 4}}, {{3}}, {{3}}});
  const auto channel = [](float value) { return data(floats({1}, {value})); };
  const HostTensor y = import_node("BatchNormalization", 15, {},
                                   {data(floats({1, 1, 2}, {0, 0.002F})), channel(1), channel(0),
                                    channel(0), channel(1e-6F)},
                                   1, {.training = false})
                           .run()[0];
  expect_values(y, {1, 1, 2}, {0, 0.002 / std::sqrt(1e-6 + 1e-5)});
}

TEST(BatchNormTest, RefusesWrongShapes) {
  const auto infer = [](const Shape& x, const Shape& scale) {
    return [=] {
      infer_op("BatchNorm", {},
               {{DType::kFloat32, x}, {DType::kFloat32, scale}, {DType::kFloat32, scale}});
    };
  };
  expect_error(ErrorKind::kModel, "(N, C, ...)", infer({4}, {4}));
  expect_error(ErrorKind::kModel, "float32 (3)", infer({2, 3, 4, 4}, {4}));
  expect_error(ErrorKind::kModel, "non-empty", infer({0, 3, 4, 4}, {3}));
}

}  // namespace
}  // namespace pipetrain::test
