#include "tensor/distinct_constants.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace pipetrain {
namespace {

/// 40000 bytes of ones, of which one has another value.
HostTensor ones(std::int64_t changed, float value = 2) {
  std::vector<float> values(10000, 1);
  values[static_cast<std::size_t>(changed)] = value;
  return HostTensor::of<float>({10000}, values);
}

TEST(DistinctConstants, TellsConstantsApartByAllTheirBytes) {
  const HostTensor first = ones(0), last = ones(9999), other = ones(9999, 3);
  const HostTensor shorter = HostTensor::of<float>({9999}, first.span<const float>().first(9999));
  const std::vector<HostTensor> constants = {first, last, other, shorter};
  DistinctConstants distinct;
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const DistinctConstants::Found found = distinct.add(constants[i]);
    EXPECT_EQ(found.index, i);
    EXPECT_TRUE(found.added) << i;
  }
  const std::vector<HostTensor> equal = {ones(0), ones(9999), ones(9999, 3),
                                         shorter.reshaped({99, 101})};
  for (std::size_t i = 0; i < equal.size(); ++i) {
    const DistinctConstants::Found found = distinct.add(equal[i]);
    EXPECT_EQ(found.index, i);
    EXPECT_FALSE(found.added) << i;
  }
}

TEST(DistinctConstants, TakesThoseWithoutBytes) {
  const HostTensor none(TensorType{DType::kFloat32, {0}}), also(TensorType{DType::kInt64, {3, 0}});
  DistinctConstants distinct;
  EXPECT_TRUE(distinct.add(none).added);
  EXPECT_FALSE(distinct.add(also).added);
}

}  // namespace
}  // namespace pipetrain
