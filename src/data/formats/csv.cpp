// CSV: quoting of RFC 4180, numbers independent of the locale.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <list>
#include <map>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

// Splits a text into records of fields; blank lines and lines beginning with '#' are passed over.
class RecordReader {
 public:
  RecordReader(std::string_view text, char delimiter, const std::string& name)
      : rest_(text), delimiter_(delimiter), name_(name) {}

  /// The next record's fields, valid until the following call; false at the end.
  bool next(std::vector<std::string_view>& fields) {
    fields.clear();
    unquoted_.clear();
    while (!rest_.empty()) {
      ++line_;
      record_line_ = line_;
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      const std::string_view line = trim(rest_.substr(0, end));
      if (!line.empty() && line.front() != '#') break;
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
    }
    if (rest_.empty()) return false;
    bool more = true;
    while (more) more = take_field(fields);
    return true;
  }
  /// The line that the record begins on, from 1.
  std::uint32_t line() const { return record_line_; }

  static std::string_view trim(std::string_view text) {
    const auto blank = [](char c) { return c == ' ' || c == '\r' || c == '\t'; };
    while (!text.empty() && blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    return text;
  }

 private:
  // Takes one field and its delimiter; returns whether the record continues.
  bool take_field(std::vector<std::string_view>& fields) {
    std::size_t begin = 0;
    while (begin < rest_.size() && rest_[begin] == ' ') ++begin;
    if (begin < rest_.size() && rest_[begin] == '"') {
      rest_.remove_prefix(begin + 1);
      fields.push_back(take_quoted());
      const std::size_t end = find_end();
      PT_CHECK(trim(rest_.substr(0, end)).empty(), kData,
               "{} line {}: text follows the closing quote of column {}", name_, line_,
               fields.size());
      return take_end(end);
    }
    const std::size_t end = find_end();
    fields.push_back(trim(rest_.substr(0, end)));
    return take_end(end);
  }
  std::size_t find_end() const {
    std::size_t end = 0;
    while (end < rest_.size() && rest_[end] != delimiter_ && rest_[end] != '\n') ++end;
    return end;
  }
  bool take_end(std::size_t end) {
    const bool more = end < rest_.size() && rest_[end] == delimiter_;
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return more;
  }
  // rest_ is after the opening quote; "" inside is an escaped quote.
  std::string_view take_quoted() {
    std::string out;
    while (true) {
      const std::size_t quote = rest_.find('"');
      PT_CHECK(quote != std::string_view::npos, kData, "{} line {}: a quoted field is never closed",
               name_, record_line_);
      const std::string_view part = rest_.substr(0, quote);
      line_ += static_cast<std::uint32_t>(std::count(part.begin(), part.end(), '\n'));
      out += part;
      rest_.remove_prefix(quote + 1);
      if (!rest_.starts_with('"')) break;
      out += '"';
      rest_.remove_prefix(1);
    }
    return *unquoted_.insert(unquoted_.end(), std::move(out));
  }

  std::string_view rest_;
  char delimiter_;
  const std::string& name_;
  std::uint32_t line_ = 0;
  std::uint32_t record_line_ = 0;
  std::list<std::string> unquoted_;  // unescaped quoted fields of this record
};

std::optional<double> number(std::string_view text) {
  text = RecordReader::trim(text);  // a quoted field keeps its spaces
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  // Numbers beyond double's range become infinite and are caught with the other bad values.
  if (error == std::errc::result_out_of_range) return std::numeric_limits<double>::infinity();
  if (error != std::errc()) return std::nullopt;
  return value;
}

// Whole, and small enough for a double to have every digit.
bool is_whole(double value) { return std::nearbyint(value) == value && std::fabs(value) < 0x1p53; }

// The first of , tab ; space outside quotes in the first line that is not a comment.
char guess_delimiter(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = RecordReader::trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    std::string bare;
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (!quoted) bare += c;
    }
    for (const char c : {',', '\t', ';', ' '}) {
      if (bare.find(c) != std::string::npos) return c;
    }
    break;
  }
  return ',';
}

// A header is a row with a word in a column that holds a number in the next row. What begins like
// a number is a damaged number, not a word.
bool looks_like_header(const std::vector<std::string>& first,
                       const std::vector<std::string>& second) {
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    const std::string_view cell = first[i];
    if (cell.empty() || number(cell) || !number(second[i])) continue;
    if (std::string_view("0123456789+-.").find(cell.front()) == std::string_view::npos) return true;
  }
  return false;
}

constexpr std::size_t kNoLabel = std::numeric_limits<std::size_t>::max();

std::size_t find_label(const CsvOptions& options, const std::vector<std::string>& header,
                       std::size_t columns, const std::string& name,
                       std::vector<std::string>& notes) {
  const std::string& wanted = options.label_column;
  if (wanted == "none") return kNoLabel;
  if (wanted.empty() || wanted == "last") {
    for (std::size_t i = 0; wanted.empty() && i < header.size(); ++i) {
      if (role_of_name(header[i]) != ColumnRole::kLabel) continue;
      notes.push_back(fmt::format("labels from the column named \"{}\"", printable(header[i])));
      return i;
    }
    PT_CHECK(columns > 1, kData,
             "{} has one column, which cannot be inputs and labels at once ({} none "
             "uses it as input)",
             name, setting("label-column"));
    notes.push_back(fmt::format("labels from the last column ({} NAME or NUMBER to change)",
                                setting("label-column")));
    return columns - 1;
  }
  const auto named = std::ranges::find(header, wanted);
  if (named != header.end()) return static_cast<std::size_t>(named - header.begin());
  long index = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
  const bool is_number = error == std::errc() && end == wanted.data() + wanted.size();
  if (!is_number && options.label_may_be_missing) return kNoLabel;
  const long position = index < 0 ? index + static_cast<long>(columns) : index;
  PT_CHECK(is_number && position >= 0 && position < static_cast<long>(columns), kData,
           "{} has no column \"{}\" for the labels: {}", name, printable(wanted),
           header.empty() ? fmt::format("it has {} columns, without a header", columns)
                          : fmt::format("its header is {}",
                                        printable(fmt::format("{}", fmt::join(header, ", ")))));
  return static_cast<std::size_t>(position);
}

// Numbers classes by their names, in byte order.
struct Classes {
  std::vector<std::string> words;  // one per row
  std::vector<std::string> names;

  std::vector<std::int64_t> numbers() {
    std::map<std::string, std::int64_t> order;
    for (const std::string& word : words) order.emplace(word, 0);
    for (auto& [word, index] : order) {
      index = static_cast<std::int64_t>(names.size());
      names.push_back(word);
    }
    std::vector<std::int64_t> out;
    out.reserve(words.size());
    for (const std::string& word : words) out.push_back(order.at(word));
    return out;
  }
};

template <class T>
RawColumn make_column(std::string name, const std::string& file, ColumnRole role, Shape shape,
                      const std::vector<T>& values, std::vector<std::uint32_t> lines) {
  RawColumn out{std::move(name),
                HostTensor::of<T>(std::move(shape), std::span<const T>(values)),
                file,
                role,
                {},
                {},
                std::move(lines)};
  return out;
}

/// The values of all rows.
struct Cells {
  std::size_t columns, label;
  bool labels_are_words;
  std::vector<float> features = {};
  std::vector<double> wide = {};  // in place of features, when float would round a whole number
  std::vector<double> labels = {};
  Classes classes = {};
  std::vector<std::uint32_t> lines = {};

  void add(const std::vector<std::string_view>& fields, const CsvOptions& options,
           const std::vector<std::string>& header, const std::string& name, std::uint32_t line) {
    lines.push_back(line);
    for (std::size_t i = 0; i < columns; ++i) {
      if (i == label && labels_are_words) {
        classes.words.emplace_back(fields[i]);
        continue;
      }
      std::optional<double> value = number(fields[i]);
      if (!value && options.bad_cells_as_nan) value = std::numeric_limits<double>::quiet_NaN();
      PT_CHECK(value, kData, "{} line {}, column {}{}: \"{}\" is not a number", name, line, i + 1,
               header.empty() ? std::string() : fmt::format(" ({})", printable(header[i])),
               printable(fields[i]));
      if (i == label) {
        labels.push_back(*value);
        continue;
      }
      const bool rounds = is_whole(*value) && static_cast<float>(*value) != *value;
      if (rounds && wide.empty()) wide.assign(features.begin(), features.end());
      if (rounds || !wide.empty()) wide.push_back(*value);
      features.push_back(static_cast<float>(*value));
    }
  }
};

RawSplit split_of(Cells cells, const std::vector<std::string>& header, const std::string& file) {
  const auto rows = static_cast<std::int64_t>(cells.lines.size());
  const Shape matrix{rows,
                     static_cast<std::int64_t>(cells.columns - (cells.label == kNoLabel ? 0 : 1))};
  RawSplit out;
  if (matrix[1] > 0) {
    out.columns.push_back(
        cells.wide.empty()
            ? make_column("x", file, ColumnRole::kInput, matrix, cells.features, cells.lines)
            : make_column("x", file, ColumnRole::kInput, matrix, cells.wide, cells.lines));
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (i != cells.label) out.columns[0].field_names.push_back(header[i]);
    }
  }
  if (cells.label == kNoLabel) return out;
  const auto add_labels = [&](const auto& values) {
    out.columns.push_back(
        make_column("y", file, ColumnRole::kLabel, Shape{rows}, values, std::move(cells.lines)));
  };
  if (cells.labels_are_words) {
    add_labels(cells.classes.numbers());
    out.columns.back().class_names = cells.classes.names;
  } else if (std::ranges::all_of(cells.labels, is_whole)) {
    // An integer type tells the choice of the loss that these may be classes.
    add_labels(std::vector<std::int64_t>(cells.labels.begin(), cells.labels.end()));
  } else {
    add_labels(cells.labels);
  }
  return out;
}

}  // namespace

RawSplit parse_csv(std::string_view text, const std::string& file, const CsvOptions& options,
                   std::vector<std::string>& notes) {
  const std::string name = printable(file);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  const char delimiter = options.delimiter ? options.delimiter : guess_delimiter(text);
  std::vector<std::string_view> fields;
  std::vector<std::string> first, second;
  RecordReader peek(text, delimiter, name);
  if (peek.next(fields)) first.assign(fields.begin(), fields.end());
  const std::uint32_t first_line = peek.line();
  if (peek.next(fields)) second.assign(fields.begin(), fields.end());
  PT_CHECK(!first.empty(), kData, "{} has no rows", name);
  const bool has_header =
      options.header == CsvOptions::Header::kYes ||
      (options.header == CsvOptions::Header::kAuto && looks_like_header(first, second));
  const std::vector<std::string> header = has_header ? first : std::vector<std::string>();
  const std::size_t columns = first.size();
  const std::size_t label = find_label(options, header, columns, name, notes);
  const std::vector<std::string>& sample = has_header ? second : first;
  const bool words = label != kNoLabel && label < sample.size() && !number(sample[label]);

  Cells cells{columns, label, words};
  RecordReader reader(text, delimiter, name);
  if (has_header) reader.next(fields);
  while (reader.next(fields)) {
    PT_CHECK(fields.size() == columns, kData, "{} line {} has {} columns, line {} has {}", name,
             reader.line(), fields.size(), first_line, columns);
    cells.add(fields, options, header, name, reader.line());
  }
  PT_CHECK(!cells.lines.empty(), kData, "{} has a header and no rows", name);
  return split_of(std::move(cells), header, file);
}

bool looks_like_table(std::string_view head, bool is_whole_text) {
  const char delimiter = guess_delimiter(head);
  if (delimiter == ' ') return false;  // may be text
  std::size_t width = 0, rows = 0, lines = 0;
  while (!head.empty()) {
    const std::size_t end = std::min(head.find('\n'), head.size());
    std::string_view line = RecordReader::trim(head.substr(0, end));
    const bool cut = end == head.size() && !is_whole_text;
    head.remove_prefix(std::min(end + 1, head.size()));
    if (line.empty() || line.front() == '#') continue;
    ++lines;
    if (cut) line = line.substr(0, std::min(line.rfind(delimiter), line.size()));
    std::size_t cells = 0, numbers = 0;
    for (std::size_t begin = 0; begin <= line.size(); ++cells) {
      const std::size_t stop = std::min(line.find(delimiter, begin), line.size());
      if (number(line.substr(begin, stop - begin))) ++numbers;
      begin = stop + 1;
    }
    if (width > 0 && (cut ? cells > width : cells != width)) return false;
    if (!cut) width = cells;
    const bool is_row = 2 * numbers >= cells && cells + cut > 1;
    if (!is_row && lines > 1) return false;  // the first may be a header
    rows += is_row;
  }
  return rows > 0;
}

RawData read_csv(const std::string& path, const CsvOptions& options) {
  RawData out{path, "", {}, {}, {}};
  std::string train = path, validation;
  if (fs::is_directory(path)) {
    train.clear();
    for (const std::string& file : list_files(path)) {
      const std::string stem = fs::path(file).filename().string();
      const auto is = [&](std::string_view word) {
        return stem == fmt::format("{}.csv", word) || stem == fmt::format("{}.csv.gz", word) ||
               stem == fmt::format("{}.tsv", word) || stem == fmt::format("{}.tsv.gz", word);
      };
      if (is("train")) train = file;
      if (is("val") || is("valid") || is("validation") || (is("test") && validation.empty())) {
        validation = file;
      }
    }
    PT_CHECK(!train.empty(), kData, "\"{}\" has no train.csv", printable(path));
  }
  const auto read = [&](const std::string& file, std::vector<std::string>& notes) {
    CsvOptions chosen = options;
    if (!chosen.delimiter && (file.ends_with(".tsv") || file.ends_with(".tsv.gz"))) {
      chosen.delimiter = '\t';
    }
    const FileBytes content = FileBytes::open_inflated(file);
    return parse_csv(content.text(), file == "-" ? "standard input" : file, chosen, notes);
  };
  out.train = read(train, out.notes);
  std::vector<std::string> ignored;
  if (!validation.empty()) out.validation = read(validation, ignored);
  const bool header = !out.train.columns.empty() && !out.train.columns[0].field_names.empty();
  out.format = fmt::format("CSV{}", header ? ", with a header" : ", without a header");
  return out;
}

}  // namespace pipetrain
