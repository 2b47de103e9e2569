#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace pipetrain {
namespace {

TEST(Finite, EachTypeByItsOwnBits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  // Longer than a block of the search.
  std::vector<float> floats(10000, std::numeric_limits<float>::max());
  const Tensor tensor = {{DType::kFloat32, {10000}}, floats.data()};
  EXPECT_TRUE(all_finite(tensor));
  EXPECT_EQ(first_nonfinite(tensor).index, -1);
  floats[9998] = static_cast<float>(-kInfinity);
  EXPECT_FALSE(all_finite(tensor));
  EXPECT_EQ(first_nonfinite(tensor).index, 9998);
  EXPECT_FALSE(first_nonfinite(tensor).is_nan);
  floats[9999] = static_cast<float>(kNan);  // a NaN comes before an infinite value
  EXPECT_EQ(first_nonfinite(tensor).index, 9999);
  EXPECT_TRUE(first_nonfinite(tensor).is_nan);

  std::vector<double> doubles = {1e308, kInfinity};
  EXPECT_EQ(first_nonfinite({{DType::kFloat64, {2}}, doubles.data()}).index, 1);
  std::vector<std::uint16_t> halves = {0x7bff, 0x7c01};  // 65504, NaN; 0x7c01 is 2^121 in bfloat16
  EXPECT_TRUE(first_nonfinite({{DType::kFloat16, {2}}, halves.data()}).is_nan);
  EXPECT_TRUE(all_finite({{DType::kBFloat16, {2}}, halves.data()}));
  halves = {0x7f7f, 0xff80};
  EXPECT_EQ(first_nonfinite({{DType::kBFloat16, {2}}, halves.data()}).index, 1);
  EXPECT_FALSE(first_nonfinite({{DType::kBFloat16, {2}}, halves.data()}).is_nan);
  std::vector<std::int32_t> integers = {0x7f800000};
  EXPECT_TRUE(all_finite({{DType::kInt32, {1}}, integers.data()}));
}

TEST(Finite, EdgesAreTheFirstRowAndTheFirstColumn) {
  std::vector<float> values(3 * 4 * 2, 1);
  const auto finite = [&](Shape shape) {
    return edges_finite({{DType::kFloat32, std::move(shape)}, values.data()});
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(finite({3, 4, 2}), i >= 8 && i % 8 != 0) << i;
    EXPECT_EQ(finite({3, 8}), i >= 8 && i % 8 != 0) << i;
    EXPECT_EQ(finite({8, 3}), i >= 3 && i % 3 != 0) << i;
    EXPECT_FALSE(finite({24}));
    values[i] = 1;
  }
  EXPECT_TRUE(finite({3, 8}));
  EXPECT_TRUE(finite({24}));
  EXPECT_TRUE(edges_finite({{DType::kFloat32, {0, 8}}, values.data()}));
  EXPECT_TRUE(edges_finite({{DType::kFloat32, {3, 0}}, values.data()}));
}

}  // namespace
}  // namespace pipetrain
