#include "data/rows/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace pipetrain {

namespace {

// Types that C++ has no name for, so that they can be told apart as template arguments.
struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t byte;
};

template <class T>
auto load(T value) {
  return value;
}
float load(Half value) { return half_to_float(value.bits); }
float load(BFloat16 value) { return bfloat16_to_float(value.bits); }
std::uint8_t load(Bool value) { return value.byte != 0; }

template <class T>
constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class To, class From>
To store(From value) {
  if constexpr (std::is_same_v<To, Half>) {
    return {float_to_half(static_cast<float>(value))};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return {float_to_bfloat16(static_cast<float>(value))};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {static_cast<std::uint8_t>(value != 0)};
  } else {
    return static_cast<To>(value);
  }
}

// Calls body with a value of the C++ type of dtype.
template <class Body>
decltype(auto) visit(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
    case DType::kFloat16:
      return body(Half{});
    case DType::kBFloat16:
      return body(BFloat16{});
    case DType::kBool:
      return body(Bool{});
    case DType::kUint8:
      return body(std::uint8_t{});
    case DType::kInt8:
      return body(std::int8_t{});
    case DType::kUint16:
      return body(std::uint16_t{});
    case DType::kInt16:
      return body(std::int16_t{});
    case DType::kUint32:
      return body(std::uint32_t{});
    case DType::kInt32:
      return body(std::int32_t{});
    case DType::kUint64:
      return body(std::uint64_t{});
    case DType::kInt64:
      return body(std::int64_t{});
    case DType::kUndefined:
      break;
  }
  PT_FAIL(kInternal, "data of no type");
}

template <class From, class To>
void convert(const From* in, To* out, std::size_t count, double divisor) {
  if constexpr (kIsFloat<To>) {
    if (divisor != 1) {
      // Divided in the result's precision, as NumPy does it.
      using Wide = std::conditional_t<std::is_same_v<To, double>, double, float>;
      const auto by = static_cast<Wide>(divisor);
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = store<To>(static_cast<Wide>(load(in[i])) / by);
      }
      return;
    }
  }
  for (std::size_t i = 0; i < count; ++i) out[i] = store<To>(load(in[i]));
}

template <class T>
bool is_finite(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value);
  } else {
    return true;
  }
}

// The element as a whole number, if it is one that int64 holds.
template <class T>
std::optional<std::int64_t> whole(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    // The bounds of int64 as floats; the upper one is excluded.
    if (!(value >= T(-0x1p63) && value < T(0x1p63))) return std::nullopt;
    const auto out = static_cast<std::int64_t>(value);
    if (static_cast<T>(out) != value) return std::nullopt;
    return out;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return std::nullopt;
    return static_cast<std::int64_t>(value);
  } else {
    return value;
  }
}

// The largest number in the elements' own precision: 0.3f is 0.3, though a little more.
template <class T>
T largest_of(const Allowed& allowed) {
  constexpr double kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::min(allowed.largest, kMost));
}

template <class T>
bool is_allowed(T value, const Allowed& allowed) {
  switch (allowed.kind) {
    case Allowed::Kind::kFinite:
      if constexpr (std::is_floating_point_v<T>) return std::abs(value) <= largest_of<T>(allowed);
      return true;
    case Allowed::Kind::kUnit:
      if constexpr (std::is_floating_point_v<T>)
        return value >= T(0) && value <= largest_of<T>(allowed);
      return value >= T(0) && static_cast<double>(value) <= allowed.largest;
    case Allowed::Kind::kWhole:
      break;
  }
  const std::optional<std::int64_t> number = whole(value);
  return number && ((*number >= allowed.low && *number <= allowed.high) || allowed.also == number);
}

template <class T>
std::string reason_against(T value, const Allowed& allowed) {
  if (!is_finite(value)) return "not finite";
  if (allowed.kind == Allowed::Kind::kFinite) return "too large";
  if (allowed.kind == Allowed::Kind::kUnit)
    return fmt::format("out of range 0..{}", allowed.largest);
  if constexpr (std::is_floating_point_v<T>) {
    if (std::nearbyint(value) != value) return "not a whole number";
  }
  return fmt::format("out of range {}..{}", allowed.low, allowed.high);
}

}  // namespace

void convert_elements(const void* in, DType from, void* out, DType to, std::size_t count,
                      double divisor) {
  if (from == to && (divisor == 1 || !is_float(to))) {
    if (count) std::memcpy(out, in, count * size_of(to));
    return;
  }
  visit(from, [&]<class From>(From) {
    visit(to, [&]<class To>(To) {
      convert(static_cast<const From*>(in), static_cast<To*>(out), count, divisor);
    });
  });
}

std::vector<BadElement> find_bad_elements(const HostTensor& values, std::size_t first,
                                          std::size_t count, const Allowed& allowed,
                                          std::size_t maximum) {
  std::vector<BadElement> out;
  const auto rows = static_cast<std::size_t>(values.shape()[0]);
  if (rows == 0) return out;
  const std::size_t row_elements = static_cast<std::size_t>(values.type().count()) / rows;
  if (allowed.kind == Allowed::Kind::kFinite && !is_float(values.dtype())) return out;
  visit(values.dtype(), [&]<class T>(T) {
    const T* elements = values.view().as<T>();
    for (std::size_t row = 0; row < rows && out.size() < maximum; ++row) {
      const T* at = elements + row * row_elements + first;
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = load(at[i]);
        if (is_allowed(value, allowed)) continue;
        out.push_back({row, fmt::format("{}", value), reason_against(value, allowed)});
        break;
      }
    }
  });
  return out;
}

std::optional<BadElement> find_bad_element(std::span<const float> values, const Allowed& allowed) {
  const auto bad =
      std::ranges::find_if(values, [&](float value) { return !is_allowed(value, allowed); });
  if (bad == values.end()) return std::nullopt;
  return BadElement{0, fmt::format("{}", *bad), reason_against(*bad, allowed)};
}

Allowed allowed_by_type(DType dtype) {
  if (dtype == DType::kFloat32) return {.largest = std::numeric_limits<float>::max()};
  // What rounds to the largest number.
  if (dtype == DType::kFloat16) return {.largest = 65519};
  if (dtype == DType::kBFloat16) return {.largest = 0x1.fefffep127};
  if (is_float(dtype)) return {};
  if (dtype == DType::kBool) return Allowed::whole(0, 1);
  return visit(dtype, []<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      constexpr std::uint64_t kHigh = std::numeric_limits<T>::max();
      constexpr std::uint64_t kHighest = std::numeric_limits<std::int64_t>::max();
      return Allowed::whole(static_cast<std::int64_t>(std::numeric_limits<T>::min()),
                            static_cast<std::int64_t>(std::min(kHigh, kHighest)));
    } else {
      return Allowed{};
    }
  });
}

ValueRange range_of(const void* in, DType dtype, std::size_t count) {
  if (count == 0) return {};
  return visit(dtype, [&]<class T>(T) -> ValueRange {
    const T* elements = static_cast<const T*>(in);
    auto low = load(elements[0]), high = low;
    for (std::size_t i = 1; i < count; ++i) {
      const auto value = load(elements[i]);
      // A nan at the front gives way to the first number; elsewhere it loses every comparison.
      low = value < low || low != low ? value : low;
      high = value > high || high != high ? value : high;
    }
    if (low != low) return {};
    return {static_cast<double>(low), static_cast<double>(high)};
  });
}

}  // namespace pipetrain
