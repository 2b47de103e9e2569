// Tensors of the tests of operators, and how they are compared: made of numbers written in a test
// or drawn from a seed, so that a failure repeats.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace pipetrain::test {

/// splitmix64: the same numbers with every standard library.
class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : state_(seed) {}
  double next(double low, double high) {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    z ^= z >> 31;
    return low + (high - low) * static_cast<double>(z >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_;
};

/// Writes numbers into a tensor of any type but float16.
HostTensor from_doubles(const TensorType& type, std::span<const double> values);

HostTensor floats(Shape shape, std::vector<float> values);
HostTensor doubles(Shape shape, std::vector<double> values);
HostTensor int64s(Shape shape, std::vector<std::int64_t> values);
HostTensor int32s(Shape shape, std::vector<std::int32_t> values);
HostTensor bools(Shape shape, std::vector<int> values);
/// Uniform in [low, high); integers and bool are rounded down.
HostTensor random_tensor(const TensorType& type, std::uint64_t seed, double low = -1,
                         double high = 1);
/// The same numbers in another float type; other types are returned as they are.
HostTensor as_float(const HostTensor& tensor, DType dtype);

/// The root mean square of the finite values.
double rms_of(const std::vector<double>& values);

/// |actual - expected| <= tolerance * (|expected| + scale), element by element; what is smaller
/// than the smallest normal float may become zero.
void expect_within(const HostTensor& actual, const HostTensor& expected, double tolerance,
                   const std::vector<double>& scale, std::string_view what);
/// |actual - expected| <= tolerance * (|expected| + rms(expected)), element by element; NaN equals
/// NaN, and infinities must agree. Shape and dtype must be equal.
void expect_close(const HostTensor& actual, const HostTensor& expected, double tolerance,
                  std::string_view what = "");
/// The same against numbers written in a test.
void expect_values(const HostTensor& actual, const Shape& shape, const std::vector<double>& values,
                   double tolerance = 1e-6);
void expect_same_bits(const HostTensor& actual, const HostTensor& expected,
                      std::string_view what = "");
/// `body` must throw an Error of this kind whose text contains `text`.
void expect_error(ErrorKind kind, std::string_view text, const std::function<void()>& body);

}  // namespace pipetrain::test
