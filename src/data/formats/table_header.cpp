#include "data/formats/table_header.h"

#include <algorithm>
#include <set>

#include "data/formats/csv_records.h"
#include "data/formats/table_encoding.h"

namespace pipetrain {

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

bool has_words_above_numbers(const Record& first, const Record& second) {
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    const std::string_view cell = first[i];
    if (cell.empty() || number_in(cell) || !number_in(second[i])) continue;
    if (std::string_view("0123456789+-.").find(cell.front()) == std::string_view::npos) return true;
  }
  return false;
}

bool has_names_above_words(const std::vector<Record>& records, const CsvOptions& options) {
  const Record& first = records[0];
  const auto is_wanted = [&](const std::string& cell) {
    return !cell.empty() &&
           (cell == options.label_column || std::ranges::count(options.features, cell) > 0 ||
            std::ranges::count(options.drop, cell) > 0);
  };
  const auto is_below = [&](std::size_t column) {
    return std::any_of(records.begin() + 1, records.end(), [&](const Record& record) {
      return column < record.size() && record[column] == first[column];
    });
  };
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (is_wanted(first[i])) return true;
    if (role_of_name(first[i]) == ColumnRole::kLabel && records.size() > 1 && !is_below(i))
      return true;
  }
  return begins_with_names(records);
}

}  // namespace pipetrain
