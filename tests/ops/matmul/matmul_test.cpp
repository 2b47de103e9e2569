#include "ops/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/vectors.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/gemm_split_cpu.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

Attributes transposes(int a, int b) {
  return {{"trans_a", std::int64_t{a}}, {"trans_b", std::int64_t{b}}};
}

/// The definition: y[…, i, j] = Σ_k a[…, i, k] b[…, k, j] with the batch index taken from each
/// operand by numpy's rule, axis by axis.
HostTensor product(const HostTensor& a, const HostTensor& b, bool trans_a, bool trans_b,
                   const Shape& output) {
  HostTensor y(TensorType{DType::kFloat64, output});
  const std::vector<double> left = a.to_doubles();
  const std::vector<double> right = b.to_doubles();
  const auto offset = [&](const Shape& shape, std::int64_t index, std::int64_t row,
                          std::int64_t column) {
    std::int64_t out = row * shape[shape.rank() - 1] + column;
    std::int64_t stride = shape[shape.rank() - 1] * shape[shape.rank() - 2];
    for (std::size_t back = 3; back <= output.rank(); ++back) {
      const std::int64_t extent = output[output.rank() - back];
      const std::int64_t position = index % extent;
      index /= extent;
      if (back > shape.rank()) continue;
      const std::int64_t own = shape[shape.rank() - back];
      out += (own == 1 ? 0 : position) * stride;
      stride *= own;
    }
    return static_cast<std::size_t>(out);
  };
  const std::int64_t m = output[output.rank() - 2];
  const std::int64_t n = output[output.rank() - 1];
  const std::int64_t k = a.shape()[a.shape().rank() - (trans_a ? 2 : 1)];
  double* to = y.view().as<double>();
  for (std::int64_t at = 0; at < output.count(); ++at) {
    const std::int64_t column = at % n;
    const std::int64_t row = at / n % m;
    const std::int64_t batch = at / n / m;
    double sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      sum += left[trans_a ? offset(a.shape(), batch, i, row) : offset(a.shape(), batch, row, i)] *
             right[trans_b ? offset(b.shape(), batch, column, i)
                           : offset(b.shape(), batch, i, column)];
    }
    to[at] = sum;
  }
  return y;
}

struct MatMulCase {
  Shape a;
  Shape b;
  int trans_a;
  int trans_b;
  Shape output;
};

const std::vector<MatMulCase> kCases = {
    {{3, 4}, {4, 5}, 0, 0, {3, 5}},
    {{4, 3}, {4, 5}, 1, 0, {3, 5}},
    {{3, 4}, {5, 4}, 0, 1, {3, 5}},
    {{4, 3}, {5, 4}, 1, 1, {3, 5}},
    {{2, 3, 4}, {4, 5}, 0, 0, {2, 3, 5}},
    {{2, 3, 4}, {5, 4}, 0, 1, {2, 3, 5}},
    {{2, 4, 3}, {4, 5}, 1, 0, {2, 3, 5}},
    {{3, 4}, {2, 4, 5}, 0, 0, {2, 3, 5}},
    {{2, 3, 4}, {2, 4, 5}, 0, 0, {2, 3, 5}},
    {{2, 1, 3, 4}, {3, 4, 2}, 0, 0, {2, 3, 3, 2}},
    {{2, 3, 3, 4}, {1, 3, 2, 4}, 0, 1, {2, 3, 3, 2}},
    {{1, 2, 4, 3}, {3, 1, 2, 4}, 1, 1, {3, 2, 3, 2}},
    {{1, 1}, {1, 1}, 0, 0, {1, 1}},
    {{3, 1, 2}, {2, 1}, 0, 0, {3, 1, 1}},
};

TEST(MatMul, FollowsTheDefinition) {
  for (const MatMulCase& c : kCases) {
    const HostTensor a = random_tensor({DType::kFloat64, c.a}, 1);
    const HostTensor b = random_tensor({DType::kFloat64, c.b}, 2);
    const auto y = run_op("MatMul", transposes(c.trans_a, c.trans_b), {a, b});
    expect_close(y[0], product(a, b, c.trans_a, c.trans_b, c.output), 1e-12, c.a.text());
  }
}

TEST(MatMul, GradientsOfEveryBroadcast) {
  for (const MatMulCase& c : kCases) {
    check_gradients("MatMul", transposes(c.trans_a, c.trans_b), {{c.a}, {c.b}});
  }
}

TEST(MatMul, GradientsWithBias) {
  check_gradients("MatMul", transposes(0, 1), {{{3, 4}}, {{5, 4}}, {{5}}});
  check_gradients("MatMul", transposes(0, 0), {{{2, 3, 4}}, {{4, 5}}, {{5}}});
}

TEST(MatMul, CpuAgreesWithReference) {
  for (const MatMulCase& c : kCases) {
    check_cpu("MatMul", transposes(c.trans_a, c.trans_b), {{c.a}, {c.b}}, 1e-5);
  }
  for (const int trans_a : {0, 1}) {
    for (const int trans_b : {0, 1}) {
      const Shape a = trans_a ? Shape{70, 129} : Shape{129, 70};
      const Shape b = trans_b ? Shape{65, 70} : Shape{70, 65};
      check_cpu("MatMul", transposes(trans_a, trans_b), {{a}, {b}, {{65}}}, 1e-5);
      // Enough products for one per thread, and few large ones.
      const Shape many_a = trans_a ? Shape{3, 4, 40, 33} : Shape{3, 4, 33, 40};
      const Shape many_b = trans_b ? Shape{4, 17, 40} : Shape{4, 40, 17};
      check_cpu("MatMul", transposes(trans_a, trans_b), {{many_a}, {many_b}}, 1e-5);
    }
  }
}

// More than one block in m, n and k, with remainders; few rows, and few columns.
TEST(MatMul, LargeProducts) {
  struct Extents {
    std::int64_t m, n, k;
  };
  for (const Extents& e : {Extents{74, 1061, 263}, {1300, 52, 277}}) {
    for (const int transposed : {0, 1, 2, 3}) {
      const int trans_a = transposed & 1, trans_b = transposed / 2;
      const Shape a = trans_a ? Shape{e.k, e.m} : Shape{e.m, e.k};
      const Shape b = trans_b ? Shape{e.n, e.k} : Shape{e.k, e.n};
      check_cpu("MatMul", transposes(trans_a, trans_b), {{a}, {b}, {{e.n}}}, 1e-5);
    }
  }
}

// The split of a product depends on the number of threads, its bits do not.
// Also with more threads than parts of the rows.
TEST(MatMul, OwnProductsKeepTheirBitsWithThreads) {
  for (const GemmShape& shape : {GemmShape{131, 203, 300},
                                 {18, 16, 600},
                                 {18, 10, 2100},
                                 {50, 48, 1100},
                                 {10, 16, 2100},
                                 {512, 64, 600}}) {
    const HostTensor a = random_tensor({DType::kFloat32, {shape.m, shape.k}}, 1);
    const HostTensor b = random_tensor({DType::kFloat32, {shape.n, shape.k}}, 2);
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 4, 6, 8, 16, 24, 32}) {
      const Buffer workspace(gemm_workspace_bytes(shape, threads));
      std::vector<float> c(static_cast<std::size_t>(shape.m * shape.n));
      gemm(shape, {a.view().as<float>(), shape.k, 1}, {b.view().as<float>(), 1, shape.k}, nullptr,
           c.data(), workspace.data(), threads);
      if (first.empty()) first = c;
      EXPECT_EQ(c, first) << shape.m << " rows, " << threads << " threads";
    }
  }
}

// Packed in advance, and accumulated: same bits, for full and partial row panels, columns with a
// remainder, and one or several k-blocks.
TEST(MatMul, PackedAndAddingProductsKeepTheirBits) {
  for (const std::int64_t m : {1, 5, 6, 7, 13, 32, 131}) {
    for (const std::int64_t k : {48, 64, 300, 600, 1100}) {
      const GemmShape shape{m, 203, k};
      const HostTensor a = random_tensor({DType::kFloat32, {m, k}}, 1);
      const HostTensor b = random_tensor({DType::kFloat32, {shape.n, k}}, 2);
      const HostTensor before = random_tensor({DType::kFloat32, {m, shape.n}}, 3);
      const MatrixView left{a.view().as<float>(), k, 1}, right{b.view().as<float>(), 1, k};
      const float* bias = before.view().as<float>();
      const auto size = static_cast<std::size_t>(m * shape.n);
      std::vector<float> expected(size), sum(size);
      const Buffer workspace(gemm_workspace_bytes(shape, 3));
      gemm(shape, left, right, nullptr, sum.data(), workspace.data(), 1);
      for (std::size_t i = 0; i < size; ++i) sum[i] += before.view().as<float>()[i];
      gemm(shape, left, right, bias, expected.data(), workspace.data(), 1);
      for (const int threads : {1, 3}) {
        std::vector<float> packed(static_cast<std::size_t>(gemm_packed_floats(shape.n, k)), NAN);
        gemm_pack(shape.n, k, right, packed.data(), threads);
        std::vector<float> c(size, NAN);
        const Buffer own(gemm_packed_workspace_bytes(shape, threads));
        gemm_packed(shape, left, packed.data(), bias, c.data(), own.data(), threads);
        EXPECT_EQ(c, expected) << m << " rows of " << k << ", " << threads << " threads";
        if (!gemm_adds(shape)) continue;
        std::copy_n(before.view().as<float>(), size, c.data());
        gemm_adding(shape, left, right, c.data(), workspace.data(), threads);
        EXPECT_EQ(c, sum) << m << " rows of " << k << ", " << threads << " threads";
      }
      EXPECT_TRUE(k > 256 || gemm_adds(shape));
      EXPECT_FALSE(k > (gemm_splits(shape) ? 1024 : 512) && gemm_adds(shape));
    }
  }
}

// One packed matrix serves a product and the one with its transpose.
TEST(MatMul, ProductsWithAPackedTransposeKeepTheirBits) {
  for (const std::int64_t m : {1, 7, 16, 21, 32, 64}) {
    for (const std::int64_t n : {5, 200, 471}) {
      for (const std::int64_t k : {8, 250, 301, 600}) {
        const GemmShape shape{m, n, k};
        // AMX has other sums, and packs for each direction.
        if (gemm_splits(shape) && !gemm_takes_transposed(shape)) continue;
        const HostTensor a = random_tensor({DType::kFloat32, {m, k}}, 1);
        const HostTensor b = random_tensor({DType::kFloat32, {k, n}}, 2);
        const MatrixView left{a.view().as<float>(), k, 1};
        const float* numbers = b.view().as<float>();
        const auto size = static_cast<std::size_t>(m * n);
        std::vector<float> expected(size),
            packed(static_cast<std::size_t>(gemm_packed_floats(k, n)), NAN);
        const Buffer workspace(gemm_workspace_bytes(shape, 1));
        gemm(shape, left, {numbers, n, 1}, nullptr, expected.data(), workspace.data(), 1);
        gemm_pack(k, n, {numbers, 1, n}, packed.data(), 1);
        for (const int threads : {1, 3}) {
          std::vector<float> c(size, NAN);
          const Buffer own(gemm_transposed_workspace_bytes(shape, threads));
          gemm_packed_transposed(shape, left, packed.data(), c.data(), own.data(), threads);
          EXPECT_EQ(c, expected) << m << " rows, " << n << " columns, " << k << " terms, "
                                 << threads << " threads";
        }
      }
    }
  }
}

/// A bfloat16 matrix, its values, and its strided view.
struct NarrowMatrix {
  NarrowMatrix(std::int64_t rows, std::int64_t columns, bool transposed, unsigned seed)
      : row_stride(transposed ? 1 : columns), column_stride(transposed ? rows : 1) {
    const HostTensor numbers = random_tensor({DType::kFloat32, {rows, columns}}, seed);
    for (const float number : numbers.view().span<const float>()) {
      bits.push_back(float_to_bfloat16(number));
      values.push_back(bfloat16_to_float(bits.back()));
    }
  }
  BFloat16Matrix view() const { return {bits.data(), row_stride, column_stride}; }
  MatrixView floats() const { return {values.data(), row_stride, column_stride}; }
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * row_stride + j * column_stride)];
  }

  std::int64_t row_stride, column_stride;
  std::vector<std::uint16_t> bits;
  std::vector<float> values;
};

template <class Out>
std::vector<Out> narrow_product(const GemmShape& shape, const NarrowMatrix& a,
                                const NarrowMatrix& b, const float* bias, int threads) {
  const Buffer workspace(gemm_bfloat16_workspace_bytes<Out>(shape, /*packed=*/false, threads));
  std::vector<Out> c(static_cast<std::size_t>(shape.m * shape.n), Out{1});
  gemm_bfloat16(shape, a.view(), b.view(), bias, c.data(), workspace.data(), threads);
  return c;
}

std::vector<std::uint16_t> rounded(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (const float value : values) out.push_back(float_to_bfloat16(value));
  return out;
}

constexpr const char* kNoBFloat16Products = "this processor has no AVX512_BF16";

// Full and partial panels of rows and columns, odd k, one and several k-blocks, plain and
// transposed operands: float sums, rounded once if stored as bfloat16.
TEST(MatMul, BFloat16ProductsAreFloatSums) {
  if (!has_gemm_bfloat16()) GTEST_SKIP() << kNoBFloat16Products;
  const std::vector<GemmShape> shapes = {{1, 1, 1},     {1, 16, 2},    {7, 37, 33},
                                         {12, 32, 16},  {13, 48, 17},  {85, 203, 130},
                                         {70, 10, 301}, {6, 40, 2049}, {29, 33, 4100}};
  for (const GemmShape& shape : shapes) {
    for (const int transposed : {0, 1, 2, 3}) {
      const NarrowMatrix a(shape.m, shape.k, transposed & 1, 1);
      const NarrowMatrix b(shape.k, shape.n, transposed & 2, 2);
      const HostTensor bias = random_tensor({DType::kFloat32, {shape.n}}, 3);
      const float* shift = transposed == 1 ? nullptr : bias.view().as<float>();
      const std::vector<float> c = narrow_product<float>(shape, a, b, shift, 1);
      for (std::int64_t i = 0; i < shape.m; ++i) {
        for (std::int64_t j = 0; j < shape.n; ++j) {
          double sum = shift ? shift[j] : 0, size = 1;
          for (std::int64_t k = 0; k < shape.k; ++k) {
            sum += a.at(i, k) * b.at(k, j);
            size += std::abs(a.at(i, k) * b.at(k, j));
          }
          ASSERT_NEAR(c[static_cast<std::size_t>(i * shape.n + j)], sum, 1e-6 * size)
              << i << ", " << j << " of " << shape.m << " x " << shape.n << ", " << shape.k
              << " deep, transposed " << transposed;
        }
      }
      EXPECT_EQ(narrow_product<std::uint16_t>(shape, a, b, shift, 1), rounded(c));
      EXPECT_EQ(narrow_product<float>(shape, a, b, shift, 3), c);
      EXPECT_EQ(narrow_product<std::uint16_t>(shape, a, b, shift, 4), rounded(c));
    }
  }
}

// From bfloat16 and from the floats that round to them, and accumulated.
TEST(MatMul, PackedAndAddingBFloat16ProductsKeepTheirBits) {
  if (!has_gemm_bfloat16()) GTEST_SKIP() << kNoBFloat16Products;
  for (const std::int64_t k : {1, 16, 49, 300, 2050}) {
    for (const bool transposed : {false, true}) {
      const GemmShape shape{25, 203, k};
      const NarrowMatrix a(shape.m, k, false, 1), b(k, shape.n, transposed, 2);
      HostTensor master = random_tensor({DType::kFloat32, {k, shape.n}}, 2);
      const MatrixView floats{master.view().as<float>(), b.row_stride, b.column_stride};
      const std::vector<float> expected = narrow_product<float>(shape, a, b, nullptr, 1);
      for (const int threads : {1, 3}) {
        const auto size = static_cast<std::size_t>(gemm_bfloat16_packed_elements(shape.n, k));
        std::vector<std::uint16_t> packed(size, 0x7fc0), again(size, 0x7fc0);
        gemm_bfloat16_pack(shape.n, k, b.view(), packed.data(), threads);
        gemm_bfloat16_pack(shape.n, k, floats, again.data(), threads);
        EXPECT_EQ(packed, again) << k << " terms";
        std::vector<std::uint16_t> c(expected.size());
        const Buffer workspace(
            gemm_bfloat16_workspace_bytes<std::uint16_t>(shape, /*packed=*/true, threads));
        gemm_bfloat16_packed(shape, a.view(), packed.data(), nullptr, c.data(), workspace.data(),
                             threads);
        EXPECT_EQ(c, rounded(expected)) << k << " terms, " << threads << " threads";
        if (!gemm_bfloat16_adds(shape)) continue;
        std::vector<float> sum(expected.size(), 0.75F);
        const Buffer own(gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
        gemm_bfloat16_adding(shape, a.view(), b.view(), sum.data(), own.data(), threads);
        for (float& value : sum) value -= 0.75F;
        for (std::size_t i = 0; i < sum.size(); ++i)
          ASSERT_EQ(sum[i], (expected[i] + 0.75F) - 0.75F) << i;
      }
      EXPECT_EQ(gemm_bfloat16_adds(shape), has_amx() || k <= 2048);
    }
  }
}

// Two threads may split the inner axis; repeated runs must still give the same bits.
TEST(MatMul, LongSumsRepeat) {
  check_cpu("MatMul", {}, {{{32, 8192}}, {{8192, 24}}}, 1e-5);
  check_cpu("MatMul", transposes(1, 0), {{{4096, 16}}, {{4096, 48}}}, 1e-5);
}

TEST(MatMul, BiasIsAddedToEveryRow) {
  const auto y =
      run_op("MatMul", {}, {floats({2, 1}, {1, 2}), floats({1, 2}, {3, 4}), floats({2}, {10, 20})},
             Backend::kCpu);
  expect_values(y[0], {2, 2}, {13, 24, 16, 28});
}

TEST(MatMul, EmptySumIsZero) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    const auto y = run_op("MatMul", {}, {floats({2, 0}, {}), floats({0, 3}, {})}, backend);
    expect_values(y[0], {2, 3}, {0, 0, 0, 0, 0, 0});
  }
}

TEST(MatMul, MultipliesIntegers) {
  const auto y = run_op("MatMul", {}, {int64s({1, 2}, {3, 5}), int64s({2, 1}, {7, 11})});
  expect_values(y[0], {1, 1}, {76});
}

MatMulPlan plan_of(const Shape& a, const Shape& b, const Attributes& attributes) {
  Node node;
  node.attributes = attributes;
  return matmul_plan({node, {{DType::kFloat32, a}, {DType::kFloat32, b}}, {}});
}

TEST(MatMul, OneSharedMatrixIsOneProduct) {
  EXPECT_EQ(plan_of({8, 16, 4}, {4, 5}, {}).m, 128);
  EXPECT_EQ(plan_of({8, 16, 4}, {4, 5}, {}).products(), 1);
  EXPECT_EQ(plan_of({8, 4, 16}, {4, 5}, transposes(1, 0)).products(), 8);
}

// The shapes of a hostile file are checked without listing all products.
TEST(MatMul, InfersEnormousBatches) {
  const std::int64_t huge = std::int64_t{1} << 40;
  const std::vector<TensorType> inputs = {{DType::kFloat32, Shape{huge, 1, 1}},
                                          {DType::kFloat32, Shape{1, 1}}};
  EXPECT_EQ(infer_op("MatMul", {}, inputs)[0].shape, (Shape{huge, 1, 1}));
}

TEST(MatMul, RefusesWhatDoesNotFit) {
  const auto infer = [](Shape a, Shape b, std::vector<TensorType> more = {}) {
    return [=] {
      std::vector<TensorType> inputs = {{DType::kFloat32, a}, {DType::kFloat32, b}};
      inputs.insert(inputs.end(), more.begin(), more.end());
      infer_op("MatMul", {}, inputs);
    };
  };
  expect_error(ErrorKind::kModel, "the inner dimensions are 3 and 4", infer({2, 3}, {4, 5}));
  expect_error(ErrorKind::kModel, "at least 2 axes", infer({3}, {3, 5}));
  expect_error(ErrorKind::kModel, "", infer({2, 2, 3}, {3, 3, 5}));
  expect_error(ErrorKind::kModel, "bias", infer({2, 3}, {3, 5}, {{DType::kFloat32, Shape{2}}}));
  expect_error(ErrorKind::kModel, "one type", [] {
    infer_op("MatMul", {}, {{DType::kFloat32, Shape{2, 3}}, {DType::kFloat64, Shape{3, 2}}});
  });
}

TEST(MatMul, CountsTwoFlopsPerTerm) {
  const std::vector<TensorType> inputs = {{DType::kFloat32, Shape{2, 3, 4}},
                                          {DType::kFloat32, Shape{4, 5}}};
  const std::vector<TensorType> outputs = infer_op("MatMul", {}, inputs);
  EXPECT_EQ(find_op("MatMul")->cost({}, inputs, outputs).flops, 2.0 * 2 * 3 * 4 * 5);
}

// --- import ---

TEST(MatMulImport, VectorsLikeNumpy) {
  const HostTensor row = floats({2}, {1, 2});
  const HostTensor matrix = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  expect_values(import_node("MatMul", 13, {}, {data(row), data(matrix)}).run()[0], {3},
                {9, 12, 15});
  const HostTensor column = floats({3}, {1, 0, -1});
  expect_values(import_node("MatMul", 13, {}, {data(matrix), data(column)}).run()[0], {2},
                {-2, -2});
  expect_values(import_node("MatMul", 13, {}, {data(column), data(column)}).run()[0], {}, {2});
}

TEST(MatMulImport, TransposeBecomesAFlag) {
  Graph graph;
  GraphBuilder builder = make_builder(graph);
  const auto input = [&](Shape shape) {
    Value value;
    value.name = "input";
    value.type = {DType::kFloat32, std::move(shape)};
    value.role = Role::kInput;
    return builder.add_value(std::move(value));
  };
  const ValueId w = input({7, 5});
  const ValueId swapped = builder.add("Transpose", {w}, {{"perm", Ints{1, 0}}});
  const ValueId x = input({2, 3, 5});
  const Attributes attributes;
  const ImportMode mode;
  ImportContext context(builder, "MatMul", 13, attributes, {x, swapped}, 1, mode);
  find_import("MatMul")->import(context);
  const Node& node = graph.nodes.back();
  EXPECT_EQ(node.inputs[1], w);
  EXPECT_TRUE(node.attributes.flag("trans_b"));
  EXPECT_EQ(builder.shape(context.outputs()[0]), (Shape{2, 3, 7}));

  // Any other permutation remains a Transpose.
  const ValueId heads = input({2, 3, 4, 5});
  const ValueId moved = builder.add("Transpose", {heads}, {{"perm", Ints{0, 2, 3, 1}}});
  const ValueId q = input({2, 4, 3, 5});
  ImportContext other(builder, "MatMul", 13, attributes, {q, moved}, 1, mode);
  find_import("MatMul")->import(other);
  EXPECT_EQ(graph.nodes.back().inputs[1], moved);
  EXPECT_FALSE(graph.nodes.back().attributes.flag("trans_b"));
}

TEST(GemmImport, BiasFormsAndFactors) {
  const HostTensor a = floats({2, 2}, {1, 2, 3, 4});
  const HostTensor b = floats({2, 2}, {1, 0, 1, 1});  // transposed: (1 1; 0 1)
  const Attributes transposed = {{"transB", std::int64_t{1}}};
  const Imported fused =
      import_node("Gemm", 13, transposed, {data(a), data(b), data(floats({2}, {10, 20}))});
  EXPECT_EQ(fused.ops(), "MatMul");
  expect_values(fused.run()[0], {2, 2}, {11, 23, 13, 27});
  const Imported row =
      import_node("Gemm", 9, transposed, {data(a), data(b), data(floats({1, 2}, {10, 20}))});
  expect_values(row.run()[0], {2, 2}, {11, 23, 13, 27});
  const Imported plain = import_node("Gemm", 13, {}, {data(a), data(b)});
  EXPECT_EQ(plain.ops(), "MatMul");
  expect_values(plain.run()[0], {2, 2}, {3, 2, 7, 4});
  const Attributes factors = {{"transA", std::int64_t{1}}, {"alpha", 2.0}, {"beta", 0.5}};
  const Imported scaled =
      import_node("Gemm", 13, factors, {data(a), data(b), data(floats({2, 1}, {10, 20}))});
  // aᵀ b = (1 3; 2 4)(1 0; 1 1) = (4 3; 6 4)
  expect_values(scaled.run()[0], {2, 2}, {13, 11, 22, 18});
  const Imported no_c =
      import_node("Gemm", 13, {{"beta", 0.0}}, {data(a), data(b), data(floats({2}, {10, 20}))});
  EXPECT_EQ(no_c.ops(), "MatMul");
  expect_error(ErrorKind::kModel, "matrices", [&] {
    import_node("Gemm", 13, {}, {data(floats({1, 2, 2}, {1, 2, 3, 4})), data(b)});
  });
}

// A product of narrow operands may have a float result: a model's output.
TEST(MatMul, WeightsArePackedForProductsOfTheirType) {
  const auto pays = [](DType operands) {
    Node node;
    node.op = find_op("MatMul");
    return packing_pays({node,
                         {{operands, Shape{32, 512}}, {operands, Shape{512, 512}}},
                         {{DType::kFloat32, Shape{32, 512}}}});
  };
  EXPECT_TRUE(pays(DType::kFloat32));
  EXPECT_EQ(pays(DType::kBFloat16), has_gemm_bfloat16());
  EXPECT_FALSE(pays(DType::kFloat16));
}

}  // namespace
}  // namespace pipetrain::test
