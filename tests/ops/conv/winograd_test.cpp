// Winograd's convolutions: which shapes they take, and what threads and long sums change.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "ops/conv/conv_cases.h"
#include "ops/kernel/onednn_cpu.h"
#include "ops/matmul/gemm_cpu.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// Whether oneDNN makes y and dx in a layout.
bool is_onednn(const ConvCase& c, Layout layout, DType dtype) {
  const TensorType x{dtype, c.x, layout}, y{dtype, c.y(), layout}, w{dtype, c.w};
  const auto by_onednn = [](std::string_view op, const Attributes& attributes,
                            const std::vector<TensorType>& inputs, const TensorType& output) {
    Node node;
    node.op = find_op(op);
    node.attributes = attributes;
    const std::vector<TensorType> outputs{output};
    const auto kernel = make_kernel(Backend::kCpu, {node, inputs, outputs});
    return dynamic_cast<const SequenceKernel*>(kernel.get()) != nullptr;
  };
  const bool forward = by_onednn("Conv", c.attributes(), {x, w}, y);
  EXPECT_EQ(by_onednn("ConvInputGrad", c.with_output(c.x), {y, w}, x), forward) << c.name;
  return forward;
}

TEST(ConvTest, WinogradIsChosenByShape) {
  const Ints one = {1, 1}, two = {2, 2}, around = {1, 1, 1, 1};
  const Shape x{4, 32, 16, 16}, w{48, 32, 3, 3};
  const ConvCase plain{"plain", x, w, one, one, around};
  const ConvCase strided{"strided", x, w, two, one, around};
  const ConvCase dilated{"dilated", x, w, one, two, {2, 2, 2, 2}};
  const ConvCase volume{"volume",  {4, 32, 5, 16, 16}, {48, 32, 3, 3, 3},
                        {2, 1, 1}, {1, 1, 1},          {1, 1, 1, 1, 1, 1}};
  for (const Layout layout : plain.blocked_layouts()) {
    for (const ConvCase& c : {plain, strided, dilated, volume})
      EXPECT_FALSE(is_onednn(c, layout, DType::kFloat32)) << c.name;
    // Of volumes, windows and slices that would need much memory.
    ConvCase large = volume;
    large.x = {1, 32, 600, 8, 8};
    EXPECT_TRUE(is_onednn(large, layout, DType::kFloat32));
    large = volume;
    large.w = {48, 32, 9, 3, 3};
    large.pads = {4, 1, 1, 4, 1, 1};
    EXPECT_TRUE(is_onednn(large, layout, DType::kFloat32));
    // Maps of which most tiles would be padding.
    for (const std::int64_t gap : {std::int64_t{7}, std::int64_t{1} << 30}) {
      const ConvCase c{"wide_gaps", x, w, one, {gap, gap}, {gap, gap, gap, gap}};
      EXPECT_TRUE(is_onednn(c, layout, DType::kFloat32)) << gap;
    }
    if (!has_fast_bfloat16_products() || has_amx()) continue;
    EXPECT_FALSE(is_onednn(plain, layout, DType::kBFloat16));
    EXPECT_FALSE(is_onednn(dilated, layout, DType::kBFloat16));
    EXPECT_TRUE(is_onednn(strided, layout, DType::kBFloat16));
  }
}

// With few and many tiles, and panels of output channels that threads cannot share evenly.
TEST(ConvTest, WinogradKeepsItsBitsWithThreads) {
  const Ints one = {1, 1}, around = {1, 1, 1, 1};
  const Ints unit = {1, 1, 1}, all_around = {1, 1, 1, 1, 1, 1};
  for (const ConvCase& c :
       {ConvCase{"volume_few", {1, 48, 2, 5, 8}, {80, 48, 3, 3, 3}, unit, unit, all_around},
        ConvCase{"volume", {3, 32, 4, 13, 10}, {80, 32, 3, 3, 3}, unit, unit, all_around},
        ConvCase{"volume_unpadded",
                 {3, 32, 5, 13, 10},
                 {80, 32, 3, 3, 3},
                 unit,
                 unit,
                 {0, 1, 1, 0, 1, 1}},
        ConvCase{
            "volume_strided", {3, 32, 6, 16, 24}, {48, 32, 3, 3, 3}, {2, 2, 2}, unit, all_around},
        ConvCase{"few_tiles", {2, 80, 4, 5}, {48, 80, 3, 3}, one, one, around},
        ConvCase{"many_tiles", {5, 48, 16, 15}, {80, 48, 3, 3}, one, one, around},
        ConvCase{"many_channels", {7, 112, 16, 15}, {176, 112, 3, 3}, one, one, around},
        ConvCase{"few_channels", {4, 32, 40, 37}, {48, 32, 3, 3}, one, one, around},
        ConvCase{"dilated", {3, 48, 23, 24}, {80, 48, 3, 3}, one, {2, 2}, {2, 2, 2, 2}},
        ConvCase{"strided", {5, 48, 30, 31}, {80, 48, 3, 3}, {2, 2}, one, around}}) {
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const HostTensor w = random_tensor({DType::kFloat32, c.w}, 2);
    const HostTensor dy = random_tensor({DType::kFloat32, c.y()}, 3);
    for (const Layout layout : c.blocked_layouts()) {
      const int before = omp_get_max_threads();
      std::vector<HostTensor> alone;
      for (const int threads : {1, 3, 12}) {
        omp_set_num_threads(threads);
        const std::vector<HostTensor> results = {
            in_blocks(c, x, w, {}, false, false, layout),
            in_blocks(c, dy, w, {}, true, false, layout),
            run_in_layouts("ConvWeightGrad", c.with_output(c.w),
                           {to_layout(x, layout), to_layout(dy, layout)}, {w.type()})[0]};
        if (threads == 1) alone = results;
        for (std::size_t i = 0; i < alone.size(); ++i)
          expect_same_bits(results[i], alone[i], fmt::format("{} {} {}", c.name, i, threads));
      }
      omp_set_num_threads(before);
    }
  }
}

// In one long sum over 512 channels, Winograd's error would be 2e-6 (rms, of the result).
TEST(ConvTest, WinogradAddsPartialSumsOfChannels) {
  const ConvCase c{"deep", {1, 512, 33, 33}, {32, 512, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
  const HostTensor w = random_tensor({DType::kFloat32, c.w}, 2);
  const auto exact = [](const HostTensor& tensor) { return as_float(tensor, DType::kFloat64); };
  const HostTensor expected = run_op("Conv", c.attributes(), {exact(x), exact(w)})[0];
  for (const Layout layout : c.blocked_layouts()) {
    const HostTensor y = in_blocks(c, x, w, {}, false, false, layout);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < expected.span<double>().size(); ++i) {
      const double value = expected.span<double>()[i];
      error += (y.span<float>()[i] - value) * (y.span<float>()[i] - value);
      size += value * value;
    }
    EXPECT_LT(std::sqrt(error / size), 1.3e-6);
  }
}

}  // namespace
}  // namespace pipetrain::test
