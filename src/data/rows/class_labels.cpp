#include "data/rows/class_labels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/safe_text.h"

namespace pipetrain {

HostTensor classes_from_one_hot(const RawColumn& raw, const LabelSpec& label) {
  const std::int64_t classes = label.classes;
  if (classes < 2 || label.sample_shape.count() != 1 || raw.sample_shape().count() != classes) {
    return {};
  }
  const std::vector<double> values = raw.values.to_doubles();
  HostTensor out(TensorType{DType::kInt64, Shape{raw.values.shape()[0]}, Layout::kRowMajor});
  for (std::size_t row = 0; row < raw.rows(); ++row) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * classes;
    const auto hot = std::find(begin, begin + classes, 1.0);
    const auto zeros = std::count(begin, begin + classes, 0.0);
    if (hot == begin + classes || zeros != classes - 1) return {};
    out.span<std::int64_t>()[row] = hot - begin;
  }
  return out;
}

RawColumn with_padding_ignored(RawColumn column, const LabelSpec& label) {
  if (column.role == ColumnRole::kLabel || column.row_values.empty() || label.classes < 0)
    return column;
  std::vector<std::int64_t> values = column.values.to_int64s();
  const std::size_t length = values.size() / column.row_values.size();
  for (std::size_t row = 0; row < column.row_values.size(); ++row) {
    for (std::size_t i = column.row_values[row]; i < length; ++i)
      values[row * length + i] = label.ignore_index;
  }
  column.values = HostTensor::of<std::int64_t>(column.values.shape(), values);
  return column;
}

void check_class_name(const std::string& name, ClassNameIs what) {
  const bool is_folder = what == ClassNameIs::kFolder;
  const std::string who =
      fmt::format("the {} \"{}\"", is_folder ? "name of the folder" : "label", printable(name));
  PT_CHECK(is_utf8(name), kData, "{} is not UTF-8; {}", who,
           is_folder ? "rename the folder" : "convert the file: iconv -f latin1 -t utf-8");
  PT_CHECK(name.find('\n') == std::string::npos, kData,
           "{} has a line break, which names of classes must not have{}", who,
           is_folder ? "; rename the folder" : "");
}

ClassNumbers number_classes(const std::vector<std::string>& words) {
  std::map<std::string, std::int64_t> order;
  for (const std::string& word : words) order.emplace(word, 0);
  ClassNumbers out;
  for (auto& [word, number] : order) {
    check_class_name(word);
    number = static_cast<std::int64_t>(out.names.size());
    out.names.push_back(word);
  }
  out.numbers.reserve(words.size());
  for (const std::string& word : words) out.numbers.push_back(order.at(word));
  return out;
}

HostTensor with_unlabelled(const HostTensor& labels, std::span<const std::size_t> gaps) {
  const std::vector<double> given = labels.to_doubles();
  std::vector<double> out;
  auto next = given.begin();
  for (auto gap = gaps.begin(); next != given.end() || gap != gaps.end();) {
    const bool is_gap = gap != gaps.end() && *gap == out.size();
    out.push_back(is_gap ? std::numeric_limits<double>::quiet_NaN() : *next++);
    if (is_gap) ++gap;
  }
  return HostTensor::of<double>(Shape{static_cast<std::int64_t>(out.size())}, out);
}

namespace {

constexpr const char kUnknownLabel[] = "label \"{}\" does not occur in the training data, {}";

std::string word_of(std::int64_t number) { return std::to_string(number); }
std::string word_of(double number) {
  return number == std::floor(number) ? fmt::format("{:.0f}", number) : std::string();
}

/// Labels that were words in training, such as "1", "2" and "3+", and that are all numbers in this
/// table: numbers that are names of classes become the numbers of those classes. Amounts stay, and
/// so do class numbers: those of a table in which no number is a name.
template <class Number>
void follow_numbers(RawColumn& raw, const std::vector<std::string>& known) {
  HostTensor numbers(raw.values.type());
  const auto in = raw.values.span<Number>();
  const auto out = numbers.span<Number>();
  std::optional<std::size_t> stray;
  bool has_names = false;
  for (std::size_t row = 0; row < in.size(); ++row) {
    out[row] = in[row];
    if (std::isnan(static_cast<double>(in[row]))) continue;  // a gap
    const std::string word = word_of(in[row]);
    if (word.empty()) return;
    const auto found = std::ranges::find(known, word);
    if (found == known.end()) {
      if (!stray) stray = row;
      continue;
    }
    has_names = true;
    out[row] = static_cast<Number>(found - known.begin());
  }
  if (!has_names) return;
  PT_CHECK(!stray, kData, kUnknownLabel, word_of(in[*stray]), raw.locate(*stray));
  raw.values = numbers;
  raw.class_names = known;
}

template <class Number>
void renumber(RawColumn& raw, const std::vector<std::string>& known) {
  HostTensor numbers(raw.values.type());
  const auto in = raw.values.span<Number>();
  const auto out = numbers.span<Number>();
  for (std::size_t row = 0; row < in.size(); ++row) {
    out[row] = in[row];
    if (std::isnan(static_cast<double>(in[row]))) continue;
    const std::string& word = raw.class_names[static_cast<std::size_t>(in[row])];
    const auto found = std::ranges::find(known, word);
    PT_CHECK(found != known.end(), kData, kUnknownLabel, printable(word), raw.locate(row));
    out[row] = static_cast<Number>(found - known.begin());
  }
  raw.values = numbers;
}

}  // namespace

void follow_class_names(RawColumn& raw, const std::vector<std::string>& known) {
  if (!known.empty() && raw.class_names.empty() && raw.may_be_words) {
    if (raw.values.dtype() == DType::kInt64) follow_numbers<std::int64_t>(raw, known);
    if (raw.values.dtype() == DType::kFloat64) follow_numbers<double>(raw, known);
  }
  if (known.empty() || raw.class_names.empty() || raw.class_names == known) return;
  if (is_float(raw.values.dtype())) {
    renumber<double>(raw, known);  // with gaps
  } else {
    renumber<std::int64_t>(raw, known);
  }
  raw.class_names = known;
}

}  // namespace pipetrain
