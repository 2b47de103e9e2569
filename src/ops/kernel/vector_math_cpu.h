// exp, log, tanh, erf, sin, cos and their relatives in float without branches, so that a loop over
// them becomes vector code.
//
// Each is within 2-3 ulp of the exact value; infinities, NaN and subnormal results are those of the
// C library (sin and cos: for arguments up to kMostRadians). Include it from *_cpu.cpp files only:
// those are compiled for a vector unit.
#pragma once

#include <bit>
#include <cstdint>

namespace pipetrain::vector_math {

/// 2^n for n in [-126, 127].
[[gnu::always_inline]] inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>((n + 127) << 23);
}

[[gnu::always_inline]] inline float absolute(float x) {
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(x) & 0x7fffffff);
}

/// The magnitude of `x` with the sign of `sign`.
[[gnu::always_inline]] inline float copy_sign(float x, float sign) {
  const std::int32_t magnitude = std::bit_cast<std::int32_t>(x) & 0x7fffffff;
  const std::int32_t mask =
      std::bit_cast<std::int32_t>(sign) & static_cast<std::int32_t>(0x80000000);
  return std::bit_cast<float>(magnitude | mask);
}

/// e^x = 2^n e^r with |r| <= ln(2) / 2; the polynomial is minimax there. NaN stays NaN.
[[gnu::always_inline]] inline float exp(float x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = x * 1.44269504f + kMagic;
  const float whole = shifted - kMagic;
  const std::int32_t n = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kMagic);
  const float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  float p = 0.001381432f;
  p = p * r + 0.008368851f;
  p = p * r + 0.0416684f;
  p = p * r + 0.1666652f;
  p = p * r + 0.49999994f;
  p = (p * r) * r + r;
  // Two factors: 2^128 and the subnormal powers do not fit one float.
  const std::int32_t half = n >> 1;
  return (p + 1.0f) * power_of_two(half) * power_of_two(n - half);
}

/// e^x for x <= 0 (softmax, cross-entropy), rounding errors above 0 included: 0 below e^-87. Fewer
/// steps than exp().
[[gnu::always_inline]] inline float exp_nonpositive(float x) {
  constexpr float kMagic = 12582912.0f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + kMagic;
  const float whole = shifted - kMagic;
  const std::int32_t n = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kMagic);
  const float r = (clamped - whole * 0.693145752f) - whole * 1.42860677e-6f;
  float p = 0.001381432f;
  p = p * r + 0.008368851f;
  p = p * r + 0.0416684f;
  p = p * r + 0.1666652f;
  p = p * r + 0.49999994f;
  p = (p * r) * r + r;
  const float scaled = (p + 1.0f) * power_of_two(n);
  return x < -87.0f ? 0.0f : scaled;
}

/// ln x = e ln 2 + ln m with m in [2/3, 4/3).
[[gnu::always_inline]] inline float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;
  // Unsigned, because the difference of a negative number's bits wraps around.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  const std::int32_t exponent = static_cast<std::int32_t>(bits - 0x3f2aaaabU) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(exponent) << 23));
  const float e = static_cast<float>(exponent) - (subnormal ? 23.0f : 0.0f);
  const float f = m - 1.0f;
  float p = -0.1296064f;
  p = p * f + 0.14052065f;
  p = p * f - 0.121698774f;
  p = p * f + 0.13993241f;
  p = p * f - 0.16681415f;
  p = p * f + 0.20011099f;
  p = p * f - 0.2499978f;
  p = p * f + 0.33333206f;
  const float square = f * f;
  float y = (p * f) * square + e * 1.42860677e-6f;
  y = y - 0.5f * square;
  y = (y + f) + e * 0.693145752f;
  // x + x keeps +inf and NaN; 0 and negative values are special cases.
  constexpr float kInfinity = __builtin_inff();
  y = x < kInfinity ? y : x + x;
  y = x > 0.0f ? y : (x < 0.0f ? __builtin_nanf("") : (x == 0.0f ? -kInfinity : y));
  return y;
}

/// ln(1 + x) for x > -1, accurate to a few ulp for small x.
[[gnu::always_inline]] inline float log1p(float x) {
  const float w = 1.0f + x;
  const float lost = x - (w - 1.0f);  // rounding error of 1 + x
  const float y = log(w) + lost / w;
  return w < __builtin_inff() ? y : w;
}

/// tanh: a polynomial near 0, 1 - 2 / (e^2|x| + 1) elsewhere.
[[gnu::always_inline]] inline float tanh(float x) {
  const float z = x * x;
  float p = -0.005681288f;
  p = p * z + 0.020618629f;
  p = p * z - 0.0537337f;
  p = p * z + 0.13331373f;
  p = p * z - 0.3333328f;
  const float near = (p * z) * x + x;
  const float t = absolute(x);
  const float bounded = t > 10.0f ? 10.0f : t;
  const float far = 1.0f - 2.0f / (exp(2.0f * bounded) + 1.0f);
  return t < 0.625f ? near : copy_sign(far, x);
}

/// 1 / (1 + e^-x)
[[gnu::always_inline]] inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

/// ln(1 + e^x) without overflow.
[[gnu::always_inline]] inline float softplus(float x) {
  const float positive = x > 0.0f ? x : 0.0f;
  return positive + log1p(exp(-absolute(x))) + (x - x);  // x - x carries NaN
}

/// erf: a polynomial near 0, 1 - e^-p(|x|) elsewhere.
[[gnu::always_inline]] inline float erf(float x) {
  const float z = x * x;
  float p = 8.286287e-05f;
  p = p * z - 0.0008122655f;
  p = p * z + 0.005199245f;
  p = p * z - 0.026858669f;
  p = p * z + 0.11283682f;
  p = p * z - 0.37612632f;
  p = p * z + 0.12837917f;
  const float near = p * x + x;
  const float t = absolute(x);
  const float bounded = t > 4.0f ? 4.0f : t;
  float q = -0.00019593725f;
  q = q * bounded + 0.0030432174f;
  q = q * bounded - 0.02222692f;
  q = q * bounded + 0.1039316f;
  q = q * bounded + 0.63718224f;
  q = q * bounded + 1.1276757f;
  q = q * bounded + 0.00019567557f;
  const float far = 1.0f - exp(-q);
  return t < 0.92f ? near : copy_sign(far, x);
}

/// Up to this magnitude, circular() is accurate.
constexpr float kMostRadians = 8192.0f;

/// sin(x + kTurns π/2). Multiples of π/2 are subtracted in four parts (Cody and Waite, 1980), so
/// that the products with the first three are exact; the polynomials are those of sine and cosine
/// up to π/4.
template <int kTurns>
[[gnu::always_inline]] inline float circular(float x) {
  constexpr float kMagic = 12582912.0f;  // as in exp()
  const float shifted = x * 0.636619772f + kMagic;
  const std::uint32_t turns = std::bit_cast<std::uint32_t>(shifted) + kTurns;
  const float n = shifted - kMagic;
  float r = x - n * 1.5703125f;
  r -= n * 0x1.fb4p-12f;
  r -= n * 0x1.444p-24f;
  r -= n * 0x1.68c234p-39f;
  const float z = r * r;
  float p = -1.9515295891e-4f;
  p = p * z + 8.3321608736e-3f;
  p = p * z - 1.6666654611e-1f;
  const float sine = copy_sign(p * (z * r) + r, r);  // -0 stays -0
  float q = 2.443315711809948e-5f;
  q = q * z - 1.388731625493765e-3f;
  q = q * z + 4.166664568298827e-2f;
  const float cosine = q * (z * z) + (1.0f - 0.5f * z);
  const float value = (turns & 1) != 0 ? cosine : sine;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ ((turns & 2) << 30));
}
[[gnu::always_inline]] inline float sin(float x) { return circular<0>(x); }
[[gnu::always_inline]] inline float cos(float x) { return circular<1>(x); }

}  // namespace pipetrain::vector_math
