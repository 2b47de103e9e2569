// Convolutions against their definition, written out here over output positions, and the CPU
// kernels against the reference in row-major and channel-blocked layouts.
#include "ops/conv/conv.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <typeinfo>

#include "ops/conv/conv_cases.h"
#include "ops/kernel/onednn_cpu.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// y[n, m, o] = b[m] + sum over c, k of x[n, g(m) C' + c, o s + k d - p] w[m, c, k], read off
/// output by output.
HostTensor definition(const ConvCase& c, const HostTensor& x, const HostTensor& w,
                      const HostTensor& b) {
  HostTensor y({DType::kFloat64, c.y()});
  const std::size_t rank = c.x.rank() - 2;
  const auto unravel = [](std::int64_t flat, const Shape& shape) {
    std::vector<std::int64_t> at(shape.rank());
    for (std::size_t i = shape.rank(); i-- > 0;) {
      at[i] = flat % shape[i];
      flat /= shape[i];
    }
    return at;
  };
  const auto ravel = [](const std::vector<std::int64_t>& at, const Shape& shape) {
    std::int64_t flat = 0;
    for (std::size_t i = 0; i < at.size(); ++i) flat = flat * shape[i] + at[i];
    return static_cast<std::size_t>(flat);
  };
  for (std::int64_t i = 0; i < y.type().count(); ++i) {
    const auto o = unravel(i, c.y());
    double sum = b ? b.span<double>()[static_cast<std::size_t>(o[1])] : 0;
    for (std::int64_t j = 0; j < w.type().count(); ++j) {
      const auto k = unravel(j, c.w);
      if (k[0] != o[1]) continue;
      std::vector<std::int64_t> at{o[0], o[1] / (c.w[0] / c.group) * c.w[1] + k[1]};
      bool inside = true;
      for (std::size_t a = 0; a < rank; ++a) {
        at.push_back(o[a + 2] * c.strides[a] + k[a + 2] * c.dilations[a] - c.pads[a]);
        inside = inside && at.back() >= 0 && at.back() < c.x[a + 2];
      }
      if (inside)
        sum += x.span<double>()[ravel(at, c.x)] * w.span<double>()[static_cast<std::size_t>(j)];
    }
    y.span<double>()[static_cast<std::size_t>(i)] = sum;
  }
  return y;
}

TEST(ConvTest, KnownNumbers) {
  const HostTensor x = floats({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const HostTensor w = floats({1, 1, 2, 2}, {1, 0, 0, -1});
  const HostTensor b = floats({1}, {10});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("Conv", {}, {x, w, b}, backend)[0], {1, 1, 2, 2}, {6, 6, 6, 6});
    // Padding one row on top and one column on the right.
    expect_values(run_op("Conv", {{"pads", Ints{1, 0, 0, 1}}}, {x, w, b}, backend)[0], {1, 1, 3, 3},
                  {8, 7, 10, 6, 6, 13, 6, 6, 16});
  }
}

TEST(ConvTest, ReferenceFollowsTheDefinition) {
  for (const ConvCase& c : conv_cases()) {
    const HostTensor x = random_tensor({DType::kFloat64, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat64, c.w}, 2);
    const HostTensor b = random_tensor({DType::kFloat64, {c.w[0]}}, 3);
    expect_close(run_op("Conv", c.attributes(), {x, w, b})[0], definition(c, x, w, b), 1e-12,
                 c.name);
    expect_close(run_op("Conv", c.attributes(), {x, w})[0], definition(c, x, w, {}), 1e-12, c.name);
  }
}

TEST(ConvTest, Gradients) {
  for (const ConvCase& c : conv_cases()) {
    SCOPED_TRACE(c.name);
    check_gradients("Conv", c.attributes(), {{c.x}, {c.w}, {{c.w[0]}}});
    check_gradients("Conv", c.attributes(), {{c.x}, {c.w}});
    check_gradients("ConvInputGrad", c.with_output(c.x), {{c.y()}, {c.w}});
  }
}

TEST(ConvTest, CpuAgreesWithReference) {
  for (const auto* list : {&conv_cases(), &wide_cases(), &pointwise_cases(), &depthwise_cases()}) {
    for (const ConvCase& c : *list) {
      SCOPED_TRACE(c.name);
      check_cpu("Conv", c.attributes(), {{c.x}, {c.w}, {{c.w[0]}}});
      check_cpu("Conv", c.attributes(), {{c.x}, {c.w}});
      check_cpu("ConvInputGrad", c.with_output(c.x), {{c.y()}, {c.w}});
      check_cpu("ConvWeightGrad", c.with_output(c.w), {{c.x}, {c.y()}});
      check_cpu("ConvWeightGrad", c.with_output(c.w, /*bias=*/true), {{c.x}, {c.y()}});
    }
  }
}

std::string implementations(std::string_view op, const Attributes& attributes,
                            const std::vector<TensorType>& inputs) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  const KernelRequest request{node, inputs, infer_op(op, attributes, inputs)};
  const auto kernel = make_kernel(Backend::kCpu, request);
  const auto* sequence = dynamic_cast<const SequenceKernel*>(kernel.get());
  if (sequence) return sequence->sequence().implementations();
  const auto reference = make_kernel(Backend::kReference, request);
  const Kernel &one = *kernel, &other = *reference;
  return typeid(one) == typeid(other) ? "reference" : "own";
}

TEST(ConvTest, NothingRunsOnAReferenceImplementation) {
  for (const auto* list : {&conv_cases(), &wide_cases(), &volume_cases()}) {
    for (const ConvCase& c : *list) {
      const auto type = [](const Shape& shape) { return TensorType{DType::kFloat32, shape}; };
      const std::string forward = implementations("Conv", c.attributes(), {type(c.x), type(c.w)});
      const std::string input =
          implementations("ConvInputGrad", c.with_output(c.x), {type(c.y()), type(c.w)});
      const std::string weight =
          implementations("ConvWeightGrad", c.with_output(c.w), {type(c.x), type(c.y())});
      for (const std::string& text : {forward, input, weight}) {
        EXPECT_EQ(text.find("ref"), std::string::npos) << c.name << ": " << text;
      }
    }
  }
}

TEST(ConvTest, BlockedLayouts) {
  std::vector<ConvCase> cases = wide_cases();
  for (const auto* list : {&depthwise_cases(), &volume_cases()})
    cases.insert(cases.end(), list->begin(), list->end());
  for (const ConvCase& c : cases) {
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat32, c.w}, 2);
    const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 3);
    const HostTensor y = run_op("Conv", c.attributes(), {x, w})[0];
    const HostTensor dx = run_op("ConvInputGrad", c.with_output(c.x), {dy, w})[0];
    const HostTensor dw = run_op("ConvWeightGrad", c.with_output(c.w), {x, dy})[0];
    const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
    const HostTensor y_shifted = run_op("Conv", c.attributes(), {x, w, b})[0];
    const Attributes with_bias = c.with_output(c.w, /*bias=*/true);
    const std::vector<HostTensor> gradients = run_op("ConvWeightGrad", with_bias, {x, dy});
    for (const Layout layout : {Layout::kBlocked8, Layout::kBlocked16}) {
      const HostTensor x_blocked = to_layout(x, layout);
      const HostTensor dy_blocked = to_layout(dy, layout);
      const auto check = [&](std::string_view op, const Attributes& attributes,
                             const std::vector<HostTensor>& inputs, const HostTensor& expected) {
        const TensorType type =
            in_layout(expected.type(), op == "ConvWeightGrad" ? Layout::kRowMajor : layout);
        const HostTensor actual = run_in_layouts(op, attributes, inputs, {type})[0];
        expect_close(to_layout(actual, Layout::kRowMajor), expected, 1e-5,
                     fmt::format("{} {}", c.name, op));
      };
      check("Conv", c.attributes(), {x_blocked, w}, y);
      check("Conv", c.attributes(), {x_blocked, w, b}, y_shifted);
      check("Conv", c.attributes(), {x, w}, y);
      check("ConvInputGrad", c.with_output(c.x), {dy_blocked, w}, dx);
      check("ConvWeightGrad", c.with_output(c.w), {x_blocked, dy_blocked}, dw);
      check("ConvWeightGrad", c.with_output(c.w), {x, dy_blocked}, dw);
      const std::vector<HostTensor> both =
          run_in_layouts("ConvWeightGrad", with_bias, {x_blocked, dy_blocked},
                         {gradients[0].type(), gradients[1].type()});
      expect_close(both[1], gradients[1], 1e-5, c.name);
    }
  }
}

// Winograd with few and many tiles, and feature maps smaller than the window with as many samples
// as they must have to pack for themselves. Other strided ones are packed for the input gradient
// alone.
TEST(ConvTest, PackedWeightsGiveTheSameBits) {
  const Ints one = {1, 1}, around = {1, 1, 1, 1};
  const Ints unit = {1, 1, 1}, two = {2, 2, 2}, all_around = {1, 1, 1, 1, 1, 1};
  const std::vector<ConvCase> cases = {
      {"volume_few_tiles", {1, 80, 2, 4, 5}, {32, 80, 3, 3, 3}, unit, unit, all_around},
      {"volume_unpadded", {1, 32, 4, 8, 5}, {48, 32, 3, 3, 3}, unit, unit, {0, 1, 1, 0, 1, 1}},
      {"volume_many_tiles", {2, 32, 4, 13, 10}, {48, 32, 3, 3, 3}, unit, unit, all_around},
      {"volume_strided", {2, 32, 5, 16, 15}, {48, 32, 3, 3, 3}, two, unit, all_around},
      {"few_tiles", {2, 80, 4, 5}, {32, 80, 3, 3}, one, one, around},
      {"edges", {3, 32, 9, 7}, {48, 32, 3, 3}, one, one, {1, 0, 0, 1}},
      {"many_tiles", {5, 32, 16, 15}, {48, 32, 3, 3}, one, one, around},
      {"small", {17, 16, 2, 2}, {24, 16, 3, 3}, one, one, around},
      {"small_wide_window", {32, 8, 3, 3}, {16, 8, 5, 5}, one, one, {2, 2, 2, 2}},
      {"dilated", {2, 48, 12, 10}, {80, 48, 3, 3}, one, {2, 2}, {2, 2, 2, 2}},
      {"strided_few_tiles", {8, 80, 8, 8}, {48, 80, 3, 3}, {2, 2}, one, around},
      {"strided_many_tiles", {5, 48, 30, 31}, {80, 48, 3, 3}, {2, 2}, one, around},
      {"strided_edges", {8, 32, 7, 6}, {48, 32, 3, 3}, {2, 2}, one, {1, 0, 1, 1}}};
  for (const ConvCase& c : cases) {
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat32, c.w}, 2);
    const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 3);
    const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
    const bool is_winograd = c.strides == one || c.pads == around || c.x.rank() == 5;
    for (const Layout layout : c.blocked_layouts()) {
      if (is_winograd) {
        expect_same_bits(in_blocks(c, x, w, b, false, true, layout),
                         in_blocks(c, x, w, b, false, false, layout), c.name);
      }
      expect_same_bits(in_blocks(c, dy, w, {}, true, true, layout),
                       in_blocks(c, dy, w, {}, true, false, layout), c.name);
    }
  }
}

// Some are large enough to be written past the caches.
TEST(ConvTest, PackedWeightsLieInPanelsOfSixteen) {
  for (const Ints& shape : {Ints{24, 16, 3, 3}, Ints{16, 40, 5, 5}, Ints{168, 176, 3, 3}}) {
    const HostTensor w = random_tensor({DType::kFloat32, Shape(shape)}, 1);
    const std::int64_t outputs = shape[0], inputs = shape[1], taps = shape[2] * shape[3];
    for (const bool input_gradient : {false, true}) {
      const HostTensor packed =
          run_op("PackConvolution", {{"input_gradient", std::int64_t{input_gradient}}}, {w},
                 Backend::kCpu)[0];
      const std::int64_t columns = input_gradient ? inputs : outputs;
      const std::int64_t depth = input_gradient ? outputs : inputs;
      std::int64_t wrong = 0, place = 0;
      for (std::int64_t first = 0; first < columns; first += 16) {
        for (std::int64_t k = 0; k < depth; ++k) {
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            for (std::int64_t column = first; column < first + 16; ++column, ++place) {
              const std::int64_t from = input_gradient
                                            ? (k * inputs + column) * taps + taps - 1 - tap
                                            : (column * inputs + k) * taps + tap;
              const float expected =
                  column < columns ? w.span<float>()[static_cast<std::size_t>(from)] : 0.0F;
              wrong += packed.span<float>()[static_cast<std::size_t>(place)] == expected ? 0 : 1;
            }
          }
        }
      }
      EXPECT_EQ(wrong, 0) << outputs << " x " << inputs << (input_gradient ? " reversed" : "");
      EXPECT_EQ(packed.type().count(), place);
    }
  }
}

TEST(ConvTest, SmallFeatureMapsOfFewSamples) {
  for (ConvCase c : wide_cases()) {
    if (c.x.rank() != 4 || c.x[0] != 32) continue;
    for (const std::int64_t samples : {1, 13}) {
      c.x = {samples, c.x[1], c.x[2], c.x[3]};
      const HostTensor x = random_tensor({DType::kFloat64, c.x}, 1);
      const HostTensor w = random_tensor({DType::kFloat64, c.w}, 2);
      const HostTensor dy = random_tensor({DType::kFloat64, c.y()}, 3);
      const HostTensor b = random_tensor({DType::kFloat64, {c.w[0]}}, 4);
      const auto check = [&](const HostTensor& actual, const HostTensor& expected) {
        expect_close(as_float(actual, DType::kFloat64), expected, 1e-6,
                     fmt::format("{} {}", c.name, samples));
      };
      const auto single = [](const HostTensor& tensor) {
        return as_float(tensor, DType::kFloat32);
      };
      check(in_blocks(c, single(x), single(w), single(b), false, true), definition(c, x, w, b));
      check(in_blocks(c, single(dy), single(w), {}, true, true),
            run_op("ConvInputGrad", c.with_output(c.x), {dy, w})[0]);
      const Attributes with_bias = c.with_output(c.w, /*bias=*/true);
      const std::vector<HostTensor> expected = run_op("ConvWeightGrad", with_bias, {x, dy});
      const std::vector<HostTensor> actual = run_in_layouts(
          "ConvWeightGrad", with_bias,
          {to_layout(single(x), Layout::kBlocked8), to_layout(single(dy), Layout::kBlocked8)},
          {{DType::kFloat32, c.w}, {DType::kFloat32, Shape{c.w[0]}}});
      for (std::size_t i = 0; i < expected.size(); ++i) check(actual[i], expected[i]);
    }
  }
}

TEST(ConvTest, AbsentBiasGradient) {
  const ConvCase& c = conv_cases()[0];
  const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
  const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 2);
  const Attributes attributes = c.with_output(c.w, /*bias=*/true);
  const HostTensor expected = run_op("ConvWeightGrad", attributes, {x, dy})[0];
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    Node node;
    node.op = find_op("ConvWeightGrad");
    node.attributes = attributes;
    const auto out = run_node(backend, node, {x, dy}, {{DType::kFloat32, c.w}, {}});
    expect_close(out[0], expected, 1e-5);
  }
}

TEST(ConvTest, CostCountsMultiplicationsAndAdditions) {
  const ConvCase& c = conv_cases()[4];  // groups: each of 2*4*4*4 outputs takes 3*3*3 products
  const std::vector<TensorType> in{{DType::kFloat32, c.x}, {DType::kFloat32, c.w}};
  const std::vector<TensorType> out{{DType::kFloat32, c.y()}};
  EXPECT_EQ(find_op("Conv")->cost(c.attributes(), in, out).flops,
            2.0 * (2 * 4 * 4 * 4) * (3 * 3 * 3));
}

TEST(ConvTest, RefusesWrongShapes) {
  const auto infer = [](const Attributes& attributes, const Shape& x, const Shape& w) {
    return [=] { infer_op("Conv", attributes, {{DType::kFloat32, x}, {DType::kFloat32, w}}); };
  };
  expect_error(ErrorKind::kModel, "rank 3, 4 or 5", infer({}, {2, 3}, {4, 3}));
  expect_error(ErrorKind::kModel, "2 input channels", infer({}, {1, 2, 5, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "group 2",
               infer({{"group", std::int64_t{2}}}, {1, 3, 5, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "does not fit", infer({}, {1, 3, 2, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "strides",
               infer({{"strides", Ints{1}}}, {1, 3, 5, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "strides",
               infer({{"strides", Ints{0, 1}}}, {1, 3, 5, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "pads",
               infer({{"pads", Ints{0, 0, -1, 0}}}, {1, 3, 5, 5}, {4, 3, 3, 3}));
  expect_error(ErrorKind::kModel, "bias", [] {
    infer_op(
        "Conv", {},
        {{DType::kFloat32, {1, 3, 5, 5}}, {DType::kFloat32, {4, 3, 3, 3}}, {DType::kFloat32, {3}}});
  });
}

// PyTorch's exporter writes zeros of shape (M, 2) for 3-D convolutions without a bias.
TEST(ConvImport, ZerosOfAnotherShapeAreNoBias) {
  const ImportInput x = data(floats({1, 1, 2, 1, 1}, {1, 2})),
                    w = data(floats({1, 1, 1, 1, 1}, {3}));
  const Imported node = import_node("Conv", 22, {}, {x, w, constant(floats({1, 2}, {0, 0}))});
  EXPECT_EQ(node.ops(), "Conv");
  expect_values(node.run()[0], {1, 1, 2, 1, 1}, {3, 6});
  for (const ImportInput& bias : {constant(floats({1, 2}, {0, 1})), data(floats({1, 2}, {0, 0}))}) {
    expect_error(ErrorKind::kModel, "Conv bias must have shape (1), got (1, 2)", [&] {
      import_node("Conv", 22, {}, {x, w, bias});
    });
  }
}

TEST(ConvTest, ImportsAutoPad) {
  const HostTensor x = random_tensor({DType::kFloat32, {1, 2, 5, 6}}, 1);
  const HostTensor w = random_tensor({DType::kFloat32, {3, 2, 3, 2}}, 2);
  const auto pads = [&](const Attributes& attributes) {
    const Imported node = import_node("Conv", 11, attributes, {data(x), data(w)});
    EXPECT_EQ(node.ops(), "Conv");
    return node.graph.nodes[0].attributes.ints("pads");
  };
  EXPECT_EQ(pads({}), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(pads({{"pads", Ints{1, 2, 0, 1}}}), (Ints{1, 2, 0, 1}));
  EXPECT_EQ(pads({{"auto_pad", "VALID"}}), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(pads({{"auto_pad", "SAME_UPPER"}}), (Ints{1, 0, 1, 1}));
  EXPECT_EQ(pads({{"auto_pad", "SAME_LOWER"}}), (Ints{1, 1, 1, 0}));
  // Stride 2 over 5 and 6 positions: 3 windows each, which need 7 and 6 positions.
  EXPECT_EQ(pads({{"auto_pad", "SAME_UPPER"}, {"strides", Ints{2, 2}}}), (Ints{1, 0, 1, 0}));
  expect_error(ErrorKind::kModel, "auto_pad", [&] { pads({{"auto_pad", "SOME"}}); });
  expect_error(ErrorKind::kModel, "kernel_shape", [&] { pads({{"kernel_shape", Ints{3, 3}}}); });
}

TEST(ConvTest, ImportsConvTranspose) {
  // The example of the ONNX operator's documentation.
  const HostTensor x = floats({1, 1, 3, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  const HostTensor w = floats({1, 2, 3, 3}, std::vector<float>(18, 1.0F));
  const std::vector<double> plane{0,  1,  3, 3,  2,  3,  8,  15, 12, 7,  9,  21, 36,
                                  27, 15, 9, 20, 33, 24, 13, 6,  13, 21, 15, 8};
  std::vector<double> expected = plane;
  expected.insert(expected.end(), plane.begin(), plane.end());
  const Imported node = import_node("ConvTranspose", 11, {}, {data(x), data(w)});
  EXPECT_EQ(node.ops(), "ConvInputGrad");
  expect_values(node.run()[0], {1, 2, 5, 5}, expected);
  expect_values(node.run(Backend::kCpu)[0], {1, 2, 5, 5}, expected);
}

TEST(ConvTest, ConvTransposeShapes) {
  const auto shape = [](const Attributes& attributes, std::int64_t group = 1) {
    const HostTensor x = random_tensor({DType::kFloat32, {1, 2, 3, 3}}, 1);
    const HostTensor w = random_tensor({DType::kFloat32, {2, 4, 3, 3}}, 2);
    Attributes all = attributes;
    all.set("group", group);
    const Imported node = import_node("ConvTranspose", 11, all, {data(x), data(w)});
    return node.graph[node.outputs[0]].type.shape;
  };
  EXPECT_EQ(shape({}), (Shape{1, 4, 5, 5}));
  EXPECT_EQ(shape({}, 2), (Shape{1, 8, 5, 5}));
  EXPECT_EQ(shape({{"strides", Ints{3, 2}}}), (Shape{1, 4, 9, 7}));
  EXPECT_EQ(shape({{"strides", Ints{3, 2}}, {"output_padding", Ints{1, 1}}}), (Shape{1, 4, 10, 8}));
  EXPECT_EQ(shape({{"strides", Ints{3, 2}}, {"output_shape", Ints{10, 8}}}), (Shape{1, 4, 10, 8}));
  EXPECT_EQ(shape({{"strides", Ints{3, 2}}, {"pads", Ints{1, 2, 1, 2}}}), (Shape{1, 4, 7, 3}));
  EXPECT_EQ(shape({{"strides", Ints{2, 2}}, {"auto_pad", "SAME_UPPER"}}), (Shape{1, 4, 6, 6}));
  EXPECT_EQ(shape({{"auto_pad", ""}, {"pads", Ints{1, 1, 1, 1}}}), (Shape{1, 4, 3, 3}));
  expect_error(ErrorKind::kModel, "auto_pad", [&] { shape({{"auto_pad", "SAME"}}); });
  EXPECT_EQ(shape({{"dilations", Ints{2, 2}}}), (Shape{1, 4, 7, 7}));
}

// Output padding of the stride or more, which a dilation allows: zeros behind the result, unless
// padding has cut it.
TEST(ConvTest, ConvTransposeWithWideOutputPadding) {
  const HostTensor x = random_tensor({DType::kFloat32, {1, 2, 3, 3}}, 1);
  const HostTensor w = random_tensor({DType::kFloat32, {2, 4, 3, 3}}, 2);
  const HostTensor bias = floats({4}, {1, 2, 3, 4});
  const auto run = [&](Ints pads, Ints output_padding) {
    const Attributes attributes = {
        {"dilations", Ints{2, 2}}, {"pads", pads}, {"output_padding", output_padding}};
    return import_node("ConvTranspose", 11, attributes, {data(x), data(w), data(bias)}).run()[0];
  };
  const HostTensor whole = run({0, 0, 0, 0}, {0, 0});
  const HostTensor wider = run({0, 0, 0, 0}, {1, 2});
  const HostTensor cut = run({0, 0, 1, 2}, {1, 1});
  ASSERT_EQ(whole.shape(), (Shape{1, 4, 7, 7}));
  ASSERT_EQ(wider.shape(), (Shape{1, 4, 8, 9}));
  ASSERT_EQ(cut.shape(), (Shape{1, 4, 7, 6}));
  const auto value = [](const HostTensor& y, std::int64_t c, std::int64_t row,
                        std::int64_t column) {
    const Shape& s = y.shape();
    return y.view().as<float>()[(c * s[2] + row) * s[3] + column];
  };
  for (std::int64_t c = 0; c < 4; ++c) {
    for (std::int64_t row = 0; row < 8; ++row) {
      for (std::int64_t column = 0; column < 9; ++column) {
        const bool inside = row < 7 && column < 7;
        EXPECT_EQ(value(wider, c, row, column),
                  inside ? value(whole, c, row, column) : static_cast<float>(c + 1));
        if (row < 7 && column < 6)
          EXPECT_EQ(value(cut, c, row, column), value(whole, c, row, column));
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
