// The setting of normalization as text: how inputs are shifted and scaled.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/setting.h"
#include "data/binding/bind.h"

namespace pipetrain {

namespace {

constexpr double kMost = std::numeric_limits<float>::max();

bool is_divisor(double value) {
  return value >= std::numeric_limits<float>::min() && value <= kMost;
}

// "0.5,0.4" of --normalize.
std::vector<double> numbers_of(std::string_view text) {
  std::vector<double> out;
  while (!text.empty()) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return {};
    out.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && text.front() != ',') return {};
    if (!text.empty()) text.remove_prefix(1);
  }
  return out;
}

// max:{"age":90,"income":100000}
constexpr std::string_view kMaxOfInputs = "max:";

std::map<std::string, double> divisors_by_input(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text.substr(kMaxOfInputs.size()), nullptr,
                                                    /*allow_exceptions=*/false);
  bool is_good = json.is_object() && !json.empty();
  for (const nlohmann::json& value : json)
    is_good = is_good && value.is_number() && is_divisor(value.get<double>());
  PT_CHECK(is_good, kUsage, "{} takes the largest values of inputs as {}{{\"x\":10}}, not \"{}\"",
           setting("normalize"), kMaxOfInputs, printable(std::string(text)));
  return json.get<std::map<std::string, double>>();
}

std::string text_by_input(const std::map<std::string, double>& divisors) {
  const nlohmann::json json(divisors);
  return std::string(kMaxOfInputs) +
         json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// 0.5,0.5,0.5/0.2,0.2,0.2, of a training also with what values are divided by before: …:255
Normalization by_channel(std::string_view text) {
  const std::size_t bar = text.find('/');
  const std::size_t colon = text.find(':', bar);
  const std::string_view before = colon == std::string_view::npos ? "auto" : text.substr(colon + 1);
  const bool is_nested = before == "imagenet" || (!before.starts_with(kMaxOfInputs) &&
                                                  before.find('/') != std::string_view::npos);
  Normalization out;
  if (!is_nested) out = Normalization::parse(before);
  out.mean = numbers_of(text.substr(0, bar));
  out.deviation = numbers_of(text.substr(0, colon).substr(bar + 1));
  PT_CHECK(!is_nested && !out.mean.empty() && out.mean.size() == out.deviation.size() &&
               std::ranges::all_of(out.mean, [](double x) { return std::abs(x) <= kMost; }) &&
               std::ranges::all_of(out.deviation, is_divisor),
           kUsage, "{} takes means and deviations as 0.5,0.5,0.5/0.2,0.2,0.2, not \"{}\"",
           setting("normalize"), printable(std::string(text)));
  return out;
}

}  // namespace

Normalization Normalization::parse(std::string_view text) {
  if (text == "auto") return {Kind::kAuto, 1};
  if (text == "none") return {Kind::kNone, 1};
  if (text == "max") return {Kind::kMax, 1};
  if (text.starts_with(kMaxOfInputs)) return {Kind::kMax, 1, divisors_by_input(text)};
  // The training set's means and deviations as PyTorch's models know them.
  if (text == "imagenet") text = "0.485,0.456,0.406/0.229,0.224,0.225";
  if (text.find('/') != std::string_view::npos) return by_channel(text);
  double divisor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), divisor);
  PT_CHECK(error == std::errc() && end == text.data() + text.size() && is_divisor(divisor), kUsage,
           "{} takes auto, none, max, imagenet, means/deviations or a number to divide "
           "by, not \"{}\"",
           setting("normalize"), printable(text));
  return {Kind::kDivide, divisor};
}

std::string Normalization::text() const {
  const std::string scale = !of_training.empty()  ? text_by_input(of_training)
                            : kind == Kind::kAuto ? std::string("auto")
                            : kind == Kind::kNone ? "none"
                            : kind == Kind::kMax  ? "max"
                                                  : fmt::format("{}", divisor);
  if (mean.empty()) return scale;
  return fmt::format("{}/{}{}", fmt::join(mean, ","), fmt::join(deviation, ","),
                     kind == Kind::kAuto ? "" : ":" + scale);
}

}  // namespace pipetrain
