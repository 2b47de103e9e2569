#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Shape, CountsAndStrides) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.count(), 24);
  EXPECT_EQ(shape.count(1, 3), 12);
  EXPECT_EQ(shape.strides(), (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ((Shape{2, 0, 4}).count(), 0);
  EXPECT_EQ(shape.text(), "(2, 3, 4)");
}

TEST(Buffer, IsAlignedAndZeroed) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, 4 * kMiB - 1, 4 * kMiB, 9 * kMiB + 1}) {
    Buffer first(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 64, 0U) << bytes;
    const std::span<std::byte> content(first.data(), bytes);
    EXPECT_TRUE(std::ranges::all_of(content, [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(content, std::byte{7});
    Buffer second(std::move(first));
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(third.data(), content.data()) << bytes;
    EXPECT_EQ(third.bytes(), bytes);
    EXPECT_TRUE(std::ranges::all_of(content, [](std::byte b) { return b == std::byte{7}; }));
  }
}

TEST(Shape, BroadcastsAsNumpyDoes) {
  EXPECT_EQ(broadcast({4, 1, 3}, {5, 1}), (Shape{4, 5, 3}));
  EXPECT_EQ(broadcast({}, {2}), Shape{2});
  EXPECT_EQ(broadcast({1}, {0}), Shape{0});
  EXPECT_THROW(broadcast({2, 3}, {2, 4}), Error);
}

TEST(TensorType, PaddedRowsBeginAtMultiples) {
  TensorType type{DType::kBFloat16, {2, 3, 13}};
  EXPECT_EQ(type.row_stride(), 13);
  EXPECT_EQ(type.bytes(), 2 * 3 * 13 * 2U);
  type.layout = Layout::kPaddedRows;
  EXPECT_EQ(type.row_stride(), 16);
  EXPECT_EQ(type.padded_rows(), 8);
  EXPECT_EQ(type.bytes(), 8 * 16 * 2U);
  EXPECT_EQ(type.count(), 2 * 3 * 13);
  type.shape = {16, 16};
  EXPECT_EQ(type.bytes(), 16 * 16 * 2U);
}

TEST(Half, KnownBits) {
  // IEEE 754 binary16: 1, -2, 65504 (largest), 2^-24 (smallest subnormal), 2^-14 (smallest normal).
  const std::pair<std::uint16_t, float> known[] = {{0x3c00, 1.0F},     {0xc000, -2.0F},
                                                   {0x7bff, 65504.0F}, {0x0001, 0x1p-24F},
                                                   {0x0400, 0x1p-14F}, {0x3555, 0.333251953125F}};
  for (const auto& [bits, value] : known) {
    EXPECT_EQ(half_to_float(bits), value);
    EXPECT_EQ(float_to_half(value), bits);
  }
  EXPECT_EQ(float_to_half(70000.0F), 0x7c00);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Half, EveryNumberSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (!std::isnan(value)) ASSERT_EQ(float_to_half(value), half) << bits;
    const float wide = bfloat16_to_float(half);
    if (!std::isnan(wide)) ASSERT_EQ(float_to_bfloat16(wide), half) << bits;
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(float_to_half(1.0F + 0x1p-11F), 0x3c00);      // half way, to even
  EXPECT_EQ(float_to_half(1.0F + 3 * 0x1p-11F), 0x3c02);  // half way, to even
  EXPECT_EQ(float_to_half(std::nextafter(1.0F + 0x1p-11F, 2.0F)), 0x3c01);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1p-8F), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0F + 3 * 0x1p-8F), 0x3f82);
}

TEST(HostTensor, ConvertsAndReshapes) {
  const std::int32_t values[] = {1, -2, 3, 4};
  const HostTensor tensor = HostTensor::of<std::int32_t>({2, 2}, values);
  EXPECT_EQ(tensor.to_doubles(), (std::vector<double>{1, -2, 3, 4}));
  EXPECT_EQ(tensor.reshaped({4}).span<std::int32_t>()[1], -2);
  EXPECT_THROW(tensor.reshaped({3}), Error);
  EXPECT_FALSE(static_cast<bool>(HostTensor()));
}

}  // namespace
}  // namespace pipetrain
