#include "data/binding/allowed_values.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {

Allowed allowed_in(const ModelInput& input) {
  if (input.upper_bound >= 0 && !is_float(input.dtype))
    return Allowed::whole(0, input.upper_bound - 1);
  return allowed_by_type(input.dtype);
}

Allowed allowed_in(const LabelSpec& label) {
  if (label.classes >= 0) {
    Allowed out = Allowed::whole(0, label.classes - 1);
    out.also = label.ignore_index;
    return out;
  }
  Allowed out = allowed_by_type(label.dtype);
  if (label.probability) {
    out.kind = Allowed::Kind::kUnit;
    out.largest = 1;
  }
  return out;
}

Allowed before_division(Allowed allowed, double divisor) {
  if (allowed.kind == Allowed::Kind::kUnit) {
    allowed.largest *= divisor;
  } else if (allowed.largest < std::numeric_limits<double>::max()) {
    allowed.largest *= std::min(1.0, divisor);
  }
  return allowed;
}

void check_filling(const ModelInput& input, Filling filling) {
  if (filling != Filling::kPositions || input.upper_bound < 0) return;
  const std::int64_t positions =
      input.sample_shape.rank() > 0 ? input.sample_shape.dims().back() : 1;
  PT_CHECK(positions <= input.upper_bound, kModel,
           "{} tokens are too many: \"{}\" has {} positions; shorten the samples ({} N cuts texts "
           "to so many tokens)",
           positions, printable(input.name), input.upper_bound, setting("text-length"));
}

}  // namespace pipetrain
