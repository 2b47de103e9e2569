#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// Resizes (3, 1, 4, 1, 5, 9) with opset 19.
Imported resize(const Attributes& attributes, std::vector<float> scales,
                std::vector<std::int64_t> sizes = {}) {
  std::vector<ImportInput> inputs = {data(floats({6}, {3, 1, 4, 1, 5, 9})), absent()};
  inputs.push_back(scales.empty()
                       ? absent()
                       : constant(floats({static_cast<std::int64_t>(scales.size())}, scales)));
  if (!sizes.empty())
    inputs.push_back(constant(int64s({static_cast<std::int64_t>(sizes.size())}, sizes)));
  return import_node("Resize", 19, attributes, inputs);
}

struct ResizeGolden {
  std::string mode, coordinates;
  std::vector<double> to_nine;  // sizes = [9]
  std::vector<double> to_0_6;   // scales = [0.6]
};

// Expected values from the reference evaluator of the onnx package, 1.23.
TEST(Resize, EveryModeAndCoordinateSystem) {
  const std::vector<ResizeGolden> goldens = {
      {"nearest", "half_pixel", {3, 3, 1, 4, 4, 1, 5, 5, 9}, {3, 4, 5}},
      {"nearest", "asymmetric", {3, 1, 1, 4, 1, 1, 5, 9, 9}, {3, 4, 1}},
      {"nearest", "align_corners", {3, 1, 1, 4, 4, 1, 5, 5, 9}, {3, 4, 5}},
      {"nearest", "half_pixel_symmetric", {3, 3, 1, 4, 4, 1, 5, 5, 9}, {1, 4, 5}},
      {"linear",
       "half_pixel",
       {3, 2, 1.5, 3.5, 2.5, 1.666667, 4.333333, 7, 9},
       {2.333333, 4, 3.666666}},
      {"linear", "asymmetric", {3, 1.666667, 2, 4, 2, 2.333333, 5, 7.666667, 9}, {3, 3, 2.333333}},
      {"linear",
       "align_corners",
       {3, 1.75, 1.75, 3.625, 2.5, 1.5, 4, 6.5, 9},
       {3, 3.76923, 4.384614}},
      {"linear",
       "pytorch_half_pixel",
       {3, 2, 1.5, 3.5, 2.5, 1.666667, 4.333333, 7, 9},
       {2.333333, 4, 3.666666}},
      {"linear",
       "half_pixel_symmetric",
       {3, 2, 1.5, 3.5, 2.5, 1.666667, 4.333333, 7, 9},
       {1.333333, 2.5, 5.666667}},
      {"cubic",
       "half_pixel",
       {3.173612, 1.71875, 1.309028, 3.79514, 2.40625, 1.244217, 4.026622, 7.375, 9.347226},
       {2.203705, 3.999998, 3.129626}},
      {"cubic",
       "align_corners",
       {3, 1.391113, 1.574219, 3.881348, 2.40625, 1.161621, 3.566406, 6.880859, 9},
       {3, 3.953572, 4.099226}},
  };
  for (const ResizeGolden& golden : goldens) {
    SCOPED_TRACE(golden.mode + " " + golden.coordinates);
    const Attributes attributes{{"mode", golden.mode},
                                {"coordinate_transformation_mode", golden.coordinates}};
    expect_values(resize(attributes, {}, {9}).run()[0], {9}, golden.to_nine, 2e-6);
    expect_values(resize(attributes, {0.6F}).run()[0], {3}, golden.to_0_6, 2e-6);
  }
}

// TensorFlow's nearest neighbor reads element floor((i + 1/2) · 6 / 9).
TEST(Resize, TensorFlowsNearestNeighbor) {
  const auto with = [](const std::string& rounding) {
    return resize({{"coordinate_transformation_mode", std::string("tf_half_pixel_for_nn")},
                   {"nearest_mode", rounding}},
                  {}, {9})
        .run()[0];
  };
  expect_values(with("floor"), {9}, {3, 1, 1, 4, 1, 1, 5, 9, 9});
  expect_values(with("round_prefer_floor"), {9}, {3, 1, 4, 4, 1, 5, 5, 9, 9});
}

// The size is the product in float32, rounded down. Expected values from ONNX Runtime.
TEST(Resize, SizesFromScales) {
  const auto sizes = [](std::int64_t size, float scale) {
    const ImportInput x = data(random_tensor({DType::kFloat32, {size}}, 1));
    const ImportInput scales = constant(floats({1}, {scale}));
    const std::string crop = "tf_crop_and_resize";
    const ImportInput whole = constant(floats({2}, {0, 1}));
    return std::vector<std::int64_t>{
        import_node("Resize", 19, {}, {x, absent(), scales}).run()[0].shape()[0],
        import_node("Resize", 19, {{"coordinate_transformation_mode", crop}}, {x, whole, scales})
            .run()[0]
            .shape()[0],
        import_node("Upsample", 9, {}, {x, scales}).run()[0].shape()[0]};
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(10, 0.7F), (Sizes{7, 7, 7}));
  EXPECT_EQ(sizes(10, 0.9F), (Sizes{9, 9, 9}));
  EXPECT_EQ(sizes(3, 1.6666666F), (Sizes{5, 5, 5}));
  EXPECT_EQ(sizes(6, 0.6F), (Sizes{3, 3, 3}));
}

TEST(Resize, InfinitiesStayWhereTheyAre) {
  const float hidden = -std::numeric_limits<float>::infinity();
  const Imported node = import_node(
      "Resize", 19, {{"mode", std::string("linear")}},
      {data(floats({1, 1, 2}, {hidden, 1})), absent(), absent(), constant(int64s({3}, {1, 1, 4}))});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const std::vector<double> y = node.run(backend)[0].to_doubles();
    EXPECT_EQ(y[0], hidden);
    EXPECT_EQ(y[3], 1);
  }
}

TEST(Resize, NearestRounding) {
  const auto with = [](const std::string& rounding) {
    return resize({{"mode", std::string("nearest")}, {"nearest_mode", rounding}}, {}, {4}).run()[0];
  };
  expect_values(with("round_prefer_floor"), {4}, {3, 4, 1, 9});
  expect_values(with("floor"), {4}, {3, 1, 1, 5});
  expect_values(with("ceil"), {4}, {1, 4, 5, 9});
  const auto twice = [](const std::string& rounding) {
    return resize({{"nearest_mode", rounding},
                   {"coordinate_transformation_mode", std::string("asymmetric")}},
                  {2})
        .run()[0];
  };
  expect_values(twice("round_prefer_ceil"), {12}, {3, 1, 1, 4, 4, 1, 1, 5, 5, 9, 9, 9});
  expect_values(twice("round_prefer_floor"), {12}, {3, 3, 1, 1, 4, 4, 1, 1, 5, 5, 9, 9});
}

/// The elements that Resize takes from 0, 1, 2, ….
std::vector<double> nearest(std::int64_t inputs, const char* coordinates, const char* rounding,
                            const ImportInput& scales, const ImportInput& sizes) {
  std::vector<float> x(static_cast<std::size_t>(inputs));
  std::iota(x.begin(), x.end(), 0.0F);
  const Attributes attributes = {{"mode", std::string("nearest")},
                                 {"coordinate_transformation_mode", std::string(coordinates)},
                                 {"nearest_mode", std::string(rounding)}};
  return import_node("Resize", 19, attributes, {data(floats({inputs}, x)), absent(), scales, sizes})
      .run()[0]
      .to_doubles();
}

// Output 9 of 18 is at input 7 of 14 and not a little before it. The elements are
// those of exact arithmetic, by the definitions of PyTorch's nearest and nearest-exact.
TEST(Resize, NearestOfSizesIsExact) {
  for (std::int64_t inputs = 1; inputs < 40; ++inputs) {
    for (std::int64_t outputs = 1; outputs < 40; ++outputs) {
      const ImportInput sizes = constant(int64s({1}, {outputs}));
      const auto whole = nearest(inputs, "asymmetric", "floor", absent(), sizes);
      const auto middle = nearest(inputs, "half_pixel", "round_prefer_ceil", absent(), sizes);
      for (std::int64_t i = 0; inputs != outputs && i < outputs; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(whole[at], i * inputs / outputs) << inputs << " to " << outputs;
        ASSERT_EQ(middle[at], (2 * i + 1) * inputs / (2 * outputs)) << inputs << " to " << outputs;
      }
    }
  }
}

// Expected values from ONNX Runtime, which divides in float32.
TEST(Resize, NearestOfScalesIsDividedInFloat) {
  using Elements = std::vector<double>;
  const auto scaled = [](std::int64_t inputs, float scale, const char* coordinates,
                         const char* rounding) {
    return nearest(inputs, coordinates, rounding, constant(floats({1}, {scale})), absent());
  };
  EXPECT_EQ(scaled(9, 0.6F, "asymmetric", "floor"), (Elements{0, 1, 3, 5, 6}));
  EXPECT_EQ(scaled(7, 1.6F, "asymmetric", "floor"), (Elements{0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 6}));
  EXPECT_EQ(scaled(12, 0.3F, "half_pixel", "round_prefer_ceil"), (Elements{1, 5, 8}));
  EXPECT_EQ(scaled(7, 1.3F, "half_pixel", "round_prefer_floor"),
            (Elements{0, 1, 1, 2, 3, 4, 4, 5, 6}));
}

TEST(Resize, AntialiasAndExcludeOutside) {
  const std::int64_t yes = 1;
  expect_values(resize({{"mode", std::string("linear")}, {"antialias", yes}}, {}, {3}).run()[0],
                {3}, {2.375, 2.625, 6.5});
  expect_values(resize({{"mode", std::string("cubic")}, {"antialias", yes}}, {}, {3}).run()[0], {3},
                {2.322266, 2.138672, 6.599609});
  expect_values(
      resize({{"mode", std::string("cubic")}, {"exclude_outside", yes}}, {}, {9}).run()[0], {9},
      {3.202703, 1.828571, 1.309028, 3.795139, 2.40625, 1.244216, 4.02662, 7.514286, 9.405406},
      2e-6);
}

TEST(Resize, Images) {
  const ImportInput image = data(floats({1, 1, 2, 2}, {1, 2, 3, 4}));
  const Imported linear = import_node("Resize", 11, {{"mode", std::string("linear")}},
                                      {image, absent(), constant(floats({4}, {1, 1, 2, 2}))});
  EXPECT_EQ(linear.ops(), "Resample Resample");
  expect_values(linear.run()[0], {1, 1, 4, 4},
                {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4});
  const Imported upsample =
      import_node("Upsample", 9, {}, {image, constant(floats({4}, {1, 1, 1, 2}))});
  expect_values(upsample.run()[0], {1, 1, 2, 4}, {1, 1, 2, 2, 3, 3, 4, 4});
  const Imported ten = import_node("Resize", 10, {}, {image, constant(floats({4}, {1, 1, 2, 1}))});
  expect_values(ten.run()[0], {1, 1, 4, 2}, {1, 2, 1, 2, 3, 4, 3, 4});
  // test_resize_downsample_nearest of ONNX 1.5.
  const Imported fewer = import_node("Resize", 10, {},
                                     {data(floats({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8})),
                                      constant(floats({4}, {1, 1, 0.6F, 0.6F}))});
  expect_values(fewer.run()[0], {1, 1, 1, 2}, {1, 3});
  const Imported ratio = import_node("Resize", 18,
                                     {{"mode", std::string("linear")},
                                      {"keep_aspect_ratio_policy", std::string("not_larger")},
                                      {"axes", Ints{0, 1}}},
                                     {data(floats({3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})),
                                      absent(), absent(), constant(int64s({2}, {7, 3}))});
  expect_values(ratio.run()[0], {2, 3}, {0.833333, 2.166667, 3.5, 6.166667, 7.5, 8.833333}, 2e-6);
}

TEST(Resize, GradientsAndCpu) {
  for (const std::string mode : {"nearest", "linear", "cubic"}) {
    for (const std::int64_t axis : {1, 2}) {
      for (const std::int64_t size : {3, 10, 13}) {
        const double scale = static_cast<double>(size) / (axis == 1 ? 5.0 : 6.0);
        const Attributes attributes{
            {"axis", axis}, {"size", size}, {"scale", scale}, {"mode", mode}};
        check_gradients("Resample", attributes, {{.shape = {3, 5, 6}}});
        check_cpu("Resample", attributes, {{.shape = {3, 5, 6}}});
        Attributes gradient = attributes;
        gradient.set("shape", Ints{3, 5, 6});
        Shape dy{3, 5, 6};
        dy[static_cast<std::size_t>(axis)] = size;
        check_cpu("ResampleGrad", gradient, {{.shape = dy}});
      }
    }
  }
  const Attributes large{{"axis", std::int64_t{2}},
                         {"size", std::int64_t{64}},
                         {"scale", 2.0},
                         {"mode", std::string("linear")}};
  check_cpu("Resample", large, {{.shape = {4, 16, 32, 32}}});
}

TEST(Resize, NoElementsBehindTheAxis) {
  const Attributes doubled = {{"axis", std::int64_t{2}},
                              {"size", std::int64_t{8}},
                              {"scale", 2.0},
                              {"mode", std::string("linear")}};
  for (const Backend backend : {Backend::kReference, Backend::kCpu})
    expect_values(run_op("Resample", doubled, {floats({1, 1, 4, 0}, {})}, backend)[0], {1, 1, 8, 0},
                  {});
}

// From position 0.4 · 5 = 2 to 1.2 · 5 = 6, beyond the last element.
TEST(Resize, CropsAndExtrapolates) {
  const Attributes attributes = {
      {"mode", std::string("linear")},
      {"coordinate_transformation_mode", std::string("tf_crop_and_resize")},
      {"extrapolation_value", 10.0}};
  const Imported cropped =
      import_node("Resize", 13, attributes,
                  {data(floats({6}, {3, 1, 4, 1, 5, 9})), constant(doubles({2}, {0.4, 1.2})),
                   absent(), constant(int64s({1}, {5}))});
  expect_values(cropped.run()[0], {5}, {4, 1, 5, 9, 10});
  expect_values(cropped.run(Backend::kCpu)[0], {5}, {4, 1, 5, 9, 10});
}

TEST(Resize, WhatIsNotSupportedIsRefused) {
  expect_error(ErrorKind::kModel, "neither", [] { resize({}, {}); });
  const auto refuses = [](const std::string& attribute) {
    expect_error(ErrorKind::kModel, "\"middle\"", [&] {
      resize({{attribute, std::string("middle")}}, {2});
    });
  };
  refuses("mode");
  refuses("coordinate_transformation_mode");
  refuses("nearest_mode");
}

// With pytorch_half_pixel a single output is at the first input, as specified.
TEST(Resize, OneElementByPytorchHalfPixel) {
  const ImportInput x = data(floats({1, 1, 4}, {1, 2, 4, 8}));
  const auto one = [&](const char* coordinates) {
    const Attributes attributes = {{"mode", std::string("linear")},
                                   {"coordinate_transformation_mode", std::string(coordinates)}};
    return import_node("Resize", 19, attributes,
                       {x, absent(), absent(), constant(int64s({3}, {1, 1, 1}))})
        .run()[0];
  };
  expect_values(one("pytorch_half_pixel"), {1, 1, 1}, {1});
  expect_values(one("half_pixel"), {1, 1, 1}, {3});
}

}  // namespace
}  // namespace pipetrain::test
