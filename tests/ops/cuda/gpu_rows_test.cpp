// GPU kernels on sizes that op_check skips as too large for the emulator: long rows, large
// vocabularies, many indices.
#include "support/gpu_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "graph/op.h"
#include "support/blocked.h"
#include "support/device_kernel.h"
#include "support/emulated_kernels.h"
#include "support/op_check.h"
#include "support/run_kernels.h"

namespace pipetrain::test {
namespace {

// --- sizes for which NVIDIA's libraries have kernels ---

HostTensor signs(Shape shape, std::uint64_t seed) {
  return random_tensor({DType::kFloat32, std::move(shape)}, seed, -1, 1);
}

// In bfloat16 and float16 by cuDNN, which rounds the shares of the softmax.
TEST(GpuRows, AttentionOfOrdinaryHeads) {
  for (const bool causal : {false, true}) {
    const Attributes attributes = {{"causal", std::int64_t{causal}}};
    const Shape shape = {2, 2, 64, 64};
    const HostTensor q = signs(shape, 31), k = signs(shape, 32), v = signs(shape, 33);
    check_on_gpu({"Attention", attributes, {q, k, v}, {0, 1, 2}, {0}, 0.01});
    const auto forward = run_op("Attention", attributes, {q, k, v});
    check_on_gpu({"AttentionGrad",
                  attributes,
                  {signs(shape, 34), q, k, v, {}, {}, forward[0], forward[1]},
                  {0, 1, 2, 3, 6},
                  {0, 1, 2},
                  0.02,
                  0,
                  3});
  }
}

// Queries that see no key: their masks swallow the logarithm of the sum, so it is summed again.
TEST(GpuRows, AttentionGradientsOfRowsWhoseKeysAreAllMasked) {
  const Shape shape = {1, 2, 3, 4};
  const HostTensor q = signs(shape, 61), k = signs(shape, 62), v = signs(shape, 63);
  const float low = std::numeric_limits<float>::lowest();
  const HostTensor mask = floats({3, 3}, {0, low, low, low, low, low, 0, 0, -1e4F});
  const auto forward = run_op("Attention", {}, {q, k, v, mask});
  check_on_gpu({"AttentionGrad",
                {},
                {signs(shape, 64), q, k, v, mask, {}, forward[0], forward[1]},
                {0, 1, 2, 3, 6},
                {0, 1, 2},
                0.02});
}

// Scores of 2^30 swallow it without a mask, too. By hand: all keys weigh the same.
TEST(GpuRows, AttentionGradientsOfHugeScores) {
  const HostTensor q = floats({1, 1, 1, 2}, {0x1p30F, 0}), dy = floats({1, 1, 1, 1}, {2}),
                   k = floats({1, 1, 3, 2}, {1, 1, 1, 2, 1, 4}),
                   v = floats({1, 1, 3, 1}, {1, 3, 8});
  Node node;
  node.op = find_op("AttentionGrad");
  node.attributes = {{"scale", 1.0}};
  const auto forward = run_op("Attention", node.attributes, {q, k, v});
  const auto results = run_on_gpu(node, {dy, q, k, v, {}, {}, forward[0], forward[1]},
                                  {q.type(), k.type(), v.type(), TensorType{}});
  ASSERT_EQ(results.size(), 4U) << "no kernel";
  expect_values(results[0], {1, 1, 1, 2}, {0, 22.0 / 3}, 1e-5);
  expect_values(results[2], {1, 1, 3, 1}, {2.0 / 3, 2.0 / 3, 2.0 / 3}, 1e-6);
}

// Values at a clip, or a little beyond, have been rounded when they were stored; no gradient
// passes.
TEST(GpuRows, GradientsOfClippedRecurrences) {
  const HostTensor dy = floats({1, 1, 4}, {1, 2, 3, 4}), r = signs({4, 4}, 65);
  for (const auto& [activation, low, high] :
       {std::tuple{"Tanh", -0.291313, 0.291313}, {"Affine", 0.690001, 0.509999}}) {
    const Attributes attributes = {{"activations", std::string(activation)},
                                   {"alpha", Reals{-0.3}},
                                   {"beta", Reals{0.6}},
                                   {"clip", 0.3}};
    const HostTensor y =
        as_float(doubles({1, 1, 4}, {low, high, (low + high) / 2, high}), DType::kFloat32);
    check_on_gpu({"RnnGrad", attributes, {dy, {}, r, y}, {0, 3}, {0}, 0.01, 0, 1});
  }
}

// Scales, biases and statistics stay float32 in mixed precision.
TEST(GpuRows, NormsOfOrdinaryRows) {
  const HostTensor x = signs({24, 768}, 35), dy = signs({24, 768}, 36);
  const HostTensor scale = signs({768}, 37), bias = signs({768}, 38);
  for (const std::string name : {"LayerNorm", "RmsNorm"}) {
    const bool centred = name == "LayerNorm";
    std::vector<HostTensor> inputs = {x, scale};
    if (centred) inputs.push_back(bias);
    check_on_gpu({name, {}, inputs, {0}, {0}});
    std::vector<HostTensor> gradient = {dy, x, scale};
    const auto forward = run_op(name, {}, inputs);
    gradient.insert(gradient.end(), forward.begin() + 1, forward.end());
    check_on_gpu({name + "InputGrad", {}, gradient, {0, 1}, {0}});
    gradient.erase(gradient.begin() + 2);
    check_on_gpu({name + "WeightGrad", {}, gradient, {0, 1}, {}, 1e-4});
  }
}

// --- the gradient of Gather ---

RowCase gather_gradient(std::int64_t axis, Ints shape, HostTensor dy, HostTensor indices) {
  return {"GatherGrad",
          {{"axis", axis}, {"shape", std::move(shape)}},
          {std::move(dy), std::move(indices)}};
}

/// Every third counts from the end, one in four is a duplicate.
HostTensor tokens(std::int64_t count, std::int64_t rows) {
  std::vector<std::int64_t> out;
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto row = static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(rows));
    const std::int64_t index =
        i % 4 == 3 ? (out[static_cast<std::size_t>(i / 2)] + rows) % rows : row;
    out.push_back(i % 3 == 0 ? index - rows : index);
  }
  return int64s({count}, out);
}

TEST(GpuRows, GatherGradientOfALargeVocabulary) {
  for (const std::int64_t count : {1, 5, 33}) {
    const HostTensor dy = random_tensor({DType::kFloat32, {count, 24}}, 1);
    check_on_gpu(gather_gradient(0, {50257, 24}, dy, tokens(count, 50257)));
  }
}

// 1024 indices are sorted by a block, 8 x 1024 are merged at once.
TEST(GpuRows, GatherGradientOfManyIndices) {
  for (const std::int64_t count : {1023, 1024, 1025, 8192, 8193}) {
    const HostTensor dy = random_tensor({DType::kFloat32, {count, 8}}, 2);
    check_on_gpu(gather_gradient(0, {3001, 8}, dy, tokens(count, 3001)));
  }
}

// Chunks have 32 positions: an index that spans several, one that ends with a chunk, a single one.
TEST(GpuRows, GatherGradientOfRepeatedIndices) {
  for (const std::int64_t width : {1, 7, 8, 40, 1040}) {
    for (const std::vector<std::int64_t>& repeats :
         {std::vector<std::int64_t>{200}, {64, 32, 1, 31, 33, 95}, {31, 1, 32, 100}, {5, 70}}) {
      std::vector<std::int64_t> list;
      for (std::size_t row = 0; row < repeats.size(); ++row)
        list.insert(list.end(), static_cast<std::size_t>(repeats[row]),
                    static_cast<std::int64_t>(2 * row) - (row % 2 ? 17 : 0));
      // Interleaved, so that sorting changes the order.
      std::vector<std::int64_t> mixed(list.size());
      for (std::size_t i = 0; i < list.size(); ++i) mixed[i * 101 % list.size()] = list[i];
      const auto count = static_cast<std::int64_t>(list.size());
      const HostTensor dy = random_tensor({DType::kFloat32, {count, width}}, 3);
      check_on_gpu(gather_gradient(0, {17, width}, dy, int64s({count}, mixed)));
    }
  }
}

TEST(GpuRows, GatherGradientAlongOtherAxes) {
  const HostTensor rows = int32s({2, 45}, [] {
    std::vector<std::int32_t> out;
    for (int i = 0; i < 90; ++i) out.push_back(i * i % 19 - (i % 2 ? 19 : 0));
    return out;
  }());
  const HostTensor dy = random_tensor({DType::kFloat32, {3, 2, 45, 16}}, 4);
  check_on_gpu(gather_gradient(1, {3, 19, 16}, dy, rows));
  const HostTensor narrow = random_tensor({DType::kFloat32, {5, 2, 45}}, 5);
  check_on_gpu(gather_gradient(1, {5, 19}, narrow, rows));
}

// Two large values that cancel, and a small one, which survives only if added in the order of
// positions.
TEST(GpuRows, GatherGradientAddsInTheOrderOfPositions) {
  const HostTensor dy = floats({4, 1}, {3e8F, 7, -3e8F, 1});
  Node node;
  node.op = find_op("GatherGrad");
  node.attributes = {{"axis", std::int64_t{0}}, {"shape", Ints{2, 1}}};
  const auto dx = run_on_gpu(node, {dy, int64s({4}, {1, 0, -1, 1})}, {{DType::kFloat32, {2, 1}}});
  ASSERT_EQ(dx.size(), 1U);
  expect_values(dx[0], {2, 1}, {7, 1}, 0);
}

// --- reductions ---

// Chunks are 128 rows, 8 threads share a result, each thread takes 1 or 8 columns.
TEST(GpuRows, SumsOfColumns) {
  for (const std::int64_t rows : {2, 15, 16, 31, 128, 129, 1000}) {
    for (const std::int64_t width : {1, 7, 8, 40, 264, 515}) {
      if (rows * width > 70000) continue;
      const HostTensor x = random_tensor({DType::kFloat32, {rows, width}}, 6, 0.5, 1.5);
      check_on_gpu({"ReduceSum", {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}, {x}});
    }
  }
}

TEST(GpuRows, ReductionsOfOuterAxes) {
  const HostTensor x = random_tensor({DType::kFloat32, {3, 140, 4, 24}}, 7, 0.5, 1);
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"}) {
    for (const Ints& axes : {Ints{1}, Ints{0, 1}, Ints{0, 2}, Ints{1, 2}, Ints{0, 1, 2}})
      check_on_gpu({op, {{"axes", axes}, {"keepdims", std::int64_t{1}}}, {x}});
  }
  const HostTensor few = random_tensor({DType::kFloat32, {20, 9}}, 7, 0.5, 1.5);
  check_on_gpu({"ReduceProd", {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}, {few}});
  check_on_gpu({"SumTo", {{"shape", Ints{24}}}, {x}});
}

// One float that all numbers are added to, one after another, loses four digits.
TEST(GpuRows, SumsOfMillionsOfNumbers) {
  constexpr std::int64_t kCount = std::int64_t{1} << 22;
  for (const Shape& shape : {Shape{1, kCount}, Shape{kCount / 2, 2}}) {
    const std::size_t axis = shape[0] > 1 ? 0 : 1;
    HostTensor x(TensorType{DType::kFloat32, shape});
    std::ranges::fill(x.span<float>(), 0.1F);
    for (const char* op : {"ReduceSum", "ReduceMean"}) {
      Node node;
      node.op = find_op(op);
      node.attributes = {{"axes", Ints{static_cast<std::int64_t>(axis)}},
                         {"keepdims", std::int64_t{0}}};
      const std::vector<HostTensor> sums =
          run_on_gpu(node, {x}, {TensorType{DType::kFloat32, {shape[1 - axis]}}});
      ASSERT_EQ(sums.size(), 1U);
      const double exact = static_cast<double>(0.1F) *
                           (node.op->name == "ReduceSum" ? static_cast<double>(shape[axis]) : 1);
      for (const float sum : sums[0].span<float>()) EXPECT_NEAR(sum / exact, 1, 1e-5) << op;
    }
  }
}

// --- layer and root-mean-square normalization ---

/// The norms and their gradients over x (rows, width), in float32, in mixed precision and narrow.
void check_norms(std::int64_t rows, std::int64_t width, std::size_t shift = 0) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width));
  const auto made = [&](Shape shape, std::uint64_t seed, double low = -1, double high = 1) {
    return random_tensor({DType::kFloat32, std::move(shape)}, seed, low, high);
  };
  const Attributes attributes = {{"axis", std::int64_t{1}}, {"epsilon", 1e-5}};
  const HostTensor x = made({rows, width}, 12, -2, 3), dy = made({rows, width}, 13),
                   scale = made({width}, 14, 0.5, 2), bias = made({width}, 15),
                   mean = made({rows}, 16), inverse = made({rows}, 17, 0.5, 2);
  const auto check = [&](const char* op, const std::vector<HostTensor>& inputs,
                         const std::vector<std::size_t>& narrow,
                         const std::vector<std::size_t>& results) {
    check_on_gpu({op, attributes, inputs, narrow, results, 3e-5, shift});
  };
  check("LayerNorm", {x, scale, bias}, {}, {0});
  check("LayerNorm", {x, scale, bias}, {0}, {0});
  check("LayerNorm", {x, scale, bias}, {0, 1, 2}, {0, 1, 2});
  check("LayerNormInputGrad", {dy, x, scale, mean, inverse}, {0}, {});
  check("LayerNormInputGrad", {dy, x, HostTensor(), mean, inverse}, {0, 1}, {0});
  check("RmsNorm", {x, scale}, {0}, {0});
  check("RmsNormInputGrad", {dy, x, scale, inverse}, {0, 1, 2, 3}, {0});
}

// A warp holds a row of up to 256, 768 or 1024 elements, a block one of up to 2048 or 8192.
TEST(GpuRows, NormsOfRowsOfAnyWidth) {
  for (const std::int64_t width : {1, 3, 4, 126, 128, 256, 260, 515, 768, 772, 1024})
    check_norms(width < 200 ? 9 : 3, width);
  for (const std::int64_t width : {1030, 2048, 2056, 4100, 8192, 8193}) check_norms(2, width);
}

TEST(GpuRows, NormsOfUnalignedRows) {
  if (device_under_test()) GTEST_SKIP() << "cuDNN's norms take aligned tensors only";
  for (const std::int64_t width : {8, 300, 1028}) check_norms(5, width, 8);
}

/// dy up to `size`.
void check_norm_weights(std::int64_t rows, std::int64_t width, double size = 1,
                        std::size_t shift = 0) {
  constexpr double kTolerance = 3e-5;
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width));
  const Attributes attributes = {{"axis", std::int64_t{1}}, {"epsilon", 1e-5}};
  const HostTensor x = random_tensor({DType::kFloat32, {rows, width}}, 18, 0.5, 3),
                   dy = random_tensor({DType::kFloat32, {rows, width}}, 19, 0.25 * size, size),
                   mean = random_tensor({DType::kFloat32, {rows}}, 20, -1, 0),
                   inverse = random_tensor({DType::kFloat32, {rows}}, 21, 0.5, 2);
  using Places = std::vector<std::size_t>;
  for (const Places& narrow : {Places{0}, Places{0, 1}}) {
    check_on_gpu(
        {"LayerNormWeightGrad", attributes, {dy, x, mean, inverse}, narrow, {}, kTolerance, shift});
  }
  check_on_gpu(
      {"RmsNormWeightGrad", attributes, {dy, x, inverse}, {0, 1, 2}, {0}, kTolerance, shift});
}

// A block takes 128 columns and a chunk of at least 64 rows: 8 rows at once, 4 times that are
// loaded together.
TEST(GpuRows, NormWeightGradientsOfAnyShape) {
  for (const std::int64_t rows : {1, 7, 8, 25, 32, 33, 64, 65, 200}) {
    for (const std::int64_t width : {1, 6, 128, 260}) check_norm_weights(rows, width);
  }
  check_norm_weights(70, 132, 1, 8);
}

// More rows than 768 chunks of 64.
TEST(GpuRows, NormWeightGradientOfManyRows) { check_norm_weights(49160, 1, 0.25); }

// Statistics and sums do not depend on the alignment of operands.
TEST(GpuRows, NormsOfUnalignedRowsHaveTheSameBits) {
  Node node;
  node.attributes = {{"axis", std::int64_t{1}}, {"epsilon", 1e-5}};
  const HostTensor x = random_tensor({DType::kFloat32, {70, 264}}, 22),
                   row = random_tensor({DType::kFloat32, {70}}, 23, 0.5, 2);
  for (const auto& [op, inputs] :
       {std::pair{"LayerNorm", std::vector{x}},
        std::pair{"LayerNormInputGrad", std::vector{x, x, HostTensor(), row, row}},
        std::pair{"LayerNormWeightGrad", std::vector{x, x, row, row}}}) {
    SCOPED_TRACE(op);
    node.op = find_op(op);
    std::vector<TensorType> types;
    for (const HostTensor& input : inputs) types.push_back(input.type());
    const std::vector<TensorType> outputs = infer_op(op, node.attributes, types);
    const auto aligned = run_on_gpu(node, inputs, outputs);
    const auto shifted = run_on_gpu(node, inputs, outputs, 8);
    ASSERT_EQ(aligned.size(), shifted.size());
    for (std::size_t i = 0; i < aligned.size(); ++i)
      expect_same_bits(shifted[i], aligned[i], "output " + std::to_string(i));
  }
}

// --- softmax cross-entropy ---

void check_cross_entropy(const HostTensor& logits, const HostTensor& labels, double smoothing) {
  const Attributes attributes = {{"ignore_index", std::int64_t{-100}},
                                 {"label_smoothing", smoothing}};
  SCOPED_TRACE(logits.type().text() + " smoothed by " + std::to_string(smoothing));
  check_on_gpu({"SoftmaxCrossEntropy", attributes, {logits, labels}, {0}, {}});
  const auto results = run_op("SoftmaxCrossEntropy", attributes, {logits, labels});
  check_on_gpu({"SoftmaxCrossEntropyGrad",
                attributes,
                {logits, labels, results[2], HostTensor::scalar(0.25F)}});
}

// A warp computes a row of up to 512 classes, a block a longer one; rows have any alignment.
TEST(GpuRows, CrossEntropyOfShortAndLongRows) {
  for (const std::int64_t classes : {1, 2, 7, 8, 9, 65, 511, 512, 513, 2051, 4096}) {
    const std::int64_t rows = classes < 100 ? 19 : 5;
    const HostTensor logits = random_tensor({DType::kFloat32, {rows, classes}}, 8, -6, 6);
    std::vector<std::int64_t> labels;
    for (std::int64_t row = 0; row < rows; ++row)
      labels.push_back(row % 5 == 3 ? -100 : row == 1 ? classes - 1 : row * 37 % classes);
    check_cross_entropy(logits, int64s({rows}, labels), 0);
    if (classes > 1) check_cross_entropy(logits, int64s({rows}, labels), 0.1);
  }
}

TEST(GpuRows, CrossEntropyOfHugeLogits) {
  for (const std::int64_t classes : {9, 600}) {
    const HostTensor logits = random_tensor({DType::kFloat32, {5, classes}}, 9, 29'994, 30'006);
    const HostTensor labels = int64s({5}, {0, classes - 1, -100, 1, 2});
    check_cross_entropy(logits, labels, 0);
    check_cross_entropy(logits, labels, 0.1);
  }
}

/// Whether what lies behind `rows` rows, or behind all of a shorter matrix, is zero.
bool is_padded_with_zeros(const HostTensor& tensor, std::int64_t rows) {
  const TensorType& type = tensor.type();
  const auto size = static_cast<std::int64_t>(size_of(type.dtype));
  const auto columns = type.shape[type.shape.rank() - 1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* const begin = tensor.view().as<std::byte>() + row * type.row_stride() * size;
    const std::int64_t first = row < type.count() / columns ? columns : 0;
    if (std::any_of(begin + first * size, begin + type.row_stride() * size,
                    [](std::byte b) { return b != std::byte{0}; }))
      return false;
  }
  return true;
}

// Padding between rows is not read; that of a gradient becomes zero.
TEST(GpuRows, CrossEntropyOfPaddedRows) {
  for (const std::int64_t classes : {5, 8, 13, 515, 2051}) {
    const HostTensor logits = random_tensor({DType::kFloat32, {6, classes}}, 11, -4, 4);
    const HostTensor labels = int64s({6}, {0, classes - 1, -100, 1, 2, 3});
    const HostTensor scale = HostTensor::scalar(0.5F);
    const Attributes attributes = {{"label_smoothing", 0.1}};
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const HostTensor plain = stored_as(logits, dtype), padded = with_padded_rows(plain);
      const HostTensor wide = as_float(plain, DType::kFloat32);
      const auto loss = run_op("SoftmaxCrossEntropy", attributes, {wide, labels});
      Node node;
      node.attributes = attributes;
      node.op = find_op("SoftmaxCrossEntropy");
      const auto results =
          run_on_gpu(node, {padded, labels}, {loss[0].type(), loss[1].type(), loss[2].type()});
      ASSERT_EQ(results.size(), 3U);
      for (std::size_t i = 0; i < 3; ++i) expect_close(results[i], loss[i], 1e-5, "loss");
      const auto slopes =
          run_op("SoftmaxCrossEntropyGrad", attributes, {wide, labels, loss[2], scale});
      node.op = find_op("SoftmaxCrossEntropyGrad");
      const auto padded_slopes =
          run_on_gpu(node, {padded, labels, loss[2], scale}, {padded.type()});
      ASSERT_EQ(padded_slopes.size(), 1U);
      const HostTensor dense = without_padding(padded_slopes[0]);
      expect_close(as_float(dense, DType::kFloat32), slopes[0],
                   dtype == DType::kFloat32 ? 1e-5 : 0.004, "gradient");
      EXPECT_TRUE(is_padded_with_zeros(padded_slopes[0], 6));
    }
  }
}

// Rows that begin at any address, shorter and longer than what a block takes at once.
TEST(GpuRows, CastsIntoPaddedRows) {
  for (const std::int64_t columns : {1, 7, 8, 13, 2051}) {
    for (const DType from : {DType::kFloat32, DType::kFloat16}) {
      for (const DType to : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
        const HostTensor x = stored_as(random_tensor({DType::kFloat32, {5, columns}}, 12), from);
        Node node;
        node.op = find_op("Cast");
        node.attributes = {{"to", static_cast<std::int64_t>(to)}};
        TensorType type{to, {5, columns}};
        const HostTensor expected = run_node(Backend::kReference, node, {x}, {type})[0];
        type.layout = Layout::kPaddedRows;
        const auto results = run_on_gpu(node, {x}, {type});
        ASSERT_EQ(results.size(), 1U);
        expect_same_bits(without_padding(results[0]), expected, type.text());
        EXPECT_TRUE(is_padded_with_zeros(results[0], 8));
      }
    }
  }
}

TEST(GpuRows, CrossEntropyOfALargeVocabulary) {
  const HostTensor logits = random_tensor({DType::kFloat32, {3, 50257}}, 9, -9, 9);
  check_cross_entropy(logits, int64s({3}, {50256, 0, 12345}), 0);
}

// The greatest logit last, first, and all equal; some minus infinity, as in masked logits.
TEST(GpuRows, CrossEntropyScalesItsSumAsGreaterLogitsCome) {
  constexpr std::int64_t kClasses = 3000;
  HostTensor logits(TensorType{DType::kFloat32, {4, kClasses}});
  const auto x = logits.span<float>();
  for (std::size_t c = 0; c < kClasses; ++c) {
    x[c] = static_cast<float>(c) / 32 - 40;
    x[kClasses + c] = 50 - static_cast<float>(c) / 32;
    x[2 * kClasses + c] = 7;
    x[3 * kClasses + c] = c % 3 == 0 || c < 1500 ? -std::numeric_limits<float>::infinity() : 1;
  }
  check_cross_entropy(logits, int64s({4}, {2999, 0, 0, 2000}), 0);
}

// The greatest logit twice: before the first aligned group, in one group, in two of a thread's
// batch of four, in other threads' groups, after the last group.
TEST(GpuRows, CrossEntropyPredictsTheFirstOfTheGreatestLogits) {
  constexpr std::int64_t kPairs[][2] = {{0, 5},     {1, 40},      {100, 101},    {20, 2068},
                                        {2068, 30}, {3, 10250},   {8200, 8192},  {0, 10250},
                                        {0, 2047},  {4100, 6148}, {10249, 10250}};
  for (const std::int64_t classes : {10251, 301}) {
    std::vector<std::int64_t> labels;
    HostTensor logits = random_tensor({DType::kFloat32, {22, classes}}, 24, -6, 6);
    for (std::int64_t row = 0; row < 22; ++row) {
      for (const std::int64_t place : kPairs[row / 2])
        logits.span<float>()[static_cast<std::size_t>(row * classes + place % classes)] = 9;
      labels.push_back(kPairs[row / 2][row % 2] % classes);
    }
    check_cross_entropy(logits, int64s({22}, labels), 0);
  }
  HostTensor equal = random_tensor({DType::kFloat32, {3, 2051}}, 25, 7, 7);
  check_cross_entropy(equal, int64s({3}, {0, 0, 1}), 0);
}

TEST(GpuRows, ALogitThatIsNoNumberIsSeen) {
  HostTensor logits = random_tensor({DType::kFloat32, {2, 700}}, 10);
  logits.span<float>()[300] = std::numeric_limits<float>::quiet_NaN();
  Node node;
  node.op = find_op("SoftmaxCrossEntropy");
  const std::vector<HostTensor> inputs = {logits, int64s({2}, {3, 4})};
  const auto results = run_on_gpu(
      node, inputs, infer_op("SoftmaxCrossEntropy", {}, {inputs[0].type(), inputs[1].type()}));
  ASSERT_EQ(results.size(), 3U);
  EXPECT_TRUE(std::isnan(results[0].span<float>()[0]));
  EXPECT_TRUE(std::isnan(results[2].span<float>()[0]));
  EXPECT_FALSE(std::isnan(results[2].span<float>()[1]));
}

TEST(GpuRows, WeightsOfClassesAreLeftToTheHost) {
  Node node;
  node.op = find_op("SoftmaxCrossEntropy");
  node.attributes = {{"class_weights", Reals{1, 2, 3}}};
  const std::vector<TensorType> inputs = {{DType::kFloat32, {2, 3}}, {DType::kInt64, Shape{2}}};
  EXPECT_EQ(make_emulated_kernel({node, inputs, infer_op(node.op->name, node.attributes, inputs)}),
            nullptr);
}

}  // namespace
}  // namespace pipetrain::test
