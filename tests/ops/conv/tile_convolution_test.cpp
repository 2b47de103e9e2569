// Convolutions on tiles against the reference kernel in double, on the same bfloat16 numbers; with
// portable instructions, since ConvBFloat16 runs them with AMX where there is one, and pairs where
// there is none.
#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <string_view>

#include "base/index.h"
#include "base/vectors.h"
#include "ops/conv/conv_cases.h"
#include "ops/conv/padded_gradient_cpu.h"
#include "ops/conv/padded_pass_cpu.h"
#include "ops/conv/pair_weight_gradient_cpu.h"
#include "ops/conv/tile_convolution_cpu.h"
#include "ops/conv/tile_image_cpu.h"
#include "ops/kernel/adding_kernel.h"
#include "support/blocked.h"

namespace pipetrain::test {
namespace {

HostTensor narrow_map(const Shape& shape, std::uint64_t seed) {
  return as_float(random_tensor({DType::kFloat32, shape}, seed), DType::kBFloat16);
}

/// Runs a kernel on (x or dy, w or dy); an AddingKernel adds to `before`.
HostTensor run_on_tiles(Kernel& kernel, const std::vector<HostTensor>& in, const TensorType& type,
                        float before = 0) {
  HostTensor out(type);
  const Buffer workspace(kernel.workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  std::vector<Tensor> from;
  for (const HostTensor& tensor : in) from.push_back(tensor ? tensor.view() : Tensor{});
  if (before == 0) {
    kernel.run(from, std::vector<Tensor>{out.view()}, context);
  } else {
    for (float& value : out.span<float>()) value = before;
    dynamic_cast<AddingKernel&>(kernel).run_adding(from, std::vector<Tensor>{out.view()}, context);
  }
  return out;
}

std::vector<ConvCase> tile_cases() {
  const Ints one = {1, 1}, two = {2, 2}, none = {0, 0, 0, 0}, around = {1, 1, 1, 1};
  return {
      {"reduces", {3, 64, 7, 6}, {32, 64, 1, 1}, one, one, none},
      {"halves", {2, 48, 9, 8}, {80, 48, 1, 1}, two, one, none},
      {"strided_3x3", {2, 32, 15, 14}, {48, 32, 3, 3}, two, one, around},
      {"strided_same_upper", {2, 32, 14, 14}, {32, 32, 3, 3}, two, one, {0, 0, 1, 1}},
      {"unequal_pads", {2, 16, 9, 10}, {48, 16, 3, 3}, one, one, {1, 0, 0, 1}},
      {"dilated_5x3", {2, 16, 14, 11}, {16, 16, 5, 3}, one, two, {4, 2, 4, 2}},
      {"strided_dilated", {2, 16, 13, 14}, {32, 16, 3, 3}, {3, 2}, {2, 3}, {2, 3, 2, 3}},
      {"dilated_by_the_stride", {2, 16, 15, 14}, {16, 16, 3, 3}, two, two, {2, 2, 2, 1}},
      {"gaps", {2, 16, 11, 10}, {16, 16, 2, 2}, {3, 3}, one, none},
      {"many_positions", {3, 16, 21, 19}, {32, 16, 3, 3}, one, one, around},
      {"deep", {1, 352, 4, 4}, {16, 352, 3, 3}, one, one, around},
      {"padded", {2, 64, 12, 11}, {48, 64, 3, 3}, one, one, around},
      {"padded_valid", {2, 32, 20, 19}, {64, 32, 3, 3}, one, one, none},
      {"padded_dilated", {2, 32, 16, 18}, {80, 32, 3, 3}, one, two, {2, 2, 2, 2}},
      {"padded_5x5", {2, 96, 24, 26}, {32, 96, 5, 5}, one, one, {1, 3, 3, 0}},
      {"padded_chunks", {3, 32, 30, 31}, {32, 32, 3, 3}, one, one, around},
      {"padded_one_sample", {1, 32, 24, 25}, {32, 32, 3, 3}, one, one, {2, 3, 2, 3}},
      {"padded_row", {2, 32, 3, 40}, {32, 32, 1, 3}, one, one, {0, 1, 0, 1}},
  };
}

void check_on_tiles(const ConvCase& c, const tiles::Instructions& instructions) {
  SCOPED_TRACE(c.name);
  const HostTensor x = narrow_map(c.x, 1), w = narrow_map(c.w, 2), dy = narrow_map(c.y(), 3);
  const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
  const auto in_double = [](const HostTensor& tensor) { return as_float(tensor, DType::kFloat64); };
  const auto blocked = [](const HostTensor& tensor) {
    return to_layout(tensor, Layout::kBlocked16);
  };
  const auto map = [](const Shape& shape) {
    return in_layout({DType::kBFloat16, shape}, Layout::kBlocked16);
  };
  const auto shape = tile_convolution(conv_geometry(c.attributes(), c.x, c.w));
  ASSERT_TRUE(shape);
  const auto expect = [&](const HostTensor& got, const HostTensor& expected, double tolerance) {
    expect_close(as_float(to_layout(got, Layout::kRowMajor), DType::kFloat64), expected, tolerance);
  };
  const auto forward = make_tile_pass(*shape, /*input_gradient=*/false, instructions);
  expect(run_on_tiles(*forward, {blocked(x), w, b}, map(c.y())),
         run_op("Conv", c.attributes(), {in_double(x), in_double(w), in_double(b)})[0], 0.004);
  const auto backward = make_tile_pass(*shape, /*input_gradient=*/true, instructions);
  expect(run_on_tiles(*backward, {blocked(dy), w}, map(c.x)),
         run_op("ConvInputGrad", c.with_output(c.x), {in_double(dy), in_double(w)})[0], 0.004);
  const auto gradient = make_tile_weight_gradient(*shape, instructions);
  const HostTensor dw = run_on_tiles(*gradient, {blocked(x), blocked(dy)}, {DType::kFloat32, c.w});
  expect(dw, run_op("ConvWeightGrad", c.with_output(c.w), {in_double(x), in_double(dy)})[0], 1e-5);
  HostTensor sum =
      run_on_tiles(*gradient, {blocked(x), blocked(dy)}, {DType::kFloat32, c.w}, 0.75F);
  for (std::int64_t i = 0; i < sum.type().count(); ++i)
    ASSERT_EQ(sum.view().as<float>()[i], 0.75F + dw.view().as<float>()[i]);
}

TEST(TileConvolution, FollowsTheReference) {
  for (const int threads : {1, 2}) {
    omp_set_num_threads(threads);
    for (const ConvCase& c : tile_cases()) check_on_tiles(c, tiles::portable());
  }
  omp_set_num_threads(1);
}

TEST(TileConvolution, WithVectorsFollowsTheReference) {
  if (!has_avx512_bfloat16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (const ConvCase& c : tile_cases()) check_on_tiles(c, tiles::vectors());
}

TEST(TileConvolution, WithAmxFollowsTheReference) {
  if (!has_amx()) GTEST_SKIP() << "this processor has no AMX";
  for (const ConvCase& c : tile_cases()) check_on_tiles(c, tiles::amx());
}

TEST(TileConvolution, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const ConvCase& c : tile_cases()) {
    SCOPED_TRACE(c.name);
    const auto shape = tile_convolution(conv_geometry(c.attributes(), c.x, c.w)).value();
    const HostTensor x = to_layout(narrow_map(c.x, 1), Layout::kBlocked16);
    const HostTensor w = narrow_map(c.w, 2);
    const HostTensor dy = to_layout(narrow_map(c.y(), 3), Layout::kBlocked16);
    const auto run = [&](int threads) {
      omp_set_num_threads(threads);
      const auto forward = make_tile_pass(shape, /*input_gradient=*/false, tiles::portable());
      const auto backward = make_tile_pass(shape, /*input_gradient=*/true, tiles::portable());
      const auto gradient = make_tile_weight_gradient(shape, tiles::portable());
      return std::array{run_on_tiles(*forward, {x, w}, dy.type()),
                        run_on_tiles(*backward, {dy, w}, x.type()),
                        run_on_tiles(*gradient, {x, dy}, {DType::kFloat32, c.w})};
    };
    const auto alone = run(1);
    for (const int threads : {3, 64}) {
      const auto together = run(threads);
      for (std::size_t i = 0; i < alone.size(); ++i) expect_same_bits(together[i], alone[i]);
    }
  }
  omp_set_num_threads(1);
}

TEST(TileConvolution, PacksMapsOnceWhereThatAddsFewZeros) {
  const auto shape = [](const ConvCase& c) {
    return tile_convolution(conv_geometry(c.attributes(), c.x, c.w)).value();
  };
  const auto pays = [&](const ConvCase& c) {
    return padded_pass_pays(shape(c), /*input_gradient=*/false);
  };
  for (const ConvCase& c : tile_cases()) {
    SCOPED_TRACE(c.name);
    const bool padded = std::string_view(c.name).starts_with("padded");
    if (padded || c.strides != Ints{1, 1}) EXPECT_EQ(pays(c), padded);
    EXPECT_GE(padded_gradient_pays(shape(c)), padded);
  }
  const Ints one = {1, 1}, around = {1, 1, 1, 1};
  EXPECT_TRUE(pays({"", {1, 32, 7, 7}, {32, 32, 3, 3}, one, one, around}));
  EXPECT_FALSE(pays({"", {1, 32, 6, 6}, {32, 32, 3, 3}, one, one, around}));
  // Each chunk of positions would pack as many more as its windows reach.
  EXPECT_FALSE(pays({"", {1, 2048, 64, 128}, {256, 2048, 3, 3}, one, {12, 12}, {12, 12, 12, 12}}));
  EXPECT_FALSE(pays({"", {1, 48, 9, 9}, {32, 48, 3, 3}, one, one, around}));
  // The gradient of the outputs has whole pairs of blocks.
  EXPECT_TRUE(padded_pass_pays(shape({"", {1, 48, 9, 9}, {32, 48, 3, 3}, one, one, around}),
                               /*input_gradient=*/true));
}

/// Sums of the channels of dy.
HostTensor bias_gradient(const HostTensor& dy) {
  const Shape& shape = dy.type().shape;
  const std::int64_t positions = shape[2] * shape[3];
  HostTensor sums(TensorType{DType::kFloat64, {shape[1]}});
  const HostTensor in_double = as_float(dy, DType::kFloat64);
  for (std::int64_t i = 0; i < shape.count(); ++i)
    sums.span<double>()[at(i / positions % shape[1])] += in_double.span<double>()[at(i)];
  return sums;
}

/// Returns the gradient of the weights.
HostTensor check_with_pairs(const ConvCase& c, const tiles::Instructions& instructions) {
  const HostTensor x = narrow_map(c.x, 1), dy = narrow_map(c.y(), 3);
  const auto shape = tile_convolution(conv_geometry(c.attributes(), c.x, c.w));
  const auto kernel = make_pair_weight_gradient(shape.value(), instructions);
  const Buffer workspace(kernel->workspace_bytes());
  RunContext context;
  context.workspace = workspace.data();
  const HostTensor blocked_x = to_layout(x, Layout::kBlocked16);
  const HostTensor blocked_dy = to_layout(dy, Layout::kBlocked16);
  const std::vector<Tensor> in = {blocked_x.view(), blocked_dy.view()};
  const auto gradients = [&](float before) {
    std::pair<HostTensor, HostTensor> both{TensorType{DType::kFloat32, c.w},
                                           TensorType{DType::kFloat32, {c.w[0]}}};
    for (HostTensor* one : {&both.first, &both.second})
      for (float& value : one->span<float>()) value = before;
    const std::vector<Tensor> out = {both.first.view(), both.second.view()};
    before == 0 ? kernel->run(in, out, context)
                : dynamic_cast<AddingKernel&>(*kernel).run_adding(in, out, context);
    return both;
  };
  const auto [dw, db] = gradients(0);
  const auto in_double = [](const HostTensor& tensor) { return as_float(tensor, DType::kFloat64); };
  expect_close(in_double(dw),
               run_op("ConvWeightGrad", c.with_output(c.w), {in_double(x), in_double(dy)})[0],
               1e-5);
  expect_close(in_double(db), bias_gradient(dy), 1e-5);
  const auto [sum, bias_sum] = gradients(0.75F);
  const auto expect_added = [](const HostTensor& all, const HostTensor& added) {
    for (std::int64_t i = 0; i < added.type().count(); ++i)
      EXPECT_EQ(all.view().as<float>()[i], 0.75F + added.view().as<float>()[i]);
  };
  expect_added(sum, dw);
  expect_added(bias_sum, db);
  return dw;
}

void check_all_with_pairs(const tiles::Instructions& instructions) {
  std::vector<ConvCase> cases = tile_cases();
  const Ints one = {1, 1};
  // Several chunks of rows, columns and positions; positions of several samples.
  cases.push_back({"rows", {2, 16, 4, 5}, {288, 16, 1, 1}, one, one, {0, 0, 0, 0}});
  cases.push_back({"columns", {2, 80, 5, 4}, {16, 80, 3, 3}, one, one, {1, 1, 1, 1}});
  cases.push_back({"positions", {5, 48, 17, 19}, {32, 48, 1, 1}, one, one, {0, 0, 0, 0}});
  for (const ConvCase& c : cases) {
    SCOPED_TRACE(c.name);
    omp_set_num_threads(1);
    const HostTensor alone = check_with_pairs(c, instructions);
    for (const int threads : {2, 3}) {
      omp_set_num_threads(threads);
      expect_same_bits(check_with_pairs(c, instructions), alone);
    }
  }
  omp_set_num_threads(1);
}

TEST(TileConvolution, WithPairsFollowsTheReference) { check_all_with_pairs(tiles::portable()); }

TEST(TileConvolution, WithPairsOfVectorsFollowsTheReference) {
  if (!has_avx512_bfloat16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  check_all_with_pairs(tiles::vectors());
}

TEST(TileConvolution, OfImagesFollowsTheReference) {
  const Ints one = {1, 1}, two = {2, 2};
  const std::vector<ConvCase> cases = {
      {"resnet", {2, 3, 31, 26}, {32, 3, 7, 7}, two, one, {3, 3, 3, 3}},
      {"mobilenet", {3, 3, 17, 18}, {16, 3, 3, 3}, two, one, {1, 1, 1, 1}},
      {"same_upper", {2, 3, 16, 16}, {16, 3, 3, 3}, two, one, {0, 0, 1, 1}},
      {"patches", {2, 1, 12, 13}, {16, 1, 4, 4}, {4, 3}, one, {0, 0, 0, 0}},
      {"rows", {2, 2, 14, 9}, {48, 2, 4, 3}, {4, 1}, one, {1, 1, 2, 1}},
      {"stride_1", {2, 9, 7, 8}, {16, 9, 3, 3}, one, one, {1, 1, 1, 1}}};
  for (const int threads : {1, 2}) {
    omp_set_num_threads(threads);
    for (const ConvCase& c : cases) {
      SCOPED_TRACE(c.name);
      const auto shape = tile_image(conv_geometry(c.attributes(), c.x, c.w));
      ASSERT_TRUE(shape);
      const HostTensor x = narrow_map(c.x, 1), w = narrow_map(c.w, 2), dy = narrow_map(c.y(), 3);
      const HostTensor b = random_tensor({DType::kFloat32, {c.w[0]}}, 4);
      const auto in_double = [](const HostTensor& t) { return as_float(t, DType::kFloat64); };
      const auto forward = make_tile_image_forward(*shape, tiles::portable());
      const TensorType y = in_layout({DType::kBFloat16, c.y()}, Layout::kBlocked16);
      expect_close(in_double(to_layout(run_on_tiles(*forward, {x, w, b}, y), Layout::kRowMajor)),
                   run_op("Conv", c.attributes(), {in_double(x), in_double(w), in_double(b)})[0],
                   0.004);
      const auto gradient = make_tile_image_weight_gradient(*shape, tiles::portable());
      const std::vector<HostTensor> in = {x, to_layout(dy, Layout::kBlocked16)};
      const TensorType type{DType::kFloat32, c.w};
      const HostTensor dw = run_on_tiles(*gradient, in, type);
      expect_close(in_double(dw),
                   run_op("ConvWeightGrad", c.with_output(c.w), {in_double(x), in_double(dy)})[0],
                   1e-5);
      const HostTensor sum = run_on_tiles(*gradient, in, type, 0.75F);
      for (std::int64_t i = 0; i < type.count(); ++i)
        ASSERT_EQ(sum.view().as<float>()[i], 0.75F + dw.view().as<float>()[i]);
    }
  }
  omp_set_num_threads(1);
  const auto fits = [&](const Shape& x, const Shape& w, const Ints& strides) {
    const ConvCase c{"", x, w, strides, one, {0, 0, 0, 0}};
    return tile_image(conv_geometry(c.attributes(), c.x, c.w)).has_value();
  };
  EXPECT_FALSE(fits({1, 3, 8, 8}, {16, 3, 3, 3}, one));  // most channels would be zeros
  EXPECT_FALSE(fits({1, 5, 8, 8}, {16, 5, 3, 3}, two));
  EXPECT_FALSE(fits({1, 3, 8, 8}, {8, 3, 3, 3}, two));
}

TEST(TileConvolution, NeedsWholeBlocksOfChannelsInOneGroup) {
  const auto fits = [](const ConvCase& c) {
    return tile_convolution(conv_geometry(c.attributes(), c.x, c.w)).has_value();
  };
  const Ints one = {1, 1}, none = {0, 0, 0, 0};
  EXPECT_TRUE(fits({"", {1, 16, 3, 3}, {16, 16, 1, 1}, one, one, none}));
  EXPECT_FALSE(fits({"", {1, 24, 3, 3}, {16, 24, 1, 1}, one, one, none}));
  EXPECT_FALSE(fits({"", {1, 16, 3, 3}, {8, 16, 1, 1}, one, one, none}));
  EXPECT_FALSE(fits({"", {1, 32, 3, 3}, {32, 16, 1, 1}, one, one, none, 2}));
}

}  // namespace
}  // namespace pipetrain::test
