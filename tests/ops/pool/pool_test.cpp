// Pooling against hand-computed values, against averages and maxima computed here, and the CPU
// kernels against the reference in every layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

struct PoolCase {
  const char* name;
  Shape x;
  Ints kernel, strides, pads;
  Ints dilations = {};
  bool include_pad = false;
  Ints overhang = {};

  Attributes attributes() const {
    Attributes out{{"kernel", kernel},
                   {"strides", strides},
                   {"pads", pads},
                   {"count_include_pad", std::int64_t{include_pad}}};
    if (!dilations.empty()) out.set("dilations", dilations);
    if (!overhang.empty()) out.set("overhang", overhang);
    return out;
  }
  Attributes with_shape() const {
    Attributes out = attributes();
    out.set("shape", x.dims());
    return out;
  }
};

const std::vector<PoolCase>& pool_cases() {
  static const std::vector<PoolCase> list = {
      {"halving", {2, 16, 8, 6}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {"resnet", {2, 16, 9, 9}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {"same", {1, 16, 7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {}, true},
      {"asymmetric", {1, 16, 6, 7}, {3, 2}, {2, 3}, {0, 1, 1, 0}, {}, true},
      {"overhang", {1, 16, 6, 7}, {3, 3}, {2, 2}, {1, 0, 2, 1}, {}, true, {1, 1}},
      {"dilated", {1, 32, 9, 8}, {2, 3}, {1, 2}, {1, 2, 0, 2}, {3, 2}},
      {"whole_plane", {2, 16, 4, 3}, {4, 3}, {1, 1}, {0, 0, 0, 0}},
      {"odd_channels", {2, 5, 7, 7}, {3, 3}, {3, 3}, {1, 1, 1, 1}},
      {"sequence", {2, 3, 20}, {4}, {2}, {1, 1}},
      {"sequence_blocks", {2, 16, 20}, {4}, {2}, {1, 1}},
      {"volume_blocks", {1, 16, 4, 5, 6}, {2, 2, 3}, {2, 1, 2}, {0, 1, 1, 0, 0, 1}},
      {"volume", {1, 2, 4, 5, 6}, {2, 2, 3}, {2, 1, 2}, {0, 1, 1, 0, 0, 1}},
  };
  return list;
}

/// Distinct values in random order, so that central differences never change the maximum.
std::vector<double> distinct(std::int64_t count) {
  std::vector<double> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0.0);
  std::uint64_t state = 12345;
  for (std::size_t i = out.size(); i > 1; --i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::swap(out[i - 1], out[(state >> 33) % i]);
  }
  for (double& value : out) value = 0.01 * value - 0.005 * static_cast<double>(count);
  return out;
}

TEST(PoolTest, KnownMaxima) {
  const HostTensor x = floats({1, 1, 3, 4}, {1, 9, 2, 3, 4, 5, 6, 6, 7, 0, -1, 6});
  const Attributes attributes{
      {"kernel", Ints{2, 2}}, {"strides", Ints{1, 2}}, {"pads", Ints{0, 0, 0, 0}}};
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("MaxPool", attributes, {x}, backend);
    expect_values(out[0], {1, 1, 2, 2}, {9, 6, 7, 6});
    // Of equal values the first in scan order wins.
    expect_values(out[1], {1, 1, 2, 2}, {1, 6, 8, 6});
    Attributes back = attributes;
    back.set("shape", Ints{1, 1, 3, 4});
    const HostTensor dy = floats({1, 1, 2, 2}, {10, 20, 30, 40});
    expect_values(run_op("MaxPoolGrad", back, {dy, out[1]}, backend)[0], {1, 1, 3, 4},
                  {0, 10, 0, 0, 0, 0, 60, 0, 30, 0, 0, 0});
  }
}

// On every backend, adjacent and overlapping windows: the index says where the gradient goes.
TEST(PoolTest, TheFirstOfEqualElementsIsTheMaximum) {
  InputSpec x{{1, 2, 4, 4}};
  x.values.assign(32, 1.0);
  x.values[21] = 2;
  const Attributes halving{
      {"kernel", Ints{2, 2}}, {"strides", Ints{2, 2}}, {"pads", Ints{0, 0, 0, 0}}};
  const Attributes overlapping{
      {"kernel", Ints{3, 3}}, {"strides", Ints{1, 1}}, {"pads", Ints{1, 1, 1, 1}}};
  const HostTensor ones = floats({1, 1, 4, 4}, std::vector<float>(16, 1));
  expect_values(run_op("MaxPool", halving, {ones})[1], {1, 1, 2, 2}, {0, 2, 8, 10});
  check_cpu("MaxPool", halving, {x});
  check_cpu("MaxPool", overlapping, {x});
}

TEST(PoolTest, MaximumIgnoresPaddingAndKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float low = -std::numeric_limits<float>::infinity();
  const HostTensor x = floats({1, 1, 1, 4}, {-5, nan, -7, low});
  const Attributes attributes{
      {"kernel", Ints{1, 3}}, {"strides", Ints{1, 3}}, {"pads", Ints{0, 1, 0, 1}}};
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto out = run_op("MaxPool", attributes, {x}, backend);
    expect_values(out[0], {1, 1, 1, 2}, {nan, -7});
    expect_values(out[1], {1, 1, 1, 2}, {1, 2});
    const auto lowest =
        run_op("MaxPool", attributes, {floats({1, 1, 1, 4}, {low, low, low, low})}, backend);
    expect_values(lowest[0], {1, 1, 1, 2}, {low, low});
    expect_values(lowest[1], {1, 1, 1, 2}, {0, 2});
  }
}

TEST(PoolTest, KnownAverages) {
  const HostTensor x = floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const Attributes plain{
      {"kernel", Ints{2, 2}}, {"strides", Ints{1, 2}}, {"pads", Ints{0, 1, 0, 0}}};
  Attributes counted = plain;
  counted.set("count_include_pad", std::int64_t{1});
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    expect_values(run_op("AveragePool", plain, {x}, backend)[0], {1, 1, 1, 2}, {2.5, 4});
    expect_values(run_op("AveragePool", counted, {x}, backend)[0], {1, 1, 1, 2}, {1.25, 4});
  }
}

TEST(PoolTest, Gradients) {
  for (const PoolCase& c : pool_cases()) {
    SCOPED_TRACE(c.name);
    InputSpec x{c.x};
    check_gradients("AveragePool", c.attributes(), {x});
    x.values = distinct(c.x.count());
    check_gradients("MaxPool", c.attributes(), {x});
  }
}

TEST(PoolTest, CpuAgreesWithReference) {
  for (const PoolCase& c : pool_cases()) {
    SCOPED_TRACE(c.name);
    check_cpu("MaxPool", c.attributes(), {{c.x}});
    check_cpu("AveragePool", c.attributes(), {{c.x}});
    const Shape y = infer_op("MaxPool", c.attributes(), {{DType::kFloat32, c.x}})[0].shape;
    check_cpu("AveragePoolGrad", c.with_shape(), {{y}});
    const HostTensor index =
        run_op("MaxPool", c.attributes(), {random_tensor({DType::kFloat32, c.x}, 3)})[1];
    InputSpec positions{y};
    positions.dtype = DType::kInt32;
    positions.values = index.to_doubles();
    check_cpu("MaxPoolGrad", c.with_shape(), {{y}, positions});
  }
}

TEST(PoolTest, BlockedLayouts) {
  for (const PoolCase& c : pool_cases()) {
    if (c.x[1] % 16 != 0) continue;
    const HostTensor x = random_tensor({DType::kFloat32, c.x}, 1);
    const auto pooled = run_op("MaxPool", c.attributes(), {x});
    const HostTensor dy = random_tensor(pooled[0].type(), 2);
    const HostTensor average = run_op("AveragePool", c.attributes(), {x})[0];
    const HostTensor max_gradient = run_op("MaxPoolGrad", c.with_shape(), {dy, pooled[1]})[0];
    const HostTensor average_gradient = run_op("AveragePoolGrad", c.with_shape(), {dy})[0];
    for (const Layout layout : {Layout::kBlocked8, Layout::kBlocked16}) {
      const auto run = [&](std::string_view op, const Attributes& attributes,
                           std::vector<HostTensor> inputs,
                           const std::vector<HostTensor>& expected) {
        for (HostTensor& input : inputs) input = to_layout(input, layout);
        std::vector<TensorType> types;
        for (const HostTensor& tensor : expected) types.push_back(in_layout(tensor.type(), layout));
        const auto actual = run_in_layouts(op, attributes, inputs, types);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expect_close(to_layout(actual[i], Layout::kRowMajor), expected[i], 1e-6,
                       fmt::format("{} {}", c.name, op));
        }
      };
      run("MaxPool", c.attributes(), {x}, pooled);
      run("MaxPool", c.attributes(), {x}, {pooled[0]});  // the index is unused
      run("MaxPoolGrad", c.with_shape(), {dy, pooled[1]}, {max_gradient});
      run("AveragePool", c.attributes(), {x}, {average});
      run("AveragePoolGrad", c.with_shape(), {dy}, {average_gradient});
    }
  }
}

TEST(PoolTest, ImportsCeilMode) {
  // The example of the ONNX operator: 4x4, kernel 3, stride 2.
  std::vector<float> values(16);
  std::iota(values.begin(), values.end(), 1.0F);
  const HostTensor x = floats({1, 1, 4, 4}, values);
  Attributes attributes{
      {"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"ceil_mode", std::int64_t{1}}};
  expect_values(import_node("MaxPool", 12, attributes, {data(x)}).run()[0], {1, 1, 2, 2},
                {11, 12, 15, 16});
  expect_values(import_node("AveragePool", 12, attributes, {data(x)}).run()[0], {1, 1, 2, 2},
                {6, 7.5, 12, 13.5});
  // count_include_pad does not count padding added by ceil_mode.
  attributes.set("count_include_pad", std::int64_t{1});
  expect_values(import_node("AveragePool", 19, attributes, {data(x)}).run()[0], {1, 1, 2, 2},
                {6, 7.5, 12, 13.5});
}

TEST(PoolTest, CeilModeDropsWindowsThatBeginInThePadding) {
  const HostTensor x = random_tensor({DType::kFloat32, {1, 1, 3, 3}}, 1);
  const Attributes attributes{{"kernel_shape", Ints{1, 1}},
                              {"strides", Ints{2, 2}},
                              {"pads", Ints{0, 0, 1, 1}},
                              {"ceil_mode", std::int64_t{1}}};
  const Imported node = import_node("MaxPool", 22, attributes, {data(x)});
  EXPECT_EQ(node.graph[node.outputs[0]].type.shape, (Shape{1, 1, 2, 2}));
}

// PyTorch's pools give one element: the window ends with the padded input.
TEST(PoolTest, CeilModeTakesWindowsLargerThanTheInput) {
  const HostTensor x = floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 9});
  const auto pooled = [&](const char* op, Attributes attributes) {
    attributes.set("ceil_mode", std::int64_t{1});
    return import_node(op, 22, attributes, {data(x)}).run()[0];
  };
  const Attributes large{{"kernel_shape", Ints{40, 50}}, {"strides", Ints{40, 50}}};
  expect_values(pooled("AveragePool", large), {1, 1, 1, 1}, {4});
  expect_values(pooled("MaxPool", large), {1, 1, 1, 1}, {9});
  Attributes padded = large;
  padded.set("pads", Ints{1, 1, 1, 1});
  expect_values(pooled("AveragePool", padded), {1, 1, 1, 1}, {4});
  padded.set("count_include_pad", std::int64_t{1});
  expect_values(pooled("AveragePool", padded), {1, 1, 1, 1}, {24.0 / 20});
  // One axis only; taps with gaps.
  const Attributes wide{
      {"kernel_shape", Ints{1, 2}}, {"dilations", Ints{1, 4}}, {"strides", Ints{1, 3}}};
  expect_values(pooled("AveragePool", wide), {1, 1, 2, 1}, {1, 4});
  // A step too short to reach the first window: no output, as in PyTorch.
  const Attributes dense{{"kernel_shape", Ints{3, 5}}};
  expect_error(ErrorKind::kModel, "does not fit", [&] { pooled("AveragePool", dense); });
  expect_error(ErrorKind::kModel, "does not fit",
               [&] { import_node("AveragePool", 22, large, {data(x)}).run(); });
}

TEST(PoolTest, ImportsAutoPadAndGlobalPools) {
  const HostTensor x = random_tensor({DType::kFloat32, {1, 2, 5, 6}}, 1);
  const Imported same = import_node(
      "MaxPool", 12,
      {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"auto_pad", "SAME_UPPER"}},
      {data(x)});
  EXPECT_EQ(same.graph[same.outputs[0]].type.shape, (Shape{1, 2, 3, 3}));
  EXPECT_EQ(import_node("GlobalAveragePool", 1, {}, {data(x)}).ops(), "ReduceMean");
  EXPECT_EQ(import_node("GlobalMaxPool", 1, {}, {data(x)}).ops(), "ReduceMax");
}

TEST(PoolTest, ImportsIndices) {
  const HostTensor x = random_tensor({DType::kFloat32, {2, 3, 4, 4}}, 1);
  const Imported node = import_node(
      "MaxPool", 12, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}, {data(x)}, 2);
  const auto out = node.run();
  ASSERT_EQ(out[1].dtype(), DType::kInt64);
  for (std::size_t i = 0; i < out[1].span<std::int64_t>().size(); ++i) {
    EXPECT_EQ(x.span<float>()[static_cast<std::size_t>(out[1].span<std::int64_t>()[i])],
              out[0].span<float>()[i]);
  }
}

TEST(PoolTest, ImportsColumnMajorIndices) {
  const HostTensor x = floats({1, 1, 2, 3}, {0, 0, 0, 0, 9, 0});
  const Imported node =
      import_node("MaxPool", 12, {{"kernel_shape", Ints{2, 3}}, {"storage_order", std::int64_t{1}}},
                  {data(x)}, 2);
  expect_values(node.run()[1], {1, 1, 1, 1}, {3});  // row 1 of column 1, with two rows a column
}

TEST(PoolTest, RefusesWrongShapes) {
  const auto infer = [](const Attributes& attributes, const Shape& x) {
    return [=] { infer_op("MaxPool", attributes, {{DType::kFloat32, x}}); };
  };
  expect_error(ErrorKind::kModel, "rank 3, 4 or 5", infer({{"kernel", Ints{2}}}, {4, 4}));
  expect_error(ErrorKind::kModel, "does not fit", infer({{"kernel", Ints{5, 2}}}, {1, 1, 4, 4}));
  expect_error(ErrorKind::kModel, "kernel", infer({{"kernel", Ints{2}}}, {1, 1, 4, 4}));
  expect_error(ErrorKind::kModel, "dy of shape", [] {
    infer_op("AveragePoolGrad", {{"kernel", Ints{2, 2}}, {"shape", Ints{1, 1, 4, 4}}},
             {{DType::kFloat32, {1, 1, 2, 2}}});
  });
}

}  // namespace
}  // namespace pipetrain::test
