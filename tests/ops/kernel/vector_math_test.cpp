// Accuracy of the vector functions over a sample of all float bit patterns, against the C library
// in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/kernel/vector_math_cpu.h"

namespace pipetrain {
namespace {

struct Accuracy {
  double units = 0;  // largest error in ulp for normal results
  float at = 0;
  std::int64_t special = 0;  // results with an unexpected infinity or NaN
};

template <class F, class G>
Accuracy measure(F computed, G exact, float low, float high) {
  Accuracy out;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isnan(x) && (x < low || x > high)) continue;
    const float y = computed(x);
    const double truth = exact(static_cast<double>(x));
    const float rounded = static_cast<float>(truth);
    if (std::isnan(rounded) || std::isinf(rounded) || std::isnan(y) || std::isinf(y)) {
      if (!(std::isnan(rounded) && std::isnan(y)) && rounded != y) ++out.special;
      continue;
    }
    if (std::abs(truth) < std::numeric_limits<float>::min()) {
      if (std::abs(y) > 2 * std::numeric_limits<float>::min()) ++out.special;
      continue;
    }
    int exponent = 0;
    std::frexp(truth, &exponent);
    const double units = std::abs(y - truth) / std::ldexp(1.0, exponent - 24);
    if (units > out.units) out = {units, x, out.special};
  }
  return out;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class F, class G>
void expect_accurate(const char* name, F computed, G exact, float low = -kInfinity,
                     float high = kInfinity) {
  const Accuracy accuracy = measure(computed, exact, low, high);
  EXPECT_LE(accuracy.units, 3.0) << name << " at " << accuracy.at;
  EXPECT_EQ(accuracy.special, 0) << name;
}

TEST(VectorMath, WithinThreeUnitsEverywhere) {
  namespace math = vector_math;
  const auto e = [](double x) { return std::exp(x); };
  expect_accurate(
      "exp", [](float x) { return math::exp(x); }, e);
  expect_accurate(
      "exp_nonpositive", [](float x) { return math::exp_nonpositive(x); }, e, -87, 0);
  expect_accurate(
      "log", [](float x) { return math::log(x); }, [](double x) { return std::log(x); });
  expect_accurate(
      "log1p", [](float x) { return math::log1p(x); }, [](double x) { return std::log1p(x); });
  expect_accurate(
      "tanh", [](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); });
  expect_accurate(
      "sigmoid", [](float x) { return math::sigmoid(x); },
      [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, -87);
  expect_accurate(
      "softplus", [](float x) { return math::softplus(x); },
      [](double x) { return x > 50 ? x : std::log1p(std::exp(x)); });
  expect_accurate(
      "erf", [](float x) { return math::erf(x); }, [](double x) { return std::erf(x); });
  expect_accurate(
      "sin", [](float x) { return math::sin(x); }, [](double x) { return std::sin(x); },
      -math::kMostRadians, math::kMostRadians);
  expect_accurate(
      "cos", [](float x) { return math::cos(x); }, [](double x) { return std::cos(x); },
      -math::kMostRadians, math::kMostRadians);
}

// Near multiples of π, where most digits cancel.
TEST(VectorMath, SinesNearTheirZeros) {
  for (int n = -2600; n <= 2600; ++n) {
    const auto x = static_cast<float>(n * 3.14159265358979323846);
    const double exact = std::sin(static_cast<double>(x));
    EXPECT_NEAR(vector_math::sin(x), exact, 3e-7 * std::abs(exact)) << x;
    const auto between = static_cast<float>((n + 0.5) * 3.14159265358979323846);
    const double zero = std::cos(static_cast<double>(between));
    EXPECT_NEAR(vector_math::cos(between), zero, 3e-7 * std::abs(zero)) << between;
  }
}

TEST(VectorMath, FarTails) {
  EXPECT_EQ(vector_math::exp_nonpositive(-kInfinity), 0.0f);
  EXPECT_EQ(vector_math::exp_nonpositive(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(vector_math::exp_nonpositive(std::nanf(""))));
  EXPECT_EQ(vector_math::exp(1e30f), kInfinity);
  EXPECT_EQ(vector_math::exp(-1e30f), 0.0f);
  EXPECT_EQ(vector_math::tanh(-kInfinity), -1.0f);
  EXPECT_EQ(vector_math::erf(kInfinity), 1.0f);
  EXPECT_EQ(vector_math::sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(vector_math::log(0.0f), -kInfinity);
}

}  // namespace
}  // namespace pipetrain
