#include "data/binding/input_scale.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/element.h"

namespace pipetrain {

namespace {

constexpr Allowed kFraction{.kind = Allowed::Kind::kUnit, .largest = 1};

}  // namespace

std::optional<double> divisor_in(const Normalization& how, const std::string& input) {
  if (how.of_training.empty()) return std::nullopt;
  const auto found = how.of_training.find(input);
  return found == how.of_training.end() ? 1 : found->second;
}

double divisor_of(const Normalization& how, const RawColumn& raw, const ArraySource& source,
                  std::optional<double> of_training,
                  const std::map<std::size_t, std::string>& bad_rows) {
  switch (how.kind) {
    case Normalization::Kind::kAuto:
      return of_training.value_or(raw.values.dtype() == DType::kUint8 ? 255 : 1);
    case Normalization::Kind::kNone:
      return 1;
    case Normalization::Kind::kDivide:
      return how.divisor;
    case Normalization::Kind::kMax:
      break;
  }
  if (of_training) return *of_training;
  double largest = 0;
  const std::size_t row_elements = static_cast<std::size_t>(raw.values.type().count()) / raw.rows();
  const auto* bytes = raw.values.view().as<std::byte>();
  const std::size_t size = size_of(raw.values.dtype());
  for (std::size_t row = 0; row < raw.rows(); ++row) {
    if (bad_rows.contains(row)) continue;
    const ValueRange range = range_of(bytes + (row * row_elements + source.first) * size,
                                      raw.values.dtype(), source.count);
    largest = std::max({largest, -range.low, range.high});
  }
  return largest > 0 ? largest : 1;
}

double divisor_of_rows(const Normalization& how, const RawColumn& raw,
                       std::optional<double> of_training) {
  const bool images = raw.dtype() == DType::kUint8;
  if (how.kind == Normalization::Kind::kDivide) return how.divisor;
  if (how.kind == Normalization::Kind::kNone) return 1;
  if (of_training) return *of_training;
  PT_CHECK(images || how.kind == Normalization::Kind::kAuto, kUsage,
           "{} max is not for sparse rows; divide by a number, or use none", setting("normalize"));
  return images ? 255 : 1;
}

void set_channels(const Normalization& how, PixelScale& scale, const ImageShape& image,
                  const std::string& name) {
  if (how.mean.empty()) return;
  PT_CHECK(how.mean.size() == 1 || how.mean.size() == image.channels, kUsage,
           "{} has {} means, and the images of input \"{}\" have {} channels", setting("normalize"),
           how.mean.size(), printable(name), image.channels);
  const auto spread = [&](const std::vector<double>& values) {
    return values.size() == 1 ? std::vector<double>(image.channels, values[0]) : values;
  };
  scale.mean = spread(how.mean);
  scale.deviation = spread(how.deviation);
}

std::string scale_text(const PixelScale& scale) {
  std::string out =
      scale.divisor == 1 ? ", not scaled" : fmt::format(", divided by {}", scale.divisor);
  if (scale.by_channel()) {
    out += fmt::format(", minus {}, divided by {}", fmt::join(scale.mean, " "),
                       fmt::join(scale.deviation, " "));
  }
  return out;
}

bool are_fractions(const ArraySource& source, const std::map<std::size_t, std::string>& bad_rows) {
  const std::vector<BadElement> others =
      find_bad_elements(source.values, source.first, source.count, kFraction, bad_rows.size() + 1);
  return std::ranges::all_of(others,
                             [&](const BadElement& each) { return bad_rows.contains(each.row); });
}

bool are_fractions(const RowSource& rows) {
  return rows.dtype() != DType::kUint8 && rows.find_bad_elements(kFraction, 1).empty();
}

std::string warning_about_scale(const std::string& input, const RawColumn& raw, double divisor,
                                bool fractions) {
  if (divisor < 255 || !fractions || !is_float(raw.dtype())) return {};
  return fmt::format(
      "the values of input \"{}\" lie in 0 … 1 and are divided by {}; if they have been divided "
      "before, give {} none",
      printable(input), divisor, setting("normalize"));
}

}  // namespace pipetrain
