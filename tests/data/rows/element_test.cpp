#include "data/rows/element.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/data_files.h"

namespace pipetrain {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                            DType::kBool,    DType::kUint8,   DType::kInt8,    DType::kUint16,
                            DType::kInt16,   DType::kUint32,  DType::kInt32,   DType::kUint64,
                            DType::kInt64};

TEST(ConvertElements, BetweenAllTypes) {
  const double in[] = {0, 1, 1};
  for (const DType from : kTypes) {
    const HostTensor middle({from, {3}, {}});
    convert_elements(in, DType::kFloat64, middle.view().data, from, 3, 1);
    for (const DType to : kTypes) {
      const HostTensor out({to, {3}, {}});
      convert_elements(middle.view().data, from, out.view().data, to, 3, 1);
      EXPECT_EQ(out.to_doubles(), (std::vector<double>{0, 1, 1})) << name_of(from) << name_of(to);
    }
  }
}

TEST(ConvertElements, DividesOnlyIntoFloats) {
  const std::uint8_t in[] = {255, 51};
  float floats[2];
  convert_elements(in, DType::kUint8, floats, DType::kFloat32, 2, 255);
  EXPECT_EQ(floats[0], 1.0f);
  EXPECT_EQ(floats[1], 51.0f / 255.0f);
  std::int64_t whole[2];
  convert_elements(in, DType::kUint8, whole, DType::kInt64, 2, 255);
  EXPECT_EQ(whole[1], 51);
}

TEST(FindBadElements, GivesOneARowUpToTheMaximum) {
  const HostTensor values = HostTensor::of<double>({3, 2}, std::vector<double>{1, 5, 7, 8, 2, 9});
  const auto bad = find_bad_elements(values, 0, 2, Allowed::whole(0, 4), 10);
  ASSERT_EQ(bad.size(), 3u);
  EXPECT_EQ(bad[1].row, 1u);
  EXPECT_EQ(bad[1].value, "7");
  EXPECT_EQ(find_bad_elements(values, 0, 2, Allowed::whole(0, 4), 1).size(), 1u);
  EXPECT_EQ(find_bad_elements(values, 0, 1, Allowed::whole(0, 4), 10).size(), 1u);
}

TEST(FindBadElements, WholeNumbersAtTheEdges) {
  const auto bad = [](double value) {
    const HostTensor tensor = HostTensor::of<double>({1}, std::vector<double>{value});
    return !find_bad_elements(tensor, 0, 1, allowed_by_type(DType::kInt64), 1).empty();
  };
  EXPECT_FALSE(bad(-0x1p63));
  EXPECT_TRUE(bad(0x1p63));
  EXPECT_TRUE(bad(0.5));
  EXPECT_TRUE(bad(NAN));
  EXPECT_TRUE(bad(INFINITY));
}

TEST(FindBadElements, NumbersThatTheOtherTypeDoesNotHold) {
  const auto reason = [](double value, DType dtype) {
    const HostTensor tensor = HostTensor::of<double>({1}, std::vector<double>{value});
    const auto bad = find_bad_elements(tensor, 0, 1, allowed_by_type(dtype), 1);
    return bad.empty() ? "" : bad[0].reason;
  };
  EXPECT_EQ(reason(3.4e38, DType::kFloat32), "");
  EXPECT_EQ(reason(-3.5e38, DType::kFloat32), "too large");
  EXPECT_EQ(reason(1e308, DType::kFloat64), "");
  EXPECT_EQ(reason(65519, DType::kFloat16), "");
  EXPECT_EQ(reason(-65520, DType::kFloat16), "too large");
  EXPECT_EQ(reason(3.38e38, DType::kBFloat16), "");
  EXPECT_EQ(reason(3.4e38, DType::kBFloat16), "too large");
  EXPECT_EQ(reason(INFINITY, DType::kFloat32), "not finite");
}

TEST(AllowedByType, IsTheTypesRange) {
  EXPECT_EQ(allowed_by_type(DType::kInt8).low, -128);
  EXPECT_EQ(allowed_by_type(DType::kUint16).high, 65535);
  EXPECT_EQ(allowed_by_type(DType::kBool).high, 1);
  EXPECT_EQ(allowed_by_type(DType::kUint64).high, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(allowed_by_type(DType::kFloat16).kind, Allowed::Kind::kFinite);
}

TEST(RangeOf, PassesOverNan) {
  const float in[] = {NAN, 3, -1, NAN, 2};
  EXPECT_EQ(range_of(in, DType::kFloat32, 5).low, -1);
  EXPECT_EQ(range_of(in, DType::kFloat32, 5).high, 3);
  EXPECT_EQ(range_of(in, DType::kFloat32, 1).high, 0);
  EXPECT_EQ(range_of(in, DType::kFloat32, 0).high, 0);
}

}  // namespace
}  // namespace pipetrain
