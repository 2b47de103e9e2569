// Elements of any type: converted, and checked against what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

/// Writes out[i] = in[i] / divisor in another type; the divisor applies to float results only.
/// Numbers must fit (see find_bad_elements): an integer type does not hold 3.5 or nan.
void convert_elements(const void* in, DType from, void* out, DType to, std::size_t count,
                      double divisor);

/// What elements must be.
struct Allowed {
  enum class Kind { kFinite, kUnit, kWhole } kind = Kind::kFinite;
  double largest =
      std::numeric_limits<double>::max();  // kFinite: of either sign; kUnit: 0 … largest
  // kWhole: low … high, or `also`
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  std::optional<std::int64_t> also = {};

  static Allowed whole(std::int64_t low, std::int64_t high) {
    return {.kind = Kind::kWhole, .low = low, .high = high};
  }
};

struct BadElement {
  std::size_t row = 0;
  std::string value;
  std::string reason;  // "out of range 0..9", "not a whole number", "not finite", "too large"
};

/// Looks through elements [first, first + count) of every row of values (rows, row elements…);
/// gives at most one for each row, and at most `maximum`.
std::vector<BadElement> find_bad_elements(const HostTensor& values, std::size_t first,
                                          std::size_t count, const Allowed& allowed,
                                          std::size_t maximum);

/// The first of them that is not allowed.
std::optional<BadElement> find_bad_element(std::span<const float> values, const Allowed& allowed);

/// What a type holds: the range of whole numbers of an integer type or bool, and the finite numbers
/// of a float type.
Allowed allowed_by_type(DType dtype);

struct ValueRange {
  double low = 0;
  double high = 0;
};
/// Smallest and largest of `count` elements; nan is passed over. 0 … 0 if there is none.
ValueRange range_of(const void* in, DType dtype, std::size_t count);

}  // namespace pipetrain
