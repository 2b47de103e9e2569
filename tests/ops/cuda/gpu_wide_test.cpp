// GPU kernels that move 16 bytes at once: sizes, strides and types that reach each width, and their
// remainders.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "graph/op.h"
#include "ops/cuda/divider_cuda.h"
#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Node wide_node(const std::string& op, const Attributes& attributes) {
  Node node;
  node.op = find_op(op);
  node.attributes = attributes;
  node.name = "test";
  return node;
}

/// The GPU kernel's results, which must not depend on the order of threads.
std::vector<HostTensor> run_in_every_order(const Node& node, const std::vector<HostTensor>& inputs,
                                           const std::vector<TensorType>& outputs) {
  const auto kernel = make_gpu_kernel(request_of(node, inputs, outputs));
  if (!kernel) return {};
  std::vector<HostTensor> first;
  for (int order = 0; order < (device_under_test() ? 3 : emulated_orders()); ++order) {
    set_emulated_order(order);
    const auto results = run_kernel(*kernel, node, inputs, outputs, {});
    if (order == 0) first = results;
    for (std::size_t i = 0; i < results.size(); ++i)
      expect_same_bits(results[i], first[i], "another order of threads");
  }
  set_emulated_order(0);
  return first;
}

/// Bytes without a pattern.
HostTensor noise(const TensorType& type) {
  HostTensor out(type);
  for (std::size_t i = 0; i < type.bytes(); ++i)
    out.view().as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * i % 241 + i / 7);
  return out;
}

TEST(GpuWide, DividerAgreesWithDivision) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 31;
  for (const std::int64_t by : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7},
                                std::int64_t{96}, std::int64_t{641}, std::int64_t{65537},
                                kEnd / 2 - 1, kEnd / 2 + 1, kEnd - 1, kEnd, 3 * kEnd}) {
    const Divider divider(by);
    for (std::int64_t k = -3; k <= 3; ++k) {
      for (const std::int64_t about :
           {std::int64_t{3}, by, 2 * by, kEnd / by * by, kEnd / 3, kEnd - 4}) {
        const std::int64_t n = about + k;
        if (n < 0) continue;
        EXPECT_EQ(divider.quotient(n), n / by) << n << " / " << by;
        if (n >= kEnd) continue;
        const auto low = static_cast<std::uint32_t>(n);
        EXPECT_EQ(std::int64_t{divider.quotient(low)}, n / by) << n << " / " << by;
        EXPECT_EQ(std::int64_t{divider.rest(low, divider.quotient(low))}, n % by) << n;
      }
    }
  }
}

/// Moved elements keep their bits, in every element size.
void check_copy(const std::string& op, const Attributes& attributes,
                const std::vector<Shape>& shapes) {
  const Node node = wide_node(op, attributes);
  for (const DType dtype : {DType::kUint8, DType::kBFloat16, DType::kFloat32, DType::kInt64}) {
    std::vector<HostTensor> inputs;
    std::vector<TensorType> types;
    for (const Shape& shape : shapes) {
      inputs.push_back(noise({dtype, shape}));
      types.push_back(inputs.back().type());
    }
    const auto outputs = infer_op(op, attributes, types);
    const auto expected = run_node(Backend::kReference, node, inputs, outputs);
    const auto results = run_in_every_order(node, inputs, outputs);
    ASSERT_EQ(results.size(), expected.size()) << "no kernel";
    for (std::size_t i = 0; i < results.size(); ++i)
      expect_same_bits(results[i], expected[i], op + " of " + inputs[0].type().text());
  }
}

// Runs of 16, 8, 4, 2 and 1 bytes; more units than a block holds.
TEST(GpuWide, CopiesOfRuns) {
  for (const std::int64_t width : {1, 2, 3, 4, 6, 8, 12, 16, 32, 48}) {
    const Attributes thirds = {{"axis", std::int64_t{1}}, {"sizes", Ints{width, width, 2 * width}}};
    check_copy("Split", thirds, {{23, 4 * width}});
    check_copy("Concat", {{"axis", std::int64_t{1}}}, {{19, width}, {19, 2 * width}, {19, width}});
  }
  check_copy("Split", {{"axis", std::int64_t{1}}, {"sizes", Ints{16, 5, 16, 1, 26}}}, {{9, 64}});
  check_copy("Concat", {{"axis", std::int64_t{0}}}, {{33, 64}, {70, 64}});
  check_copy("Concat", {{"axis", std::int64_t{1}}}, std::vector<Shape>(11, Shape{3, 16}));
  const auto slice = [](Ints starts, Ints ends, Ints steps) {
    return Attributes{
        {"starts", starts}, {"ends", ends}, {"axes", Ints{0, 1, 2}}, {"steps", steps}};
  };
  check_copy("Slice", slice({0, 1, 16}, {5, 7, 48}, {2, 3, 1}), {{5, 8, 64}});
  check_copy("Slice", slice({4, 6, 16}, {-1, 0, 48}, {-1, -2, 1}), {{5, 8, 64}});
  check_copy("Slice", slice({0, 0, 8}, {5, 8, 64}, {1, 1, 1}), {{5, 8, 64}});
  check_copy("Slice", slice({0, 0, 1}, {5, 8, 63}, {1, 1, 2}), {{5, 8, 64}});
  check_copy("Pad", {{"pads", Ints{0, 1, 16, 0, 1, 0}}}, {{3, 5, 32}});
  check_copy("Pad", {{"pads", Ints{0, 1, 3, 0, 1, 0}}}, {{3, 5, 13}});
  check_copy("Expand", {{"shape", Ints{3, 5, 48}}}, {{3, 1, 48}});
  check_copy("Expand", {{"shape", Ints{3, 5, 48}}}, {{5, 1}});
  check_copy("Transpose", {{"perm", Ints{0, 2, 1, 3}}}, {{2, 5, 3, 32}});
  check_copy("Transpose", {{"perm", Ints{1, 0}}}, {{37, 64}});
  check_copy("Transpose", {{"perm", Ints{0, 2, 4, 6, 1, 3, 5, 7}}}, {{2, 3, 2, 2, 2, 3, 2, 4}});
}

// Mixed precision leaves small operands in float32.
TEST(GpuWide, WhereOfFloatsInSeveralTypes) {
  HostTensor shown(TensorType{DType::kBool, {3, 4}});
  for (std::size_t i = 0; i < 12; ++i) shown.span<bool>()[i] = i % 3 != 0;
  const HostTensor wide = random_tensor({DType::kFloat32, {3, 4}}, 1);
  const HostTensor narrow = as_float(random_tensor({DType::kFloat32, {3, 4}}, 2), DType::kBFloat16);
  const auto check = [&](const HostTensor& a, const HostTensor& b, DType to) {
    const auto results =
        run_in_every_order(wide_node("Where", {}), {shown, a, b}, {TensorType{to, {3, 4}}});
    ASSERT_EQ(results.size(), 1U) << "no kernel";
    const auto in_double = [](const HostTensor& t) { return as_float(t, DType::kFloat64); };
    expect_close(in_double(results[0]), run_op("Where", {}, {shown, in_double(a), in_double(b)})[0],
                 to == DType::kBFloat16 ? 0.004 : 0);
  };
  check(narrow, floats({}, {0}), DType::kBFloat16);
  check(narrow, wide, DType::kFloat32);
  check(wide, floats({}, {0}), DType::kBFloat16);
}

// Stored types are converted element by element, or eight at once.
TEST(GpuWide, CopiesThatConvert) {
  for (const std::int64_t width : {3, 8, 24}) {
    const Attributes attributes = {{"axis", std::int64_t{1}}, {"sizes", Ints{width, 2 * width}}};
    const Node node = wide_node("Split", attributes);
    const HostTensor x = random_tensor({DType::kFloat32, {21, 3 * width}}, 1);
    auto outputs = infer_op("Split", attributes, {x.type()});
    const auto exact = run_node(Backend::kReference, node, {x}, outputs);
    for (TensorType& type : outputs) type.dtype = DType::kBFloat16;
    const auto results = run_in_every_order(node, {x}, outputs);
    ASSERT_EQ(results.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      HostTensor expected(outputs[i]);
      for (std::size_t k = 0; k < exact[i].span<float>().size(); ++k)
        expected.view().as<std::uint16_t>()[k] = float_to_bfloat16(exact[i].span<float>()[k]);
      expect_same_bits(results[i], expected, "narrow");
    }
    const auto wide = run_in_every_order(wide_node("Concat", {{"axis", std::int64_t{1}}}), results,
                                         {{DType::kFloat32, x.shape()}});
    ASSERT_EQ(wide.size(), 1U);
    expect_close(wide[0], x, 0.004, "wide");
  }
}

/// Against the reference on the rounded operands, for every mix of stored types; the results are
/// computed in float and rounded once.
void check_arithmetic(const std::string& op, const Attributes& attributes,
                      const std::vector<Shape>& shapes, double low, double high) {
  const Node node = wide_node(op, attributes);
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (std::size_t mix = 0; mix < 27; ++mix) {
    std::vector<HostTensor> stored, rounded;
    std::vector<TensorType> types;
    std::size_t left = mix;
    for (std::size_t k = 0; k < shapes.size(); ++k, left /= 3) {
      const HostTensor x = random_tensor({DType::kFloat32, shapes[k]}, k + 1, low, high);
      stored.push_back(HostTensor({kTypes[left % 3], shapes[k]}));
      for (std::size_t i = 0; i < x.span<float>().size(); ++i) {
        const float value = x.span<float>()[i];
        if (left % 3 == 0) {
          stored[k].view().as<float>()[i] = value;
        } else {
          stored[k].view().as<std::uint16_t>()[i] =
              left % 3 == 1 ? float_to_bfloat16(value) : float_to_half(value);
        }
      }
      rounded.push_back(as_float(stored[k], DType::kFloat32));
      types.push_back(rounded[k].type());
    }
    if (left >= 3) return;  // all mixes of fewer operands
    auto outputs = infer_op(op, attributes, types);
    const auto expected = run_node(Backend::kReference, node, rounded, outputs);
    outputs[0].dtype = kTypes[left % 3];
    const auto results = run_in_every_order(node, stored, outputs);
    ASSERT_EQ(results.size(), 1U) << "no kernel";
    const double last = left % 3 == 0 ? 0 : left % 3 == 1 ? 0.004 : 0.0005;
    expect_close(as_float(results[0], DType::kFloat32), expected[0], 2e-6 + last,
                 op + " mix " + std::to_string(mix));
  }
}

TEST(GpuWide, ElementWiseFunctions) {
  // Two groups a thread and a remainder of one, and single elements.
  for (const Shape& shape : {Shape{8}, Shape{13, 328}, Shape{5, 7}}) {
    for (const std::string approximate : {"none", "tanh"}) {
      const Attributes gelu = {{"approximate", approximate}};
      check_arithmetic("Gelu", gelu, {shape}, -6, 6);
      check_arithmetic("GeluGrad", gelu, {shape, shape}, -6, 6);
    }
    check_arithmetic("Mul", {}, {shape, shape}, -2, 2);
  }
}

TEST(GpuWide, GeluOfLargeAndSpecialNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0,         -0.0F,         1e-30F, -1e-30F, 20,    -20,
                                     200,       -200,          1e4,    -1e4,    3e38F, infinity,
                                     -infinity, std::nanf(""), 9,      -9};
  const HostTensor x = floats({16}, values);
  for (const std::string approximate : {"none", "tanh"}) {
    const Attributes gelu = {{"approximate", approximate}};
    for (const bool gradient : {false, true}) {
      const std::string op = gradient ? "GeluGrad" : "Gelu";
      const std::vector<HostTensor> inputs =
          gradient ? std::vector{floats({16}, std::vector<float>(16, 1)), x} : std::vector{x};
      const Node node = wide_node(op, gelu);
      const auto expected = run_node(Backend::kReference, node, inputs, {x.type()});
      const auto results = run_in_every_order(node, inputs, {x.type()});
      ASSERT_EQ(results.size(), 1U);
      for (std::size_t i = 0; i < 16; ++i) {
        const float y = results[0].span<float>()[i], wanted = expected[0].span<float>()[i];
        if (std::isfinite(wanted)) {
          EXPECT_NEAR(y, wanted, std::abs(wanted) * 1e-6 + 1e-15) << op << " of " << values[i];
        } else {
          EXPECT_EQ(std::isnan(y), std::isnan(wanted)) << op << " of " << values[i];
          EXPECT_EQ(std::isinf(y), std::isinf(wanted)) << op << " of " << values[i];
        }
      }
    }
  }
}

// Scalars, rows, columns and planes against whole tensors, on either side.
TEST(GpuWide, Broadcasts) {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{13, 328}, {}},          {{13, 328}, {1, 1}},     {{13, 328}, {328}},
      {{13, 328}, {13, 1}},     {{3, 5, 16}, {5, 1}},    {{3, 5, 16}, {5, 16}},
      {{3, 5, 16}, {3, 1, 16}}, {{3, 1, 16}, {1, 5, 1}}, {{3, 1, 16}, {1, 5, 16}},
      {{3, 5, 7}, {}},          {{3, 5, 7}, {7}},        {{2, 3, 4, 8}, {3, 1, 8}}};
  for (const auto& [a, b] : cases) {
    for (const std::string op : {"Mul", "Sub"}) {
      check_arithmetic(op, {}, {a, b}, -2, 2);
      check_arithmetic(op, {}, {b, a}, -2, 2);
    }
  }
}

struct MaxPoolCase {
  Shape x;
  Ints kernel, strides, pads, dilations;
};

// Eight channels at once and one; rows of taps and of windows in one step and in several; odd and
// even widths; NaN and infinities.
TEST(GpuWide, MaximaAndTheirGradients) {
  const std::vector<MaxPoolCase> cases = {{{2, 16, 9, 10}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
                                          {{2, 16, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
                                          {{1, 8, 8, 8}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
                                          {{1, 24, 7, 13}, {5, 7}, {1, 1}, {2, 3, 2, 3}, {1, 1}},
                                          {{1, 8, 9, 12}, {2, 3}, {3, 2}, {0, 1, 1, 2}, {2, 3}},
                                          {{1, 8, 9, 12}, {2, 2}, {4, 5}, {0, 0, 0, 0}, {1, 1}},
                                          {{2, 3, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}}};
  for (const MaxPoolCase& c : cases) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kChannelsLast}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(c.x.text() + " " + std::string(name_of(dtype)));
        Attributes attributes{{"kernel", c.kernel},
                              {"strides", c.strides},
                              {"pads", c.pads},
                              {"dilations", c.dilations},
                              {"count_include_pad", std::int64_t{0}}};
        // Multiples of 1/4, so that many are equal and sums of gradients are exact.
        std::vector<float> values, gradients;
        for (std::int64_t i = 0; i < c.x.count(); ++i)
          values.push_back(static_cast<float>(i * 7919 % 61 % 23 - 11) / 4);
        values[5] = std::nanf("");
        values[40] = std::numeric_limits<float>::infinity();
        for (std::size_t i = 64; i < 70; ++i) values[i] = -std::numeric_limits<float>::infinity();
        const HostTensor x = floats(c.x, values);
        const auto types = infer_op("MaxPool", attributes, {x.type()});
        const Node forward = wide_node("MaxPool", attributes);
        const auto pooled = run_node(Backend::kReference, forward, {x}, types);
        for (std::int64_t i = 0; i < types[0].count(); ++i)
          gradients.push_back(static_cast<float>(i * 31 % 17 - 8) / 4);
        const HostTensor dy = floats(types[0].shape, gradients);
        attributes.set("shape", c.x.dims());
        const Node backward = wide_node("MaxPoolGrad", attributes);
        const auto dx = run_node(Backend::kReference, backward, {dy, pooled[1]}, {x.type()});
        const auto stored = [&](const HostTensor& tensor) {
          const HostTensor laid = to_layout(tensor, layout);
          if (dtype == DType::kFloat32 || laid.dtype() != DType::kFloat32) return laid;
          HostTensor out({dtype, laid.shape(), layout});
          for (std::size_t i = 0; i < laid.span<float>().size(); ++i)
            out.view().as<std::uint16_t>()[i] = float_to_bfloat16(laid.span<float>()[i]);
          return out;
        };
        const std::vector<HostTensor> expected = {stored(pooled[0]), stored(pooled[1])};
        const auto results =
            run_in_every_order(forward, {stored(x)}, {expected[0].type(), expected[1].type()});
        ASSERT_EQ(results.size(), 2U);
        // A NaN has other bits on a GPU.
        expect_close(as_float(results[0], DType::kFloat32), as_float(expected[0], DType::kFloat32),
                     0, "maxima");
        expect_same_bits(results[1], expected[1], "positions");
        const HostTensor back = stored(dx[0]);
        const auto gradient =
            run_in_every_order(backward, {stored(dy), expected[1]}, {back.type()});
        ASSERT_EQ(gradient.size(), 1U);
        expect_same_bits(gradient[0], back, "gradient");
      }
    }
  }
}

struct DepthwiseCase {
  Shape x;
  std::int64_t kernel, stride;
  Ints pads;
};

// Every window and stride; rows that end in a part of a tile; more channels than a block has; one
// row or column; padding on one side only. Channels last; a bias is float32 always.
TEST(GpuWide, DepthwiseConvolutions) {
  const std::vector<DepthwiseCase> cases = {
      {{2, 16, 9, 10}, 3, 1, {1, 1, 1, 1}}, {{1, 24, 8, 11}, 3, 2, {1, 1, 1, 1}},
      {{1, 8, 7, 13}, 5, 1, {2, 2, 2, 2}},  {{2, 272, 7, 6}, 5, 2, {2, 2, 2, 2}},
      {{1, 40, 9, 9}, 7, 1, {3, 3, 3, 3}},  {{1, 200, 7, 7}, 7, 1, {3, 3, 3, 3}},
      {{1, 8, 10, 9}, 7, 2, {0, 0, 0, 0}},  {{1, 8, 1, 5}, 3, 1, {1, 1, 1, 1}},
      {{1, 8, 5, 1}, 3, 1, {1, 1, 1, 1}},   {{1, 8, 6, 6}, 3, 2, {0, 0, 1, 1}},
      {{1, 520, 3, 4}, 3, 1, {1, 1, 1, 1}}};
  for (const DepthwiseCase& c : cases) {
    const std::int64_t channels = c.x[1];
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1),
                     w = random_tensor({DType::kFloat32, {channels, 1, c.kernel, c.kernel}}, 2),
                     b = random_tensor({DType::kFloat32, {channels}}, 3);
    const Node node = wide_node(
        "Conv", {{"strides", Ints{c.stride, c.stride}}, {"pads", c.pads}, {"group", channels}});
    for (const bool bias : {false, true}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(c.x.text() + " " + std::string(name_of(dtype)));
        const auto stored = [&](const HostTensor& tensor) { return as_float(tensor, dtype); };
        std::vector<HostTensor> exact = {as_float(stored(x), DType::kFloat64),
                                         as_float(stored(w), DType::kFloat64)};
        std::vector<HostTensor> operands = {to_layout(stored(x), Layout::kChannelsLast), stored(w)};
        if (bias) {
          exact.push_back(as_float(b, DType::kFloat64));
          operands.push_back(b);
        }
        const HostTensor expected = run_op("Conv", node.attributes, exact)[0];
        const TensorType result{dtype, expected.shape(), Layout::kChannelsLast};
        const auto results = run_in_every_order(node, operands, {result});
        ASSERT_EQ(results.size(), 1U);
        const double rounding = dtype == DType::kFloat32 ? 1e-6 : 8e-3;
        expect_close(as_float(to_layout(results[0], Layout::kRowMajor), DType::kFloat64), expected,
                     rounding, "y");
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
