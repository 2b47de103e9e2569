#include <gtest/gtest.h>

#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kBlocked8, Layout::kBlocked16,
                               Layout::kChannelsLast};

Attributes to(Layout layout) { return {{"layout", static_cast<std::int64_t>(layout)}}; }

TEST(ReorderTest, PutsTheChannelsOfABlockSideBySide) {
  // Two images of 16 channels and 2 positions: element (n, c, p) holds 1000 n + 100 p + c.
  std::vector<float> values;
  for (int n = 0; n < 2; ++n) {
    for (int c = 0; c < 16; ++c) {
      for (int p = 0; p < 2; ++p) values.push_back(static_cast<float>(1000 * n + 100 * p + c));
    }
  }
  const HostTensor x = floats({2, 16, 1, 2}, values);
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor blocked = run_op("Reorder", to(Layout::kBlocked8), {x}, backend)[0];
    const auto y = blocked.span<float>();
    for (std::size_t i = 0; i < 8; ++i) {
      const auto c = static_cast<float>(i);
      EXPECT_EQ(y[i], c);                        // first block, first position
      EXPECT_EQ(y[8 + i], 100 + c);              // second position
      EXPECT_EQ(y[16 + i], 8 + c);               // second block
      EXPECT_EQ(y[32 + 8 + i], 1000 + 100 + c);  // second image
    }
  }
}

TEST(ReorderTest, EveryPairOfLayouts) {
  for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kFloat64, DType::kUint8}) {
    const HostTensor x = random_tensor({dtype, {3, 32, 5, 7}}, 1, 0, 100);
    for (const Layout from : kLayouts) {
      for (const Layout layout : kLayouts) {
        for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
          const HostTensor y = run_op("Reorder", to(layout), {to_layout(x, from)}, backend)[0];
          expect_same_bits(y, to_layout(x, layout), "reorder");
        }
      }
    }
  }
}

// Elements are moved, not converted: subnormal numbers and the bits of NaN stay.
TEST(ReorderTest, EveryNarrowNumberKeepsItsBits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    HostTensor x(TensorType{dtype, {2, 32, 32, 32}});
    for (std::int64_t i = 0; i < x.type().count(); ++i)
      x.view().as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    for (const Layout from : kLayouts) {
      for (const Layout layout : kLayouts) {
        const HostTensor y = run_op("Reorder", to(layout), {to_layout(x, from)}, Backend::kCpu)[0];
        expect_same_bits(y, to_layout(x, layout), "reorder");
      }
    }
  }
}

// Full, partial and missing tiles; more tiles than blocks; few rows or columns in one piece and in
// several.
TEST(ReorderTest, OnGpus) {
  check_cpu("Reorder", to(Layout::kChannelsLast), {{{2, 33, 2, 6}}}, 0);
  for (const Shape& shape :
       {Shape{2, 32, 8, 8}, Shape{3, 40, 5, 7}, Shape{2, 3, 9, 11}, Shape{1, 70, 1, 3},
        Shape{40, 9, 3, 3}, Shape{2, 33, 6, 33}, Shape{2, 700, 3, 3}, Shape{3, 2, 40, 41},
        Shape{2, 1, 9, 9}, Shape{1, 24, 30, 31}, Shape{1, 2200, 2, 1}, Shape{1, 25, 5, 5}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kUint8}) {
      HostTensor x(TensorType{dtype, shape});
      for (std::size_t i = 0; i < x.type().bytes(); ++i)
        x.view().as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 % 251);
      const HostTensor last = to_layout(x, Layout::kChannelsLast);
      for (const bool forward : {true, false}) {
        const HostTensor& from = forward ? x : last;
        const HostTensor& expected = forward ? last : x;
        Node node;
        node.op = find_op("Reorder");
        node.attributes = to(expected.type().layout);
        HostTensor y(expected.type());
        const auto kernel = make_gpu_kernel({node, {from.type()}, {y.type()}});
        ASSERT_NE(kernel, nullptr);
        const Tensor in = from.view(), out = y.view();
        kernel->run({&in, 1}, {&out, 1}, {});
        expect_same_bits(y, expected, shape.text());
      }
    }
  }
}

TEST(ReorderTest, Gradient) { check_gradients("Reorder", to(Layout::kRowMajor), {{{2, 8, 2, 2}}}); }

TEST(ReorderTest, RefusesPartialBlocks) {
  const auto infer = [](Layout layout, const Shape& x) {
    return [=] { infer_op("Reorder", to(layout), {{DType::kFloat32, x}}); };
  };
  expect_error(ErrorKind::kModel, "whole blocks", infer(Layout::kBlocked8, {1, 12, 4, 4}));
  expect_error(ErrorKind::kModel, "blocks of 16", infer(Layout::kBlocked16, {1, 24, 4, 4}));
  expect_error(ErrorKind::kModel, "(N, C, …)", infer(Layout::kBlocked8, {8, 8}));
  expect_error(ErrorKind::kModel, "(N, C, H, W)", infer(Layout::kChannelsLast, {8, 8, 8}));
  expect_error(ErrorKind::kModel, "no layout 7", [] {
    infer_op("Reorder", {{"layout", std::int64_t{7}}}, {{DType::kFloat32, {1, 8, 1, 1}}});
  });
}

}  // namespace
}  // namespace pipetrain::test
