// Convolutions of bfloat16 numbers against the reference kernel in double: sums are float, and what
// is stored as bfloat16 is rounded once.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "base/vectors.h"
#include "ops/conv/conv_cases.h"
#include "support/blocked.h"
#include "tensor/tensor.h"

namespace pipetrain::test {
namespace {

HostTensor to_bfloat16(const HostTensor& tensor) {
  HostTensor out(TensorType{DType::kBFloat16, tensor.shape(), tensor.type().layout});
  for (std::int64_t i = 0; i < tensor.type().count(); ++i)
    out.view().as<std::uint16_t>()[i] = float_to_bfloat16(tensor.view().as<float>()[i]);
  return out;
}

HostTensor from_bfloat16(const HostTensor& tensor) {
  if (tensor.dtype() != DType::kBFloat16) return tensor;
  HostTensor out(TensorType{DType::kFloat32, tensor.shape(), tensor.type().layout});
  for (std::int64_t i = 0; i < tensor.type().count(); ++i)
    out.view().as<float>()[i] = bfloat16_to_float(tensor.view().as<std::uint16_t>()[i]);
  return out;
}

/// Shapes of ResNet-50's kinds, and others that oneDNN has code of its own for.
std::vector<ConvCase> bfloat16_cases() {
  const Ints one = {1, 1}, two = {2, 2}, none = {0, 0, 0, 0}, around = {1, 1, 1, 1};
  std::vector<ConvCase> out = {
      {"reduces", {3, 64, 7, 6}, {32, 64, 1, 1}, one, one, none},
      {"widens", {2, 32, 7, 7}, {96, 32, 1, 1}, one, one, none},
      {"halves", {2, 48, 9, 8}, {80, 48, 1, 1}, two, one, none},
      {"halves_columns", {2, 32, 6, 9}, {32, 32, 1, 1}, {1, 2}, one, none},
      {"strided_3x3", {2, 32, 15, 14}, {48, 32, 3, 3}, two, one, around},
      {"strided_same_upper", {2, 32, 14, 14}, {32, 32, 3, 3}, two, one, {0, 0, 1, 1}},
      {"strided_5x5", {2, 16, 13, 13}, {32, 16, 5, 5}, two, one, {2, 1, 1, 2}},
      {"unequal_pads", {2, 32, 9, 10}, {48, 32, 3, 3}, one, one, {1, 0, 0, 1}},
      {"many_images", {17, 32, 12, 12}, {32, 32, 3, 3}, one, one, around},
      {"dilated_5x3", {2, 16, 14, 11}, {16, 16, 5, 3}, one, two, {4, 2, 4, 2}},
      {"eight_channels", {3, 8, 10, 10}, {24, 8, 3, 3}, one, one, around},
      {"twenty_four", {2, 24, 11, 9}, {72, 24, 1, 1}, one, one, none},
      {"few_outputs", {2, 40, 7, 7}, {3, 40, 1, 1}, one, one, none},
      {"stem_7x7", {2, 3, 31, 30}, {64, 3, 7, 7}, two, one, {3, 3, 3, 3}},
      {"patches", {2, 3, 32, 32}, {48, 3, 8, 8}, {8, 8}, one, none},
      {"resnext_of_16", {2, 64, 9, 9}, {64, 16, 3, 3}, one, one, around, 4},
      // Strides beyond a window, and volumes and rows of which no window lies in the input as a
      // whole.
      {"flat_strided", {2, 32, 9, 9}, {32, 32, 1, 3}, two, one, {0, 1, 0, 1}},
      {"strides_of_3", {2, 32, 13, 13}, {64, 32, 5, 5}, {3, 3}, one, none},
      {"overhanging", {2, 24, 6, 2}, {64, 24, 1, 3}, {1, 3}, one, {0, 1, 0, 1}},
      {"strided_volume",
       {1, 32, 9, 9, 9},
       {32, 32, 1, 3, 3},
       {2, 2, 2},
       {1, 1, 1},
       {0, 0, 1, 0, 0, 1}},
      {"overhanging_volume",
       {2, 24, 5, 7, 8},
       {40, 24, 5, 3, 2},
       {2, 2, 1},
       {1, 1, 1},
       {1, 1, 0, 1, 1, 0}},
  };
  for (const auto* list :
       {&conv_cases(), &wide_cases(), &pointwise_cases(), &depthwise_cases(), &volume_cases()})
    out.insert(out.end(), list->begin(), list->end());
  return out;
}

/// Operands rounded to bfloat16, as floats.
HostTensor operand(const Shape& shape, std::uint64_t seed) {
  return from_bfloat16(to_bfloat16(random_tensor({DType::kFloat32, shape}, seed)));
}

/// But for sums within the error of float arithmetic of the middle between two numbers.
void expect_rounded_once(const HostTensor& actual, const HostTensor& exact) {
  const std::int64_t count = exact.type().count();
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    different +=
        actual.view().as<std::uint16_t>()[i] != float_to_bfloat16(exact.view().as<float>()[i]);
  }
  EXPECT_LE(different, 2 + count / 100);
}

void check(const ConvCase& c, std::string_view op, const Attributes& attributes,
           const std::vector<HostTensor>& inputs, Layout layout) {
  SCOPED_TRACE(fmt::format("{} {} {}", c.name, op, static_cast<int>(layout)));
  const bool weight_gradient = op == "ConvWeightGrad";
  std::vector<HostTensor> exact, stored;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    exact.push_back(as_float(inputs[i], DType::kFloat64));
    const HostTensor narrow = i < 2 ? to_bfloat16(inputs[i]) : inputs[i];
    stored.push_back(i == 0 || (weight_gradient && i == 1) ? to_layout(narrow, layout) : narrow);
  }
  const std::vector<HostTensor> expected = run_op(op, attributes, exact);
  std::vector<TensorType> outputs;
  for (const HostTensor& tensor : expected) {
    const TensorType type{weight_gradient ? DType::kFloat32 : DType::kBFloat16, tensor.shape()};
    outputs.push_back(in_layout(type, weight_gradient ? Layout::kRowMajor : layout));
  }
  const std::vector<HostTensor> actual = run_in_layouts(op, attributes, stored, outputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const HostTensor single = as_float(expected[i], DType::kFloat32);
    // Half of the last of 8 bits, and the rounding of float sums.
    expect_close(to_layout(from_bfloat16(actual[i]), Layout::kRowMajor), single,
                 weight_gradient ? 1e-5 : 0.0040);
    if (!weight_gradient) expect_rounded_once(to_layout(actual[i], Layout::kRowMajor), single);
  }
}

void check_all(const ConvCase& c, Layout layout) {
  const HostTensor x = operand(c.x, 1), w = operand(c.w, 2), dy = operand(c.y(), 3);
  const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
  check(c, "Conv", c.attributes(), {x, w}, layout);
  check(c, "Conv", c.attributes(), {x, w, b}, layout);
  check(c, "ConvInputGrad", c.with_output(c.x), {dy, w}, layout);
  check(c, "ConvWeightGrad", c.with_output(c.w), {x, dy}, layout);
  check(c, "ConvWeightGrad", c.with_output(c.w, /*bias=*/true), {x, dy}, layout);
}

TEST(ConvBFloat16, AgreesWithReference) {
  for (const ConvCase& c : bfloat16_cases()) {
    check_all(c, Layout::kRowMajor);
    check_all(c, Layout::kBlocked8);
    check_all(c, Layout::kBlocked16);
  }
}

TEST(ConvBFloat16, WithTwoThreads) {
  omp_set_num_threads(2);
  for (const ConvCase& c : bfloat16_cases()) {
    const std::string name = c.name;
    if (name == "strided_3x3" || name == "halves" || name == "many_images" || name == "stem_7x7")
      check_all(c, Layout::kBlocked16);
  }
  omp_set_num_threads(1);
}

// Which of them need no conversions; in other cases the float kernel runs behind some.
TEST(ConvBFloat16, RunsWithInstructionsForIt) {
  if (!has_fast_bfloat16_products()) GTEST_SKIP() << "this processor multiplies bfloat16 as floats";
  for (const ConvCase& c : bfloat16_cases()) {
    const bool depthwise = c.w[1] == 1, few = c.w[0] < 16 || c.w[1] < 3;
    if (c.x.rank() != 4 || c.group > 1 || depthwise || few) continue;
    SCOPED_TRACE(c.name);
    const auto takes = [&](std::string_view op, const Attributes& attributes,
                           std::vector<TensorType> inputs, TensorType output) {
      Node node;
      node.op = find_op(op);
      node.attributes = attributes;
      return convolution_takes_bfloat16({node, std::move(inputs), {std::move(output)}});
    };
    const TensorType x = in_layout({DType::kBFloat16, c.x}, Layout::kBlocked16);
    const TensorType y = in_layout({DType::kBFloat16, c.y()}, Layout::kBlocked16);
    const TensorType w{DType::kBFloat16, c.w}, dw{DType::kFloat32, c.w};
    EXPECT_TRUE(takes("Conv", c.attributes(), {x, w}, y));
    EXPECT_TRUE(takes("ConvInputGrad", c.with_output(c.x), {y, w}, x));
    // Of images, the float kernel behind conversions is faster, but for tiles (tile_image()).
    const bool on_tiles = has_amx() && c.w[1] * c.strides[0] * c.strides[1] <= 16;
    EXPECT_EQ(takes("ConvWeightGrad", c.with_output(c.w), {x, y}, dw), c.w[1] > 4 || on_tiles);
  }
}

}  // namespace
}  // namespace pipetrain::test
