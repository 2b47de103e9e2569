#include "base/units.h"

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace pipetrain {
namespace {

std::string three_digits(double value, const char* unit) {
  if (value >= 1e6) return fmt::format("{:.3g} {}", value, unit);
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

}  // namespace

std::string bytes_text(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.7 would round to "1024", which is 1 of the next unit.
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return three_digits(value, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size >= 0.9995) return three_digits(seconds, "s");
  if (size >= 0.9995e-3) return three_digits(seconds * 1e3, "ms");
  if (size >= 0.9995e-6) return three_digits(seconds * 1e6, "us");
  return three_digits(seconds * 1e9, "ns");
}

}  // namespace pipetrain
