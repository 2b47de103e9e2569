// Division of an index by a number that is known at launch (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace pipetrain {

/// Whether indices below `count` may be 32-bit dividends.
inline bool divides_quickly(std::int64_t count) { return count < std::int64_t{1} << 31; }

/// Divides 32-bit dividends by one multiplication and a shift, 64-bit ones by a division. Dividends
/// are not negative, the divisor is positive.
struct Divider {
  std::int64_t divisor = 1;
  std::uint32_t factor = 0;
  std::uint32_t shift = 0;

  Divider() = default;
  explicit Divider(std::int64_t by) : divisor(by) {
    // (n + n * factor / 2^32) / 2^shift with 2^shift >= divisor: exact for n < 2^31 (Granlund and
    // Montgomery, "Division by invariant integers using multiplication").
    while (shift < 31 && std::int64_t{1} << shift < by) ++shift;
    if (std::int64_t{1} << shift < by) return;  // every n < 2^31 gives 0
    const auto power = std::uint64_t{1} << shift;
    const auto d = static_cast<std::uint64_t>(by);
    factor = static_cast<std::uint32_t>(((power - d) << 32) / d + 1);
  }

  /// n < 2^31
  PT_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    return (static_cast<std::uint32_t>(std::uint64_t{n} * factor >> 32) + n) >> shift;
  }
  PT_HOST_DEVICE std::int64_t quotient(std::int64_t n) const { return n / divisor; }

  /// n - quotient * divisor
  PT_HOST_DEVICE std::uint32_t rest(std::uint32_t n, std::uint32_t quotient) const {
    return n - quotient * static_cast<std::uint32_t>(divisor);
  }
  PT_HOST_DEVICE std::int64_t rest(std::int64_t n, std::int64_t quotient) const {
    return n - quotient * divisor;
  }
};

}  // namespace pipetrain
