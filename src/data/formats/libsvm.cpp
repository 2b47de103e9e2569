// LibSVM's text format: "label index:value index:value …", one sample a line, "#" begins a comment.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/setting.h"
#include "data/files/text_lines.h"
#include "data/formats/table_encoding.h"
#include "data/rows/readers.h"
#include "data/rows/sparse_rows.h"

namespace pipetrain {

namespace {

// A larger index is an error.
constexpr std::uint32_t kMostColumns = 1u << 28;
// Labels become floats, or classes.
constexpr double kLargestLabel = std::numeric_limits<float>::max();

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
  line.remove_prefix(word.size());
  return word;
}

bool parse_whole(std::string_view text, std::uint32_t& out) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

struct SvmFile {
  SparseRows rows;
  std::vector<double> labels;
  std::uint32_t least = UINT32_MAX;  // of the indices
};

SvmFile parse_svm(std::string_view text, const std::string& file) {
  SvmFile out;
  out.rows.file = file;
  for (TextLines lines(text); lines.next_with_content();) {
    std::string_view line = lines.line();
    line = line.substr(0, line.find('#'));
    const std::string_view label = next_word(line);
    if (label.empty()) continue;
    const auto place = [&] { return fmt::format("{} line {}", printable(file), lines.number()); };
    const std::optional<double> value = number_in(label);
    PT_CHECK(value && std::abs(*value) <= kLargestLabel, kData,
             "{}: the label is \"{}\", not a number", place(), printable(std::string(label)));
    out.labels.push_back(*value);
    std::int64_t before = -1;
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      const std::size_t colon = std::min(word.find(':'), word.size());
      if (word.substr(0, colon) == "qid") continue;
      std::uint32_t index = 0;
      const std::optional<double> number =
          colon < word.size() ? number_in(word.substr(colon + 1)) : std::nullopt;
      PT_CHECK(number && std::isfinite(*number) && parse_whole(word.substr(0, colon), index), kData,
               "{}: \"{}\" is not index:value", place(), printable(std::string(word)));
      PT_CHECK(index < kMostColumns, kData, "{}: index {} is out of range 0..{}", place(), index,
               kMostColumns - 1);
      PT_CHECK(index > before, kData, "{}: index {} follows {}; indices must increase", place(),
               index, before);
      before = index;
      out.rows.positions.push_back(index);
      out.rows.values.push_back(static_cast<float>(*number));
      out.least = std::min(out.least, index);
      out.rows.width = std::max(out.rows.width, index + 1);
    }
    out.rows.ends.push_back(out.rows.positions.size());
    out.rows.lines.push_back(lines.number());
  }
  PT_CHECK(!out.labels.empty(), kData, "\"{}\" has no rows", printable(file));
  return out;
}

RawSplit to_split(SvmFile file, bool from_one, std::vector<std::string>& notes) {
  if (from_one && file.least < UINT32_MAX) {
    for (std::uint32_t& position : file.rows.positions) --position;
    --file.rows.width;
  }
  const std::vector<std::uint32_t> lines = file.rows.lines;
  const std::string name = file.rows.file;
  const bool signs = std::ranges::all_of(file.labels, [](double v) { return v == 1 || v == -1; }) &&
                     std::ranges::count(file.labels, -1.0) > 0;
  const bool whole = std::ranges::all_of(
      file.labels, [](double v) { return v == std::floor(v) && std::abs(v) < 1e15; });
  if (signs) {
    notes.push_back("labels -1 and 1 become classes 0 and 1");
    for (double& label : file.labels) label = label > 0 ? 1 : 0;
  }
  const Shape shape{static_cast<std::int64_t>(file.labels.size())};
  // Only whole labels are small enough to be converted.
  const std::vector<double> of_classes = whole ? file.labels : std::vector<double>();
  const std::vector<std::int64_t> classes(of_classes.begin(), of_classes.end());
  const std::vector<float> numbers(file.labels.begin(), file.labels.end());
  RawSplit out;
  out.columns.push_back(
      {"x", {}, name, ColumnRole::kInput, {}, {}, lines, make_sparse_rows(std::move(file.rows))});
  out.columns.push_back(
      {"y",
       whole ? HostTensor::of<std::int64_t>(shape, classes) : HostTensor::of<float>(shape, numbers),
       name,
       ColumnRole::kLabel,
       {},
       {},
       lines});
  return out;
}

}  // namespace

bool is_libsvm_line(std::string_view line) {
  line = line.substr(0, line.find('#'));
  if (!number_in(next_word(line))) return false;
  std::size_t pairs = 0;
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    std::uint32_t index = 0;
    const bool query = word.substr(0, colon) == "qid";
    if (colon == word.size() || !(query || parse_whole(word.substr(0, colon), index)) ||
        !number_in(word.substr(colon + 1))) {
      return false;
    }
    ++pairs;
  }
  return pairs > 0;
}

RawData read_libsvm(const std::string& path, std::optional<std::uint32_t> first_index) {
  RawData out{path, "LibSVM", {}, {}, {}};
  PT_CHECK(!std::filesystem::is_directory(path), kUsage,
           "\"{}\" is a folder, but {} libsvm reads one file", printable(path), setting("format"));
  const std::string source = only_file(path, "libsvm");
  SvmFile file = parse_svm(FileBytes::open_text(source).text(), source);
  const std::uint32_t first = first_index.value_or(file.least > 0 ? 1 : 0);
  PT_CHECK(file.least >= first, kData,
           "\"{}\" has the index {}, but the training data count from {}", printable(path),
           file.least, first);
  out.notes.push_back(fmt::format("indices count from {}{}, the largest is {}", first,
                                  first_index ? " as in the training data" : "",
                                  file.rows.width ? file.rows.width - 1 : 0));
  out.train = to_split(std::move(file), first == 1, out.notes);
  out.train.first_index = first;
  return out;
}

}  // namespace pipetrain
