#include "data/binding/lacking_classes.h"

#include <fmt/format.h>

#include <charconv>
#include <map>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {
namespace {

// A number that stands for a class has at least one in so many samples.
constexpr std::size_t kRareClass = 100;

}  // namespace

void refuse_lacking_classes(const std::optional<LabelSpec>& label, const RawColumn& raw,
                            const std::vector<BadElement>& bad, const std::string& place) {
  if (!label || label->classes < 0) return;
  std::map<std::int64_t, std::size_t> count;
  for (const BadElement& element : bad) {
    std::int64_t number = 0;
    const char* end = element.value.data() + element.value.size();
    const auto [parsed, error] = std::from_chars(element.value.data(), end, number);
    if (error == std::errc() && parsed == end && number >= 0) ++count[number];
  }
  std::vector<std::int64_t> classes;
  std::size_t samples = 0;
  for (const auto& [number, times] : count) {
    const bool is_next = number == label->classes + std::ssize(classes);
    const bool is_number = times >= 2 && (is_next || times * kRareClass >= raw.rows());
    if (raw.class_names.empty() && !is_number) continue;
    classes.push_back(number);
    samples += times;
  }
  if (classes.empty()) return;
  const ValueRange range = range_of(raw.values.view().data, raw.dtype(),
                                    static_cast<std::size_t>(raw.values.type().count()));
  PT_CHECK(range.low < 1 || range.high > static_cast<double>(label->classes), kData,
           "the labels of {} run from {:.0f} to {}, but classes are counted from 0: subtract 1",
           place, range.low, label->classes);
  PT_CHECK(classes != std::vector<std::int64_t>{255} || label->sample_shape.count() == 1, kData,
           "label 255 {}, first {}: the model has {} classes; {} 255 leaves such pixels out",
           bad[0].reason, raw.locate(bad[0].row), label->classes, setting("ignore-index"));
  PT_FAIL(kData,
          "label{} {} {} in {} of {} samples, first {}: the model has {} classes; {} "
          "{} gives it a last layer for more",
          classes.size() == 1 ? "" : "s", fmt::join(classes, ", "), bad[0].reason, samples,
          raw.rows(), raw.locate(bad[0].row), label->classes, setting("num-classes"),
          classes.back() + 1);
}

}  // namespace pipetrain
