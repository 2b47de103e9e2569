#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes sampling(const char* mode, const char* padding = "zeros", std::int64_t align = 0) {
  return {{"mode", std::string(mode)},
          {"padding_mode", std::string(padding)},
          {"align_corners", align}};
}

// A 2 x 2 image; corners of the aligned grid are its pixels.
TEST(GridSample, ReadsPixelsAndBetweenThem) {
  const HostTensor x = floats({1, 1, 2, 2}, {1, 2, 3, 4});
  const HostTensor grid = floats({1, 1, 4, 2}, {-1, -1, 1, -1, 0, 0, 3, 3});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto sample = [&](const char* mode, const char* padding, std::int64_t align) {
      return run_op("GridSample", sampling(mode, padding, align), {x, grid}, backend)[0];
    };
    expect_values(sample("linear", "zeros", 1), {1, 1, 1, 4}, {1, 2, 2.5, 0});
    expect_values(sample("linear", "zeros", 0), {1, 1, 1, 4}, {0.25, 0.5, 2.5, 0});
    expect_values(sample("linear", "border", 0), {1, 1, 1, 4}, {1, 2, 2.5, 4});
    // (3, 3) is one image size beyond the last pixel: reflects to the first.
    expect_values(sample("linear", "reflection", 1), {1, 1, 1, 4}, {1, 2, 2.5, 1});
    expect_values(sample("nearest", "border", 1), {1, 1, 1, 4}, {1, 2, 1, 4});
    expect_values(sample("cubic", "zeros", 1), {1, 1, 1, 4}, {1, 2, 2.5 * 1.1875 * 1.1875, 0});
  }
}

/// Positions away from the kinks at pixels and borders.
InputSpec positions(Shape shape) {
  InputSpec spec{std::move(shape)};
  for (std::int64_t i = 0; i < spec.shape.count(); ++i) {
    spec.values.push_back(-1.43 + 0.317 * static_cast<double>((i * 7) % 10));
  }
  return spec;
}

TEST(GridSample, Gradients) {
  for (const char* padding : {"zeros", "border", "reflection"}) {
    for (const std::int64_t align : {0, 1}) {
      for (const char* mode : {"linear", "cubic", "nearest"}) {
        check_gradients("GridSample", sampling(mode, padding, align),
                        {{{2, 3, 3, 5}}, positions({2, 2, 3, 2})});
      }
      check_gradients("GridSample", sampling("linear", padding, align),
                      {{{1, 2, 3, 2, 4}}, positions({1, 2, 1, 2, 3})});
      check_gradients("GridSample", sampling("cubic", padding, align),
                      {{{2, 1, 5}}, positions({2, 4, 1})});
    }
  }
}

/// The gradient of the sum of the samples for the positions.
HostTensor slopes(const Attributes& attributes, const HostTensor& x, const HostTensor& grid,
                  Backend backend) {
  const Shape sampled{x.shape()[0], x.shape()[1], grid.shape()[1], grid.shape()[2]};
  HostTensor ones(TensorType{DType::kFloat32, sampled});
  for (float& one : ones.span<float>()) one = 1;
  return run_op("GridSampleGrad", attributes, {ones, x, grid}, backend)[1];
}

// torch.nn.functional.grid_sample(x, grid, align_corners=True): positions exactly on the border
// count as outside.
TEST(GridSample, SlopesOnTheBorder) {
  const HostTensor x = floats({1, 1, 1, 4}, {1, 2, 4, 8});
  const HostTensor grid = floats({1, 1, 4, 2}, {-1, 0, 1, 0, -0.5F, 0, 0.5F, 0});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (const char* padding : {"border", "reflection"})
      expect_values(slopes(sampling("linear", padding, 1), x, grid, backend), {1, 1, 4, 2},
                    {0, 0, 0, 0, 1.5, 0, 6, 0});
  }
}

// Taps without offsets are not before their pixels, or their slopes would be those of the pixels
// before: an infinite one would be read.
TEST(DeformConv, TapsWithoutOffsetsDoNotReadThePixelBefore) {
  for (const std::int64_t extent : {7, 14, 56, 100}) {
    const auto count = static_cast<std::size_t>(extent);
    for (std::size_t pixel = 1; pixel < count; ++pixel) {
      std::vector<float> values(count, 1);
      values[pixel - 1] = std::numeric_limits<float>::infinity();
      const Imported node =
          import_node("DeformConv", 19, {},
                      {data(floats({1, 1, extent, 1}, values)), data(floats({1, 1, 1, 1}, {1})),
                       data(floats({1, 2, extent, 1}, std::vector<float>(2 * count)))});
      for (const Backend backend : {Backend::kReference, Backend::kCpu})
        EXPECT_TRUE(std::isfinite(node.run(backend)[0].to_doubles()[pixel]))
            << extent << " " << pixel;
    }
  }
}

// A cubic whose position is outside reads pixels inside, too. Expected values from PyTorch's
// grid_sample, bicubic with padding_mode "border".
TEST(GridSample, CubicsAtTheBorder) {
  const HostTensor x = floats({1, 1, 1, 4}, {1, 2, 4, 8});
  const HostTensor grid = floats({1, 1, 5, 2}, {-1.2F, 0, -0.9F, 0, 0.3F, 0, 0.95F, 0, 1.4F, 0});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (const std::int64_t align : {0, 1}) {
      expect_values(run_op("GridSample", sampling("cubic", "border", align), {x, grid}, backend)[0],
                    {1, 1, 1, 5},
                    align ? std::vector<double>{0.88975, 1.099, 3.787781, 7.766773, 8.288}
                          : std::vector<double>{0.99325, 0.88975, 4.4495, 8.432, 8},
                    1e-5);
    }
  }
}

TEST(GridSample, OnTheCpu) {
  const InputSpec grid{{3, 20, 31, 2}, -1.5, 1.5};
  for (const char* mode : {"linear", "cubic"}) {
    check_cpu("GridSample", sampling(mode, "reflection"), {{{3, 5, 17, 13}}, grid}, 2e-5);
    check_cpu("GridSampleGrad", sampling(mode, "zeros"), {{{3, 5, 20, 31}}, {{3, 5, 17, 13}}, grid},
              1e-4);
  }
}

TEST(GridSample, OfNoPositionsAndOfOnePixel) {
  const HostTensor x = floats({1, 1, 1, 1}, {7});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const HostTensor none =
        run_op("GridSample", sampling("linear"), {x, floats({1, 0, 3, 2}, {})}, backend)[0];
    EXPECT_EQ(none.shape().text(), "(1, 1, 0, 3)");
    for (const char* padding : {"border", "reflection"}) {
      for (const std::int64_t align : {0, 1}) {
        expect_values(run_op("GridSample", sampling("linear", padding, align),
                             {x, floats({1, 1, 1, 2}, {0.3F, -4})}, backend)[0],
                      {1, 1, 1, 1}, {7});
      }
    }
  }
}

TEST(GridSample, RefusesAndImports) {
  const HostTensor x = floats({1, 1, 1, 2}, {1, 3});
  const HostTensor grid = floats({1, 1, 1, 2}, {0, 0});
  expect_values(
      import_node("GridSample", 16, {{"mode", std::string("bilinear")}}, {data(x), data(grid)})
          .run()[0],
      {1, 1, 1, 1}, {2});
  expect_error(ErrorKind::kModel, "no mode \"quintic\"", [&] {
    import_node("GridSample", 20, {{"mode", std::string("quintic")}}, {data(x), data(grid)});
  });
  expect_error(ErrorKind::kModel, "cannot use a grid", [] {
    infer_op("GridSample", {}, {{DType::kFloat32, {1, 1, 2, 2}}, {DType::kFloat32, {1, 1, 1, 3}}});
  });
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_values(
      run_op("GridSample", sampling("linear"), {x, floats({1, 1, 1, 2}, {nan, 1e30F})})[0],
      {1, 1, 1, 1}, {0});
}

}  // namespace
}  // namespace pipetrain::test
