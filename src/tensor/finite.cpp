#include "tensor/finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace pipetrain {
namespace {

/// Calls `body(bits, exponent)` with the elements as integers and the exponent that no finite
/// number has; not for types that have no such exponent.
template <class Body>
void with_bits(const Tensor& tensor, const Body& body) {
  switch (tensor.type.dtype) {
    case DType::kFloat32:
      return body(tensor.span<const std::uint32_t>(), std::uint32_t{0x7f800000});
    case DType::kFloat64:
      return body(tensor.span<const std::uint64_t>(), std::uint64_t{0x7ff0000000000000});
    case DType::kFloat16:
      return body(tensor.span<const std::uint16_t>(), std::uint16_t{0x7c00});
    case DType::kBFloat16:
      return body(tensor.span<const std::uint16_t>(), std::uint16_t{0x7f80});
    default:
      return;
  }
}

/// Without a branch and in vectors: pipelines look at all that they send.
template <class Bits>
bool has_exponent(std::span<const Bits> bits, Bits exponent) {
  const Bits* __restrict values = bits.data();
  const std::size_t count = bits.size();
  Bits found = 0;
#pragma omp simd reduction(| : found)
  for (std::size_t i = 0; i < count; ++i)
    found |= static_cast<Bits>((values[i] & exponent) == exponent ? 1 : 0);
  return found != 0;
}

}  // namespace

bool all_finite(const Tensor& tensor) {
  bool found = false;
  with_bits(tensor, [&](auto bits, auto exponent) {
    constexpr std::size_t kBlock = 4096;
    for (std::size_t begin = 0; begin < bits.size() && !found; begin += kBlock)
      found = has_exponent(bits.subspan(begin, std::min(kBlock, bits.size() - begin)), exponent);
  });
  return !found;
}

bool edges_finite(const Tensor& tensor) {
  const Shape& shape = tensor.type.shape;
  if (shape.rank() < 2) return all_finite(tensor);
  const auto width = static_cast<std::size_t>(shape.count(1, shape.rank()));
  bool found = false;
  with_bits(tensor, [&](auto bits, auto exponent) {
    found = has_exponent(bits.first(std::min(width, bits.size())), exponent);
    for (std::size_t i = 0; i < bits.size(); i += width)  // none where the width is 0
      found |= (bits[i] & exponent) == exponent;
  });
  return !found;
}

FirstNonfinite first_nonfinite(const Tensor& tensor) {
  FirstNonfinite first;
  if (all_finite(tensor)) return first;
  with_bits(tensor, [&](auto bits, auto exponent) {
    const auto fraction = exponent & (~exponent + 1U);  // its lowest bit is above the fraction
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if ((bits[i] & exponent) != exponent) continue;
      first.is_nan = (bits[i] & (fraction - 1U)) != 0;
      if (first.index < 0 || first.is_nan) first.index = static_cast<std::int64_t>(i);
      if (first.is_nan) return;
    }
  });
  return first;
}

float double_to_float(double x) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(x) ? std::clamp(x, -kMost, kMost) : x);
}

}  // namespace pipetrain
