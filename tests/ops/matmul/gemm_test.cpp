// The hand-written matrix products of gemm_cpu.h against their definition in double, for every
// height and width of a tile and its edges.
//
// A float sum of k products, whatever the order, with a bias and with what it is added to, is off
// by at most gamma(k + 2) * (sum |a b| + |bias| + |before|), where gamma(j) = j u / (1 - j u) and
// u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3). Products of
// bfloat16 numbers are floats without error; their sums are rounded no more often.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/matmul/gemm_cpu.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

constexpr const char* kNoBFloat16 = "this processor has no AVX512_BF16";

enum class Numbers { kFloat, kBFloat16 };

/// (rows, columns), stored plain or transposed; bfloat16 values in both types.
struct Matrix {
  Matrix(std::int64_t rows, std::int64_t columns, bool transposed, Numbers numbers,
         std::uint64_t seed)
      : row_stride(transposed ? 1 : columns), column_stride(transposed ? rows : 1) {
    const HostTensor drawn = random_tensor({DType::kFloat32, {rows, columns}}, seed);
    for (const float value : drawn.span<float>()) {
      narrow.push_back(float_to_bfloat16(value));
      values.push_back(numbers == Numbers::kFloat ? value : bfloat16_to_float(narrow.back()));
    }
  }
  MatrixView view() const { return {values.data(), row_stride, column_stride}; }
  BFloat16Matrix narrow_view() const { return {narrow.data(), row_stride, column_stride}; }
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * row_stride + j * column_stride)];
  }

  std::int64_t row_stride, column_stride;
  std::vector<float> values;
  std::vector<std::uint16_t> narrow;
};

/// One product: its operands, the exact result and the error bound of a float result. Biases are
/// far larger than the bound, so that a missing one is detected.
struct Product {
  Product(const GemmShape& shape, int transposed, Numbers numbers = Numbers::kFloat)
      : shape(shape),
        a(shape.m, shape.k, transposed & 1, numbers, 1),
        b(shape.k, shape.n, transposed & 2, numbers, 2),
        name(std::to_string(shape.m) + " x " + std::to_string(shape.n) + ", " +
             std::to_string(shape.k) + " deep, transposed " + std::to_string(transposed)) {
    for (std::int64_t j = 0; j < shape.n; ++j) bias.push_back(1 + 0.25F * static_cast<float>(j));
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = 0; j < shape.n; ++j) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < shape.k; ++k) {
          sum += a.at(i, k) * b.at(k, j);
          size += std::fabs(a.at(i, k) * b.at(k, j));
        }
        sums.push_back(sum);
        sizes.push_back(size);
      }
    }
  }

  /// Checks the result of `multiply`, optionally with a bias and added to `before`.
  void expect(std::string_view form, bool with_bias, float before,
              const std::function<void(const float* bias, float* c)>& multiply) const {
    std::vector<float> c(sums.size(), before == 0 ? NAN : before);
    multiply(with_bias ? bias.data() : nullptr, c.data());
    const double steps = static_cast<double>(shape.k + 2) * 0x1p-24;
    for (std::size_t i = 0; i < c.size(); ++i) {
      const std::size_t column = i % static_cast<std::size_t>(shape.n);
      const double shift = (with_bias ? bias[column] : 0.0F) + before;
      const double bound = steps / (1 - steps) * (sizes[i] + std::fabs(shift));
      ASSERT_LE(std::fabs(c[i] - (sums[i] + shift)), bound)
          << form << " " << name << (with_bias ? ", with bias" : "") << ": row "
          << i / static_cast<std::size_t>(shape.n) << ", column " << column << " is " << c[i]
          << " instead of " << sums[i] + shift;
    }
  }

  GemmShape shape;
  Matrix a, b;
  std::string name;
  std::vector<float> bias;
  std::vector<double> sums, sizes;
};

/// Every width up to two column panels and one more, heights of one and two row panels with
/// remainders.
void for_each_product(Numbers numbers, const std::vector<std::int64_t>& terms,
                      const std::function<void(const Product&)>& check) {
  for (const std::int64_t k : terms) {
    for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 19}) {
      for (std::int64_t n = 1; n <= 33; ++n) {
        check(Product({m, n, k}, static_cast<int>((m + n + k) % 4), numbers));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  for (const int transposed : {0, 1, 2, 3}) {
    for (std::int64_t n = 1; n <= 33; ++n) {
      check(Product({7, n, 9}, transposed, numbers));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

void check_floats_with(const Product& p, const std::vector<int>& all_threads) {
  const GemmShape& shape = p.shape;
  for (const int threads : all_threads) {
    for (const bool with_bias : {false, true}) {
      p.expect("product", with_bias, 0, [&](const float* bias, float* c) {
        const Buffer workspace(gemm_workspace_bytes(shape, threads));
        gemm(shape, p.a.view(), p.b.view(), bias, c, workspace.data(), threads);
      });
      p.expect("product with a packed matrix", with_bias, 0, [&](const float* bias, float* c) {
        std::vector<float> packed(static_cast<std::size_t>(gemm_packed_floats(shape.n, shape.k)));
        gemm_pack(shape.n, shape.k, p.b.view(), packed.data(), threads);
        const Buffer workspace(gemm_packed_workspace_bytes(shape, threads));
        gemm_packed(shape, p.a.view(), packed.data(), bias, c, workspace.data(), threads);
      });
    }
    if (p.a.column_stride == 1) {
      p.expect("product with a packed transpose", false, 0, [&](const float*, float* c) {
        std::vector<float> packed(static_cast<std::size_t>(gemm_packed_floats(shape.k, shape.n)));
        gemm_pack(shape.k, shape.n, {p.b.values.data(), p.b.column_stride, p.b.row_stride},
                  packed.data(), threads);
        const Buffer workspace(gemm_transposed_workspace_bytes(shape, threads));
        gemm_packed_transposed(shape, p.a.view(), packed.data(), c, workspace.data(), threads);
      });
    }
    if (gemm_adds(shape)) {
      p.expect("added product", false, 3, [&](const float*, float* c) {
        const Buffer workspace(gemm_workspace_bytes(shape, threads));
        gemm_adding(shape, p.a.view(), p.b.view(), c, workspace.data(), threads);
      });
    }
  }
}

void check_bfloat16_with(const Product& p, const std::vector<int>& all_threads) {
  const GemmShape& shape = p.shape;
  for (const int threads : all_threads) {
    for (const bool with_bias : {false, true}) {
      p.expect("bfloat16 product", with_bias, 0, [&](const float* bias, float* c) {
        const Buffer workspace(
            gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
        gemm_bfloat16(shape, p.a.narrow_view(), p.b.narrow_view(), bias, c, workspace.data(),
                      threads);
      });
      p.expect("bfloat16 product with a packed matrix", with_bias, 0,
               [&](const float* bias, float* c) {
                 std::vector<std::uint16_t> packed(
                     static_cast<std::size_t>(gemm_bfloat16_packed_elements(shape.n, shape.k)));
                 gemm_bfloat16_pack(shape.n, shape.k, p.b.narrow_view(), packed.data(), threads);
                 const Buffer workspace(
                     gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/true, threads));
                 gemm_bfloat16_packed(shape, p.a.narrow_view(), packed.data(), bias, c,
                                      workspace.data(), threads);
               });
    }
    if (gemm_bfloat16_adds(shape)) {
      p.expect("added bfloat16 product", false, 3, [&](const float*, float* c) {
        const Buffer workspace(
            gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
        gemm_bfloat16_adding(shape, p.a.narrow_view(), p.b.narrow_view(), c, workspace.data(),
                             threads);
      });
    }
  }
}

void check_floats(const Product& p) { check_floats_with(p, {1, 2}); }
void check_bfloat16(const Product& p) { check_bfloat16_with(p, {1, 2}); }

// Some then have no rows, of which none are read in advance.
TEST(Gemm, MoreThreadsThanRowsFollowTheDefinition) {
  for (const GemmShape& shape :
       {GemmShape{18, 16, 600}, {18, 10, 2100}, {50, 48, 1100}, {10, 16, 2100}}) {
    check_floats_with({shape, 0}, {3, 4, 6, 8, 32});
    if (has_gemm_bfloat16()) check_bfloat16_with({shape, 0, Numbers::kBFloat16}, {3, 4, 6, 8, 32});
  }
}

// k = 530 is two k-blocks with AVX-512 and three with AVX2.
TEST(Gemm, EveryWidthAndHeightFollowsTheDefinition) {
  for_each_product(Numbers::kFloat, {1, 40, 530}, check_floats);
}

// With AMX these are sums of bfloat16 parts; k = 1100 is two passes of it.
TEST(Gemm, LargerProductsFollowTheDefinition) {
  for (const int transposed : {0, 1, 2, 3}) {
    for (const std::int64_t m : {48, 63, 97}) {
      for (const std::int64_t n : {49, 64, 83}) check_floats(Product({m, n, 70}, transposed));
    }
    check_floats(Product({50, 150, 1100}, transposed));
    check_floats(Product({300, 50, 130}, transposed));
  }
}

/// Root of the mean square error of c, and of sums in float, one product after the other.
struct Errors {
  double ours = 0, of_sums = 0;
};
Errors errors_of(const Product& p, const std::vector<float>& c) {
  Errors errors;
  for (std::int64_t i = 0; i < p.shape.m; ++i) {
    for (std::int64_t j = 0; j < p.shape.n; ++j) {
      const auto at = static_cast<std::size_t>(i * p.shape.n + j);
      float sum = 0;
      for (std::int64_t k = 0; k < p.shape.k; ++k)
        sum += static_cast<float>(p.a.at(i, k)) * static_cast<float>(p.b.at(k, j));
      errors.ours += std::pow((c[at] - p.sums[at]) / p.sizes[at], 2);
      errors.of_sums += std::pow((sum - p.sums[at]) / p.sizes[at], 2);
    }
  }
  return {std::sqrt(errors.ours / static_cast<double>(c.size())),
          std::sqrt(errors.of_sums / static_cast<double>(c.size()))};
}

TEST(Gemm, IsAsCloseAsSumsInFloat) {
  for (const std::int64_t k : {64, 256, 1024}) {
    Product p({64, 80, k}, 2);
    const Buffer workspace(gemm_workspace_bytes(p.shape, 1));
    std::vector<float> c(p.sums.size());
    gemm(p.shape, p.a.view(), p.b.view(), nullptr, c.data(), workspace.data(), 1);
    const auto [ours, of_sums] = errors_of(p, c);
    EXPECT_LE(ours, of_sums) << k << " products";
  }
}

TEST(Gemm, InfinitiesStayWhereTheyBelong) {
  const GemmShape shape{64, 64, 64};
  std::vector<float> a(64 * 64, 1), b(64 * 64, 0.5F), c(64 * 64);
  constexpr float kLargest = std::numeric_limits<float>::max();
  const auto at = [](std::int64_t row, std::int64_t column) {
    return static_cast<std::size_t>(64 * row + column);
  };
  a[at(3, 5)] = INFINITY;
  a[at(4, 5)] = kLargest;  // rounds to an infinity of bfloat16
  a[at(5, 5)] = NAN;
  b[at(5, 7)] = -2;
  b[at(5, 8)] = 0;
  const Buffer workspace(gemm_workspace_bytes(shape, 1));
  gemm(shape, {a.data(), 64, 1}, {b.data(), 64, 1}, nullptr, c.data(), workspace.data(), 1);
  EXPECT_EQ(c[at(3, 0)], INFINITY);
  EXPECT_EQ(c[at(3, 7)], -INFINITY);
  EXPECT_TRUE(std::isnan(c[at(3, 8)]));
  EXPECT_EQ(c[at(4, 0)], 0.5F * kLargest);
  EXPECT_EQ(c[at(4, 8)], 31.5F);
  EXPECT_TRUE(std::isnan(c[at(5, 0)]));
  EXPECT_EQ(c[at(0, 0)], 32);
  EXPECT_EQ(c[at(0, 7)], 29.5F);
}

// In the last row and column, whose tiles have edges, and in each pass over k.
TEST(Gemm, InfinitiesAtEdgesAreThoseOfTheDefinition) {
  for (const int transposed : {0, 1, 2, 3}) {
    for (const std::int64_t k : {70, 1100}) {
      Product p({63, 83, k}, transposed);
      p.a.values[static_cast<std::size_t>(62 * p.a.row_stride + 3 * p.a.column_stride)] = INFINITY;
      p.b.values[static_cast<std::size_t>((k - 1) * p.b.row_stride + 82 * p.b.column_stride)] =
          -INFINITY;
      std::vector<float> c(63 * 83);
      const Buffer workspace(gemm_workspace_bytes(p.shape, 2));
      gemm(p.shape, p.a.view(), p.b.view(), nullptr, c.data(), workspace.data(), 2);
      for (std::int64_t i = 0; i < 63; ++i) {
        for (std::int64_t j = 0; j < 83; ++j) {
          double sum = 0, size = 0;
          for (std::int64_t each = 0; each < k; ++each) {
            sum += p.a.at(i, each) * p.b.at(each, j);
            size += std::fabs(p.a.at(i, each) * p.b.at(each, j));
          }
          const float got = c[static_cast<std::size_t>(i * 83 + j)];
          if (std::isfinite(sum)) {
            ASSERT_LE(std::fabs(got - sum), static_cast<double>(k + 2) * 0x1p-24 * size)
                << p.name << ": " << i << ", " << j;
          } else {
            ASSERT_TRUE(std::isnan(sum) ? std::isnan(got) : got == sum)
                << p.name << ": " << i << ", " << j << " is " << got << " instead of " << sum;
          }
        }
      }
    }
  }
}

TEST(Gemm, BFloat16ProductsFollowTheDefinition) {
  if (!has_gemm_bfloat16()) GTEST_SKIP() << kNoBFloat16;
  for_each_product(Numbers::kBFloat16, {1, 41}, check_bfloat16);
  for (const std::int64_t n : {9, 16, 33}) check_bfloat16({{7, n, 2050}, 0, Numbers::kBFloat16});
}

// The factors of ONNX's Gemm, with every width of a row and every combination of transposes: alpha
// and beta are powers of two, so that they round nothing.
TEST(Gemm, FactorsAndBiasOfTheImport) {
  for (const int transposed : {0, 1, 2, 3}) {
    for (std::int64_t n = 1; n <= 33; ++n) {
      const Product p({5, n, 9}, transposed);
      const bool trans_a = transposed & 1, trans_b = transposed & 2;
      const Attributes attributes = {{"transA", std::int64_t{trans_a}},
                                     {"transB", std::int64_t{trans_b}},
                                     {"alpha", 0.5},
                                     {"beta", -2.0}};
      const Imported node =
          import_node("Gemm", 13, attributes,
                      {data(floats(trans_a ? Shape{9, 5} : Shape{5, 9}, p.a.values)),
                       data(floats(trans_b ? Shape{n, 9} : Shape{9, n}, p.b.values)),
                       data(floats({n}, p.bias))});
      const HostTensor y = node.run(Backend::kCpu)[0];
      const double steps = 11 * 0x1p-24;
      for (std::size_t i = 0; i < p.sums.size(); ++i) {
        const double shift = -2.0 * p.bias[i % static_cast<std::size_t>(n)];
        ASSERT_NEAR(y.span<float>()[i], 0.5 * p.sums[i] + shift,
                    steps / (1 - steps) * (0.5 * p.sizes[i] + std::fabs(shift)))
            << p.name << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
