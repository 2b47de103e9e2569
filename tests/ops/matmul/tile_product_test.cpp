// Products on tiles against their definition in double, with AMX where there is one, and with the
// portable instructions everywhere. The bound of a sum's error is that of gemm_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/vectors.h"
#include "ops/matmul/tile_product_cpu.h"
#include "support/op_check.h"

namespace pipetrain::test {
namespace {

/// A matrix of bfloat16 numbers whose lines are further apart than they are long.
struct StridedMatrix {
  StridedMatrix(std::int64_t rows, std::int64_t columns, bool transposed, std::uint64_t seed)
      : line((transposed ? rows : columns) + 5),
        row_stride(transposed ? 1 : line),
        column_stride(transposed ? line : 1) {
    const HostTensor drawn =
        random_tensor({DType::kFloat32, {transposed ? columns : rows, line}}, seed);
    for (const float value : drawn.span<float>()) bits.push_back(float_to_bfloat16(value));
  }
  BFloat16Matrix view() const { return {bits.data(), row_stride, column_stride}; }
  double at(std::int64_t i, std::int64_t j) const {
    return bfloat16_to_float(bits[static_cast<std::size_t>(i * row_stride + j * column_stride)]);
  }

  std::int64_t line, row_stride, column_stride;
  std::vector<std::uint16_t> bits;
};

struct TileCase {
  TileCase(const GemmShape& shape, int transposed)
      : shape(shape),
        a(shape.m, shape.k, transposed & 1, 1),
        b(shape.k, shape.n, transposed & 2, 2),
        name(std::to_string(shape.m) + " x " + std::to_string(shape.n) + ", " +
             std::to_string(shape.k) + " deep, transposed " + std::to_string(transposed)) {
    for (std::int64_t j = 0; j < shape.n; ++j)
      bias.push_back(0.25F * static_cast<float>(j % 37) - 3);
  }

  /// Result of the product, added to `before`, of which a NaN is overwritten.
  template <class Out>
  std::vector<Out> product(const tiles::Instructions& instructions, int threads, bool packs,
                           const float* shift, Out before) const {
    std::vector<std::uint16_t> packed;
    if (packs) {
      packed.assign(static_cast<std::size_t>(tiles::packed_elements(shape.n, shape.k)), 0x7fc0);
      tiles::pack(shape.n, shape.k, b.view(), packed.data(), threads);
    }
    std::vector<Out> c(static_cast<std::size_t>(shape.m * shape.n), before);
    const Buffer workspace(tiles::workspace_bytes(shape, packs, threads));
    const bool adds = std::is_same_v<Out, float> && before == before;
    tiles::multiply(instructions,
                    tiles::Product<Out>{shape, a.view(), b.view(), packs ? packed.data() : nullptr,
                                        shift, adds, c.data()},
                    workspace.data(), threads);
    return c;
  }

  void check(const tiles::Instructions& instructions) const {
    const std::vector<float> plain = product<float>(instructions, 1, false, nullptr, NAN);
    const std::vector<float> shifted = product<float>(instructions, 1, false, bias.data(), NAN);
    const double steps = static_cast<double>(shape.k + 2) * 0x1p-24, bound = steps / (1 - steps);
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = 0; j < shape.n; ++j) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < shape.k; ++k) {
          sum += a.at(i, k) * b.at(k, j);
          size += std::fabs(a.at(i, k) * b.at(k, j));
        }
        const auto at = static_cast<std::size_t>(i * shape.n + j);
        const double shift = bias[static_cast<std::size_t>(j)];
        ASSERT_NEAR(plain[at], sum, bound * size) << name << ": " << i << ", " << j;
        ASSERT_NEAR(shifted[at], sum + shift, bound * (size + std::fabs(shift)))
            << name << ", with bias: " << i << ", " << j;
      }
    }
    std::vector<float> added;
    std::vector<std::uint16_t> rounded;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      added.push_back(plain[i] + 0.75F);
      rounded.push_back(float_to_bfloat16(shifted[i]));
    }
    for (const int threads : {1, 3}) {
      for (const bool packs : {false, true}) {
        SCOPED_TRACE(name + ", " + std::to_string(threads) + " threads" +
                     (packs ? ", packed" : ""));
        ASSERT_EQ(product<float>(instructions, threads, packs, bias.data(), NAN), shifted);
        ASSERT_EQ(product<float>(instructions, threads, packs, nullptr, 0.75F), added);
        ASSERT_EQ(product<std::uint16_t>(instructions, threads, packs, bias.data(), 0), rounded);
      }
    }
  }

  GemmShape shape;
  StridedMatrix a, b;
  std::string name;
  std::vector<float> bias;
};

/// One tile, several, their edges; several blocks along k, rows and columns.
void check_tiles(const tiles::Instructions& instructions) {
  for (const std::int64_t m : {1, 15, 16, 17, 32, 33}) {
    for (const std::int64_t n : {1, 15, 16, 17, 32, 47})
      for (const std::int64_t k : {1, 2, 31, 32, 33, 64, 95}) {
        TileCase({m, n, k}, static_cast<int>((m + n + k) % 4)).check(instructions);
        if (::testing::Test::HasFatalFailure()) return;
      }
  }
  const std::vector<GemmShape> large = {{70, 90, 800},  {65, 33, 1500}, {40, 50, 3100},
                                        {1100, 20, 33}, {20, 1100, 70}, {450, 410, 9},
                                        {1100, 50, 40}};
  for (const GemmShape& shape : large) {
    for (const int transposed : {0, 1, 2, 3}) {
      TileCase(shape, transposed).check(instructions);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TileProduct, VectorsFollowTheDefinition) {
  if (!has_avx512_bfloat16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  check_tiles(tiles::vectors());
  TileCase({130, 200, 6500}, 1).check(tiles::vectors());
}

TEST(TileProduct, PortableOnesFollowTheDefinition) { check_tiles(tiles::portable()); }

TEST(TileProduct, AmxFollowsTheDefinition) {
  if (!has_amx()) GTEST_SKIP() << "this processor has no AMX, or this process may not use it";
  check_tiles(tiles::amx());
  TileCase({130, 200, 6500}, 1).check(tiles::amx());
  TileCase({1500, 1300, 96}, 2).check(tiles::amx());
}

TEST(TileProduct, PackingRoundsFloats) {
  const GemmShape shape{0, 70, 3200};
  for (const bool transposed : {false, true}) {
    HostTensor floats = random_tensor({DType::kFloat32, {shape.k, shape.n}}, 3);
    std::vector<std::uint16_t> bits;
    for (const float value : floats.span<float>()) bits.push_back(float_to_bfloat16(value));
    const std::int64_t row = transposed ? 1 : shape.n, column = transposed ? shape.k : 1;
    const auto size = static_cast<std::size_t>(tiles::packed_elements(shape.n, shape.k));
    std::vector<std::uint16_t> packed(size, 0x7fc0), expected(size, 0x7fc0);
    tiles::pack(shape.n, shape.k, MatrixView{floats.view().as<float>(), row, column}, packed.data(),
                2);
    tiles::pack(shape.n, shape.k, BFloat16Matrix{bits.data(), row, column}, expected.data(), 1);
    EXPECT_EQ(packed, expected);
  }
}

}  // namespace
}  // namespace pipetrain::test
