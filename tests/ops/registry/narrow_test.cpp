// Kernels over bfloat16 and float16: float arithmetic on widened operands, rounded when stored,
// whole or in chunks.
#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "ops/kernel/narrow_cpu.h"
#include "support/blocked.h"
#include "support/op_check.h"

namespace pipetrain {
namespace {

using test::random_tensor;

TEST(BFloat16, RoundsToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  // 1 + 2^-8 lies between 1 and 1 + 2^-7, 1 + 3 2^-8 between that and 1 + 2^-6.
  const float from[] = {1.0F,     1.00390625F, 1.01171875F, 1.0039063692F, -0.0F,
                        infinity, -infinity,   3.4e38F,     1e-40F,        NAN};
  const std::uint16_t expected[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x8000,
                                    0x7f80, 0xff80, 0x7f80, 0x0001};
  std::uint16_t bits[10];
  round_to_bfloat16(from, bits, 10);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(bits[i], expected[i]) << i;
  float back[10];
  widen_bfloat16(bits, back, 10);
  EXPECT_EQ(back[2], 1.015625F);
  EXPECT_TRUE(std::isnan(back[9]));
}

TEST(Float16, WidensAndRoundsAsOneByOne) {
  std::vector<std::uint16_t> all(1 << 16), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  const auto count = static_cast<std::int64_t>(all.size());
  widen_float16(all.data(), wide.data(), count);
  round_to_float16(wide.data(), back.data(), count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float expected = half_to_float(all[i]);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(half_to_float(back[i]))) << i;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected)) << i;
      EXPECT_EQ(back[i], i);
    }
  }
  // Values between two representable ones: just below the middle, the middle, just above; and
  // others.
  std::vector<float> between;
  for (std::size_t i = 0; i + 1 < 0x7c00; ++i) {
    const float middle = 0.5F * (wide[i] + wide[i + 1]);
    for (const float x : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)}) {
      between.push_back(x);
      between.push_back(-x);
    }
  }
  for (const float x : {65519.99F, 65520.0F, 65536.0F, 1e38F, 1e-8F, 2.9802322e-8F, 2.9802326e-8F,
                        1e-40F, 0.0F, std::numeric_limits<float>::infinity()}) {
    between.push_back(x);
    between.push_back(-x);
  }
  std::vector<std::uint16_t> rounded(between.size());
  round_to_float16(between.data(), rounded.data(), static_cast<std::int64_t>(between.size()));
  for (std::size_t i = 0; i < between.size(); ++i)
    ASSERT_EQ(rounded[i], float_to_half(between[i])) << between[i];
}

struct Case {
  const char* op;
  Attributes attributes;
  std::vector<TensorType> inputs;  // kUndefined: absent
  std::set<std::size_t> narrow_inputs, narrow_outputs;
  double tolerance = 0.005;  // half a unit in the last of 8 bits is 0.004
  Layout layout = Layout::kRowMajor;
};

TensorType f(Shape shape) { return {DType::kFloat32, std::move(shape)}; }

std::vector<Case> cases() {
  const Attributes pads{{"pads", Ints{1, 1, 1, 1}}};
  Attributes data_gradient = pads;
  data_gradient.set("output_shape", Ints{5, 8, 9, 9});
  Attributes weight_gradient = pads;
  weight_gradient.set("output_shape", Ints{2, 4, 3, 3});
  weight_gradient.set("with_bias", std::int64_t{1});
  const Attributes pool{{"kernel", Ints{2, 2}},
                        {"strides", Ints{2, 2}},
                        {"pads", Ints{0, 0, 0, 0}},
                        {"dilations", Ints{1, 1}}};
  return {
      {"Relu", {}, {f({3, 5000})}, {0}, {0}},
      {"Add", {}, {f({7, 11, 300}), f({300})}, {0}, {0}},
      {"Add", {}, {f({7, 11, 300}), f({1, 11, 1})}, {0, 1}, {0}},
      {"Mul", {}, {f({2, 3, 5, 700}), f({2, 3, 1, 1})}, {0, 1}, {0}},
      {"Mul", {}, {f({2, 3, 5, 700}), f({})}, {0}, {0}},
      {"Add", {}, {f({4, 1, 3}), f({5, 3})}, {0, 1}, {0}},
      {"Sum", {}, {f({9, 1000}), f({9, 1000}), f({9, 1000})}, {0, 2}, {0}},
      {"Greater", {}, {f({9, 1000}), f({1000})}, {0}, {}},
      {"GeluGrad", {}, {f({9, 1000}), f({9, 1000})}, {0, 1}, {0}},
      {"Gelu", {}, {f({9, 1001})}, {0}, {0}},
      {"Silu", {}, {f({5, 16, 9, 9})}, {0}, {0}, 0.005, Layout::kBlocked16},
      {"SiluGrad", {}, {f({9, 1001}), f({9, 1001})}, {0, 1}, {0}},
      // Sums: of a few runs, of several groups of rows, of more columns than a task has.
      {"SumTo", {{"shape", Ints{40}}}, {f({3000, 40})}, {0}, {}, 1e-5},
      {"SumTo", {{"shape", Ints{1, 40}}}, {f({3000, 40})}, {0}, {0}},
      {"SumTo", {{"shape", Ints{5000}}}, {f({7, 3, 5000})}, {0}, {}, 1e-5},
      {"ReduceMean",
       {{"axes", Ints{2, 3}}, {"keepdims", std::int64_t{1}}},
       {f({5, 19, 9, 9})},
       {0},
       {0}},
      {"ReduceMean",
       {{"axes", Ints{2, 3}}, {"keepdims", std::int64_t{1}}},
       {f({5, 70, 65, 65})},
       {0},
       {},
       1e-5},
      {"ReduceSum",
       {{"axes", Ints{0, 2}}, {"keepdims", std::int64_t{0}}},
       {f({9, 16, 50})},
       {0},
       {0}},
      {"ReduceMax", {{"axes", Ints{1}}, {"keepdims", std::int64_t{1}}}, {f({9, 160})}, {0}, {0}, 0},
      {"MatMul", {}, {f({33, 40}), f({40, 21}), f({21})}, {0, 1}, {0}},
      {"MatMul", {}, {f({33, 40}), f({40, 21})}, {0, 1}, {}, 1e-5},
      {"Conv", pads, {f({5, 8, 9, 9}), f({16, 8, 3, 3}), f({16})}, {0, 1}, {0}},
      {"ConvInputGrad", data_gradient, {f({5, 16, 9, 9}), f({16, 8, 3, 3})}, {0, 1}, {0}},
      {"ConvWeightGrad",
       weight_gradient,
       {f({5, 4, 256, 256}), f({5, 2, 256, 256})},
       {0, 1},
       {},
       1e-5},
      {"ConvWeightGrad", weight_gradient, {f({5, 4, 9, 9}), f({5, 2, 9, 9})}, {0, 1}, {0}},
      {"ConvWeightGrad", weight_gradient, {f({5, 4, 9, 9}), f({5, 2, 9, 9})}, {0, 1}, {0, 1}},
      {"MaxPool", pool, {f({5, 3, 8, 8})}, {0}, {0}, 0},
      {"Attention",
       {},
       {f({3, 2, 7, 4}), f({3, 2, 7, 4}), f({3, 2, 7, 4}), f({3, 1, 7, 7})},
       {0, 1, 2},
       {0}},
      {"Attention",
       {},
       {f({7, 2, 7, 4}), f({7, 2, 7, 4}), f({7, 2, 7, 4}), f({7, 7})},
       {0, 1, 2},
       {0}},
      {"Transpose", {{"perm", Ints{1, 0}}}, {f({30, 50})}, {0}, {0}, 0},
      {"Add", {}, {f({3, 16, 9, 9}), f({3, 16, 9, 9})}, {0, 1}, {0}, 0.005, Layout::kBlocked8},
      {"Mul", {}, {f({3, 16, 9, 9}), f({3, 16, 1, 1})}, {0, 1}, {0}, 0.005, Layout::kBlocked8},
      {"MaxPool", pool, {f({5, 16, 8, 8})}, {0}, {0}, 0, Layout::kBlocked8},
  };
}

std::vector<Case> normalizations() {
  return {
      {"LayerNorm", {{"axis", std::int64_t{-1}}}, {f({6, 5, 64}), f({64}), f({64})}, {0}, {0}},
      {"LayerNorm", {{"axis", std::int64_t{0}}}, {f({6, 64}), f({6, 64}), TensorType()}, {0}, {0}},
      {"BatchNorm", {}, {f({5, 3, 9, 9}), f({3}), f({3})}, {0}, {0}},
      {"BatchNorm", {}, {f({5, 7}), f({7}), f({7})}, {0}, {0}},
      {"GroupNorm",
       {{"groups", std::int64_t{4}}},
       {f({5, 16, 99}), f({16}), f({16})},
       {0},
       {0},
       0.005,
       Layout::kBlocked16},
      {"GroupNorm", {{"groups", std::int64_t{3}}}, {f({2, 6, 2, 9, 9}), f({6}), f({6})}, {0}, {0}},
      {"GroupNormGrad",
       {{"groups", std::int64_t{4}}},
       {f({5, 16, 3, 5, 7}), f({5, 16, 3, 5, 7}), f({16}), f({5, 4}), f({5, 4})},
       {0, 1},
       {0},
       0.005,
       Layout::kBlocked8},
      {"BatchNorm", {}, {f({5, 16, 99}), f({16}), f({16})}, {0}, {0}, 0.005, Layout::kBlocked16},
      {"BatchNormGrad", {}, {f({5, 3, 9, 9}), f({5, 3, 9, 9}), f({3}), f({3}), f({3})}, {1}, {0}},
      {"BatchNorm", {}, {f({5, 24, 9, 9}), f({24}), f({24})}, {0}, {0}, 0.005, Layout::kBlocked8},
  };
}

/// Convolutions whose kernels read and write bfloat16 themselves: Winograd's, with few tiles and
/// with many, of stride 1 and 2 and dilated, and those of feature maps smaller than the window; by
/// the choice of this CPU, and with Winograd's asked for.
std::vector<Case> blocked_convolutions() {
  std::vector<Case> out;
  struct Size {
    Shape map, result;
    std::int64_t stride, dilation = 1;
  };
  const std::vector<Size> sizes = {
      {{5, 32, 9, 9}, {5, 32, 9, 9}, 1},        {{9, 32, 16, 12}, {9, 32, 16, 12}, 1},
      {{6, 32, 15, 16}, {6, 32, 8, 8}, 2},      {{9, 32, 32, 23}, {9, 32, 16, 12}, 2},
      {{5, 32, 15, 16}, {5, 32, 15, 16}, 1, 2}, {{6, 32, 2, 2}, {6, 32, 2, 2}, 1}};
  for (const Layout layout : {Layout::kRowMajor, Layout::kBlocked8, Layout::kBlocked16}) {
    for (const std::string algorithm : {"auto", "winograd"}) {
      for (const Size& size : sizes) {
        if (algorithm == "winograd" && (layout == Layout::kRowMajor || size.map[2] == 2)) continue;
        const std::int64_t pad = size.dilation;
        const Attributes attributes{{"pads", Ints{pad, pad, pad, pad}},
                                    {"dilations", Ints{size.dilation, size.dilation}},
                                    {"strides", Ints{size.stride, size.stride}},
                                    {"algorithm", algorithm}};
        Attributes to_input = attributes, to_weight = attributes;
        to_input.set("output_shape", Ints(size.map.begin(), size.map.end()));
        to_weight.set("output_shape", Ints{32, 32, 3, 3});
        to_weight.set("with_bias", std::int64_t{1});
        const TensorType x = f(size.map), y = f(size.result), w = f({32, 32, 3, 3});
        out.push_back({"Conv", attributes, {x, w, f({32})}, {0, 1}, {0}, 0.005, layout});
        // A file may store biases narrow, too.
        out.push_back({"Conv", attributes, {x, w, f({32})}, {0, 1, 2}, {0}, 0.005, layout});
        out.push_back({"ConvInputGrad", to_input, {y, w}, {0, 1}, {0}, 0.005, layout});
        out.push_back({"ConvWeightGrad", to_weight, {x, y}, {0, 1}, {}, 1e-5, layout});
        out.push_back({"ConvWeightGrad", to_weight, {x, y}, {0, 1}, {0}, 0.005, layout});
      }
    }
  }
  return out;
}

/// A tensor in a narrow type, rounded element by element.
HostTensor rounded(const HostTensor& tensor, DType narrow) {
  HostTensor out(TensorType{narrow, tensor.shape(), tensor.type().layout});
  for (std::int64_t i = 0; i < tensor.type().count(); ++i) {
    const float x = tensor.view().as<float>()[i];
    out.view().as<std::uint16_t>()[i] =
        narrow == DType::kBFloat16 ? float_to_bfloat16(x) : float_to_half(x);
  }
  return out;
}
HostTensor widened(const HostTensor& tensor) {
  const bool brain = tensor.dtype() == DType::kBFloat16;
  if (!brain && tensor.dtype() != DType::kFloat16) return tensor;
  HostTensor out(TensorType{DType::kFloat32, tensor.shape(), tensor.type().layout});
  for (std::int64_t i = 0; i < tensor.type().count(); ++i) {
    const std::uint16_t x = tensor.view().as<std::uint16_t>()[i];
    out.view().as<float>()[i] = brain ? bfloat16_to_float(x) : half_to_float(x);
  }
  return out;
}

void check(const Case& one, DType narrow, Backend backend, int threads) {
  SCOPED_TRACE(fmt::format("{} over {} on {}", one.op, name_of(narrow),
                           backend == Backend::kCpu ? "cpu" : "reference"));
  std::vector<HostTensor> stored, exact;
  for (std::size_t i = 0; i < one.inputs.size(); ++i) {
    HostTensor tensor;
    if (one.inputs[i].dtype != DType::kUndefined)
      tensor = random_tensor(one.inputs[i], 7 + i, 0.1, 1.5);
    if (tensor && one.narrow_inputs.contains(i)) tensor = rounded(tensor, narrow);
    exact.push_back(tensor ? widened(tensor) : tensor);
    const bool map = tensor && one.inputs[i].shape == one.inputs[0].shape;
    stored.push_back(map ? test::to_layout(tensor, one.layout) : tensor);
  }
  const std::vector<HostTensor> expected = test::run_op(one.op, one.attributes, exact);
  Node node;
  node.op = find_op(one.op);
  node.attributes = one.attributes;
  node.name = one.op;
  const Layout layout = node.op->name == "ConvWeightGrad" ? Layout::kRowMajor : one.layout;
  std::vector<TensorType> outputs;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    outputs.push_back(test::in_layout(expected[i].type(), layout));
    if (one.narrow_outputs.contains(i)) outputs.back().dtype = narrow;
  }
  omp_set_num_threads(threads);
  const std::vector<HostTensor> actual = test::run_node(backend, node, stored, outputs);
  omp_set_num_threads(1);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // float16 has three bits more.
    const double of_narrow = narrow == DType::kBFloat16 ? one.tolerance : one.tolerance / 8;
    test::expect_close(widened(actual[i]), test::to_layout(expected[i], layout),
                       one.narrow_outputs.contains(i) ? of_narrow : std::min(one.tolerance, 2e-5),
                       fmt::format("output {}", i));
  }
}

TEST(Narrow, KernelsComputeInFloatAndRoundWhatTheyStore) {
  std::vector<Case> all = cases();
  for (Case& one : normalizations()) all.push_back(std::move(one));
  for (const Case& one : all) {
    for (const DType narrow : {DType::kBFloat16, DType::kFloat16}) {
      // One type is enough for sums that take seconds.
      if (narrow == DType::kFloat16 && one.inputs[0].count() > 100000) continue;
      check(one, narrow, Backend::kCpu, 1);
      if (one.layout == Layout::kRowMajor) check(one, narrow, Backend::kReference, 1);
    }
    check(one, DType::kBFloat16, Backend::kCpu, 2);
  }
}

TEST(Narrow, ConvolutionsBetweenBlocks) {
  for (const Case& one : blocked_convolutions()) {
    check(one, DType::kBFloat16, Backend::kCpu, 1);
    check(one, DType::kBFloat16, Backend::kCpu, 2);
    check(one, DType::kFloat16, Backend::kCpu, 1);
  }
}

// A row's gradient depends on no other row.
TEST(Narrow, TheGradientOfACrossEntropyIsComputedInChunksOfRows) {
  constexpr std::int64_t kRows = 6000, kClasses = 301;
  const HostTensor x = rounded(random_tensor(f({kRows, kClasses}), 3, -4, 4), DType::kBFloat16);
  const HostTensor labels = random_tensor({DType::kInt64, Shape{kRows}}, 4, 0, kClasses);
  const auto loss = test::run_op("SoftmaxCrossEntropy", {}, {widened(x), labels}, Backend::kCpu);
  Node node;
  node.op = find_op("SoftmaxCrossEntropyGrad");
  const HostTensor scale = HostTensor::scalar(0.25F);
  const HostTensor whole = test::run_node(Backend::kCpu, node, {widened(x), labels, loss[2], scale},
                                          {f({kRows, kClasses})})[0];
  const KernelRequest request{
      node, {x.type(), labels.type(), loss[2].type(), scale.type()}, {x.type()}};
  omp_set_num_threads(1);
  EXPECT_LT(make_kernel(Backend::kCpu, request)->workspace_bytes(), whole.type().bytes());
  const auto chunks = test::run_node(Backend::kCpu, node, {x, labels, loss[2], scale}, {x.type()});
  test::expect_same_bits(chunks[0], rounded(whole, DType::kBFloat16));
}

}  // namespace
}  // namespace pipetrain
