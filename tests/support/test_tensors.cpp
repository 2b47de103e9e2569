#include "support/test_tensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

namespace pipetrain::test {

HostTensor from_doubles(const TensorType& type, std::span<const double> values) {
  HostTensor out(type);
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i)
      out.view().as<T>()[i] = static_cast<T>(values[i]);
  };
  switch (type.dtype) {
    case DType::kFloat32:
      fill(float{});
      break;
    case DType::kFloat64:
      fill(double{});
      break;
    case DType::kBFloat16:
      for (std::size_t i = 0; i < values.size(); ++i)
        out.view().as<std::uint16_t>()[i] = float_to_bfloat16(static_cast<float>(values[i]));
      break;
    case DType::kInt64:
      fill(std::int64_t{});
      break;
    case DType::kInt32:
      fill(std::int32_t{});
      break;
    case DType::kInt8:
      fill(std::int8_t{});
      break;
    case DType::kUint8:
    case DType::kBool:
      fill(std::uint8_t{});
      break;
    default:
      PT_FAIL(kInternal, "no test tensors of {}", name_of(type.dtype));
  }
  return out;
}

HostTensor floats(Shape shape, std::vector<float> values) {
  return HostTensor::of<float>(std::move(shape), std::span<const float>(values));
}
HostTensor doubles(Shape shape, std::vector<double> values) {
  return HostTensor::of<double>(std::move(shape), std::span<const double>(values));
}
HostTensor int64s(Shape shape, std::vector<std::int64_t> values) {
  return HostTensor::of<std::int64_t>(std::move(shape), std::span<const std::int64_t>(values));
}
HostTensor int32s(Shape shape, std::vector<std::int32_t> values) {
  return HostTensor::of<std::int32_t>(std::move(shape), std::span<const std::int32_t>(values));
}
HostTensor bools(Shape shape, std::vector<int> values) {
  const std::vector<double> numbers(values.begin(), values.end());
  return from_doubles({DType::kBool, std::move(shape)}, numbers);
}

HostTensor random_tensor(const TensorType& type, std::uint64_t seed, double low, double high) {
  Uniform uniform(seed);
  std::vector<double> values(static_cast<std::size_t>(type.count()));
  for (double& value : values) {
    value = uniform.next(low, high);
    if (!is_float(type.dtype)) value = std::floor(value);
  }
  return from_doubles(type, values);
}

HostTensor as_float(const HostTensor& tensor, DType dtype) {
  if (!tensor || !is_float(tensor.dtype()) || tensor.dtype() == dtype) return tensor;
  return from_doubles({dtype, tensor.shape(), tensor.type().layout}, tensor.to_doubles());
}

double rms_of(const std::vector<double>& values) {
  double squares = 0;
  std::size_t finite = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  return finite ? std::sqrt(squares / static_cast<double>(finite)) : 0;
}

void expect_within(const HostTensor& actual, const HostTensor& expected, double tolerance,
                   const std::vector<double>& scale, std::string_view what) {
  constexpr double kSmallestNormal = 0x1p-126;
  ASSERT_TRUE(actual && expected) << what << ": a tensor is absent";
  ASSERT_EQ(actual.type().text(), expected.type().text()) << what;
  const std::vector<double> a = actual.to_doubles();
  const std::vector<double> e = expected.to_doubles();
  std::size_t wrong = 0;
  double worst = 0;
  std::string first;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same_special = (std::isnan(a[i]) && std::isnan(e[i])) || a[i] == e[i];
    const double error = std::fabs(a[i] - e[i]), size = std::fabs(e[i]) + scale[i];
    const bool finite = std::isfinite(a[i]) && std::isfinite(e[i]);
    if (same_special || (finite && error <= tolerance * size + kSmallestNormal)) continue;
    worst = std::max(worst, error / size);
    if (wrong++ == 0) first = fmt::format("element {}: {} instead of {}", i, a[i], e[i]);
  }
  EXPECT_EQ(wrong, 0U) << what << ": of " << a.size() << " elements wrong; " << first
                       << "; off by up to " << worst << " of the size, " << tolerance
                       << " is allowed";
}

void expect_close(const HostTensor& actual, const HostTensor& expected, double tolerance,
                  std::string_view what) {
  ASSERT_TRUE(static_cast<bool>(expected)) << what << ": a tensor is absent";
  const std::vector<double> values = expected.to_doubles();
  expect_within(actual, expected, tolerance, std::vector<double>(values.size(), rms_of(values)),
                what);
}

void expect_values(const HostTensor& actual, const Shape& shape, const std::vector<double>& values,
                   double tolerance) {
  ASSERT_TRUE(static_cast<bool>(actual));
  ASSERT_EQ(actual.shape().text(), shape.text());
  const std::vector<double> a = actual.to_doubles();
  ASSERT_EQ(a.size(), values.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(a[i])) << "element " << i << ": " << a[i];
    } else if (std::isinf(values[i])) {
      EXPECT_EQ(a[i], values[i]) << "element " << i;
    } else if (a[i] != values[i]) {
      EXPECT_NEAR(a[i], values[i], tolerance * (1 + std::fabs(values[i]))) << "element " << i;
    }
  }
}

void expect_same_bits(const HostTensor& actual, const HostTensor& expected, std::string_view what) {
  ASSERT_EQ(static_cast<bool>(actual), static_cast<bool>(expected)) << what;
  if (!actual) return;
  ASSERT_EQ(actual.type().text(), expected.type().text()) << what;
  EXPECT_EQ(std::memcmp(actual.view().data, expected.view().data, actual.type().bytes()), 0)
      << what << ": bits differ";
}

void expect_error(ErrorKind kind, std::string_view text, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << text << "\"";
}

}  // namespace pipetrain::test
