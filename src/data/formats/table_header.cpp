#include "data/formats/table_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/setting.h"
#include "data/formats/csv_cells.h"
#include "data/formats/csv_records.h"
#include "data/formats/table_encoding.h"

namespace pipetrain {

namespace {

bool begins_like_number(std::string_view cell) {
  return !cell.empty() &&
         std::string_view("0123456789+-.").find(cell.front()) != std::string_view::npos;
}

}  // namespace

bool has_decimal_commas(std::string_view text, char delimiter, const std::string& name) {
  constexpr int kLookedAt = 100;
  if (delimiter == ',') return false;
  RecordReader reader(text, delimiter, name);
  std::vector<std::string_view> fields;
  bool has_commas = false;
  for (int row = 0; row < kLookedAt && reader.next(fields); ++row) {
    for (const std::string_view cell : fields) {
      // Beside decimal points, commas separate thousands.
      if (row > 0 && cell.find('.') != cell.npos && number_in(cell)) return false;
      const std::string number = with_decimal_point(cell);
      has_commas |= !number.empty() && number_in(number);
    }
  }
  return has_commas;
}

std::vector<Record> first_records(std::string_view text, char delimiter, const std::string& name,
                                  bool comments) {
  constexpr std::size_t kMostRecords = 1000;
  RecordReader reader(text, delimiter, name, /*decimal_commas=*/false, comments);
  std::vector<Record> out;
  std::vector<std::string_view> fields;
  while (out.size() < kMostRecords && reader.next(fields))
    out.emplace_back(fields.begin(), fields.end());
  return out;
}

bool begins_with_names(const std::vector<Record>& records) {
  const Record& first = records[0];
  if (std::any_of(first.begin(), first.end(), [](const auto& cell) { return number_in(cell); }))
    return false;
  for (std::size_t column = 0; column < first.size(); ++column) {
    std::size_t numbers = 0;
    std::set<std::string> words;
    for (std::size_t row = 1; row < records.size(); ++row) {
      if (column >= records[row].size()) return false;
      numbers += number_in(records[row][column]) ? 1 : 0;
      words.insert(records[row][column]);
    }
    const std::size_t rows = records.size() - 1;
    if (rows > 0 && numbers == rows) return true;
    if (4 * words.size() <= rows && !words.contains(first[column])) return true;
  }
  return false;
}

bool names_labels(const std::string& column) {
  return column.find('/') == std::string::npos && role_of_name(column) == ColumnRole::kLabel;
}

bool has_words_above_numbers(const Record& first, const Record& second) {
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    const std::string_view cell = first[i];
    if (is_missing(cell) || number_in(cell) || !number_in(second[i])) continue;
    if (!begins_like_number(cell)) return true;
  }
  return false;
}

bool has_names_above_words(const std::vector<Record>& records, const CsvOptions& options) {
  const Record& first = records[0];
  const auto is_wanted = [&](const std::string& cell) {
    const bool is_word = !cell.empty() && cell != "last" && cell != "none";
    return (is_word && cell == options.label_column) ||
           (!cell.empty() && (std::ranges::count(options.features, cell) > 0 ||
                              std::ranges::count(options.drop, cell) > 0));
  };
  if (std::ranges::any_of(first, is_wanted)) return true;
  return std::ranges::any_of(first, names_labels) && differs_from_rows(records);
}

bool differs_from_rows(const std::vector<Record>& records) {
  const Record& first = records[0];
  for (std::size_t column = 0; column < first.size(); ++column) {
    const std::string& cell = first[column];
    if (begins_like_number(cell)) return false;
    for (std::size_t row = 1; row < records.size() && !cell.empty(); ++row) {
      if (column < records[row].size() && records[row][column] == cell) return false;
    }
  }
  return records.size() > 1;
}

void check_unique(const std::string& column, std::size_t given, std::size_t label,
                  const Record& header, const std::string& name) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (header[i] == column && i != label) places.push_back(i);
  }
  if (places.size() <= given) return;
  const bool are_names = std::ranges::any_of(places, [&](std::size_t place) {
    return std::ranges::count(header, std::to_string(place)) > 0;
  });
  PT_FAIL(kData, "the header of {} has \"{}\" more than once; {}", name, printable(column),
          are_names ? "rename one of the columns"
                    : fmt::format("name the column by its number: {}", fmt::join(places, " or ")));
}

std::size_t find_label(const CsvOptions& options, const std::vector<std::string>& header,
                       std::size_t columns, const std::string& name,
                       std::vector<std::string>& notes) {
  const std::string& wanted = options.label_column;
  if (wanted == "none") return kNoLabel;
  if (wanted.empty() || wanted == "last") {
    for (std::size_t i = 0; wanted.empty() && i < header.size(); ++i) {
      if (!names_labels(header[i])) continue;
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
  check_unique(wanted, 1, kNoLabel, header, name);
  const auto named = std::ranges::find(header, wanted);
  if (named != header.end()) return static_cast<std::size_t>(named - header.begin());
  long index = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
  const bool is_number = error == std::errc() && end == wanted.data() + wanted.size();
  if (!is_number && options.label_column_may_be_missing) return kNoLabel;
  const long position = index < 0 ? index + static_cast<long>(columns) : index;
  PT_CHECK(is_number && position >= 0 && position < static_cast<long>(columns), kData,
           "{} has no column \"{}\" for the labels: {}", name, printable(wanted),
           header.empty() ? fmt::format("it has {} columns, without a header", columns)
                          : fmt::format("its header is {}",
                                        printable(fmt::format("{}", fmt::join(header, ", ")))));
  return static_cast<std::size_t>(position);
}

std::size_t label_beside(const TableEncoding& features, const Record& header) {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (std::ranges::find(features.columns, header[i], &EncodedColumn::name) ==
        features.columns.end())
      others.push_back(i);
  }
  if (others.empty()) return kNoLabel;
  const auto named =
      std::ranges::find_if(others, [&](std::size_t i) { return names_labels(header[i]); });
  if (named != others.end()) return *named;
  return others.size() == 1 || others.back() + 1 == header.size() ? others.back() : kNoLabel;
}

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
    const bool other = bare.find_first_of(";\t") != std::string::npos;
    for (const char c : {',', '\t', ';', ' '}) {
      if (c == ',' && other && commas_are_decimal(bare)) continue;
      if (bare.find(c) != std::string::npos) return c;
    }
    break;
  }
  return ',';
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
      const std::string_view cell = line.substr(begin, stop - begin);
      if (number_in(cell) || number_in(with_decimal_point(cell))) ++numbers;
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

}  // namespace pipetrain
