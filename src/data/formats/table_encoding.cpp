#include "data/formats/table_encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/setting.h"

namespace pipetrain {

namespace {

using Kind = EncodedColumn::Kind;

// More categories than this are names or texts, not classes of rows.
constexpr std::size_t kMaxCategories = 10000;

// Fewer rows may have as many words by chance.
constexpr std::size_t kFewRows = 20;

std::string place(const TableCells& cells, std::size_t column, std::size_t row) {
  return fmt::format("{} line {}, column \"{}\"", printable(cells.file), cells.lines[row],
                     printable(cells.names[column]));
}

void fit_words(const TableCells& cells, std::size_t at, std::span<const std::size_t> rows,
               const CsvOptions& options, EncodedColumn& out) {
  std::map<std::string, std::size_t> counts;
  bool gaps = false;
  for (const std::size_t row : rows) {
    const std::string& cell = cells.columns[at][row];
    if (is_missing(cell)) {
      gaps = true;
    } else {
      ++counts[cell];
    }
  }
  PT_CHECK(counts.size() <= kMaxCategories, kData,
           "column \"{}\" of {} has {} different words, too many for categories; leave it out: "
           "{} {}",
           printable(out.name), printable(cells.file), counts.size(), setting("drop-columns"),
           printable(out.name));
  out.kind = options.categories == CsvOptions::Categories::kCodes ? Kind::kCodes : Kind::kOneHot;
  if (options.missing == CsvOptions::Missing::kMarker && gaps) out.words.emplace_back();
  std::size_t most = 0;
  for (const auto& [word, count] : counts) {
    out.words.push_back(word);
    // The most frequent word; of equally frequent ones the first.
    if (options.missing == CsvOptions::Missing::kMean && count > most) {
      most = count;
      out.word = word;
    }
  }
  if (options.missing == CsvOptions::Missing::kMarker) out.word = "";
}

void fit_numbers(const TableCells& cells, std::size_t at, std::span<const std::size_t> rows,
                 const CsvOptions& options, EncodedColumn& out) {
  std::vector<double> values;
  for (const std::size_t row : rows) {
    const std::optional<double> value = number_in(cells.columns[at][row]);
    if (value && std::isfinite(*value)) values.push_back(*value);
  }
  PT_CHECK(!values.empty(), kData, "column \"{}\" of {} has no values; leave it out: {} {}",
           printable(out.name), printable(cells.file), setting("drop-columns"),
           printable(out.name));
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const auto [low, high] = std::ranges::minmax(values);
  // A rounded mean would make a deviation of rounding errors for a column of one value.
  const double mean = low == high ? low : sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const bool gaps = values.size() < rows.size();
  if (options.missing != CsvOptions::Missing::kError) out.filling = mean;
  out.marked = options.missing == CsvOptions::Missing::kMarker && gaps;
  if (options.scale != CsvOptions::Scale::kStandard) return;
  out.mean = mean;
  // Of the filled column, where gaps have the mean.
  const double variance = squares / static_cast<double>(out.filling ? rows.size() : values.size());
  out.deviation = variance > 0 ? std::sqrt(variance) : 1;
}

// Writes a column's numbers with the stride of the whole matrix.
class ColumnEncoder {
 public:
  ColumnEncoder(const TableCells& cells, std::size_t at, const EncodedColumn& how,
                bool bad_cells_as_nan)
      : cells_(cells), at_(at), how_(how), bad_as_nan_(bad_cells_as_nan) {}

  void encode(std::size_t row, float* out) {
    const std::string& cell = cells_.columns[at_][row];
    const bool missing = is_missing(cell);
    gaps_ += missing;
    how_.kind == Kind::kNumber ? put_number(row, cell, missing, out)
                               : put_word(row, cell, missing, out);
  }

  std::string note() const {
    std::string text;
    if (how_.kind != Kind::kNumber)
      text +=
          fmt::format(", {} categories {}{}", how_.words.size(),
                      how_.kind == Kind::kOneHot ? "as one-hot" : "as codes",
                      2 * how_.words.size() > cells_.lines.size() && cells_.lines.size() >= kFewRows
                          ? fmt::format(", nearly one for each row: leave it out with {} {}",
                                        setting("drop-columns"), printable(how_.name))
                          : "");
    if (how_.deviation != 1 || how_.mean != 0)
      text += fmt::format(", minus {:.6g}, divided by {:.6g}", how_.mean, how_.deviation);
    if (gaps_ > 0) text += fmt::format(", {} missing", gaps_) + filling_text();
    if (!unknown_.empty())
      text +=
          fmt::format(", {} not in the training data: {}",
                      unknown_.size() == 1 ? "a word" : fmt::format("{} words", unknown_.size()),
                      printable(*unknown_.begin()));
    if (text.empty()) return text;
    return fmt::format("column \"{}\"{}", printable(how_.name), text);
  }

 private:
  std::string filling_text() const {
    if (how_.kind == Kind::kNumber && how_.filling)
      return fmt::format(" (filled with {:.6g}{})", *how_.filling, how_.marked ? ", marked" : "");
    if (how_.word && !how_.word->empty())
      return fmt::format(" (filled with \"{}\")", printable(*how_.word));
    if (how_.word) return has_gap_category() ? " (a category)" : " (no category)";
    return "";
  }

  /// Not where no training row had a gap: a category more would be a number that is always 0.
  bool has_gap_category() const { return !how_.words.empty() && how_.words.front().empty(); }

  void put_number(std::size_t row, const std::string& cell, bool missing, float* out) const {
    std::optional<double> value = missing ? how_.filling : number_in(cell);
    if (how_.marked) out[1] = missing ? 1 : 0;
    if (!value && bad_as_nan_) value = std::numeric_limits<double>::quiet_NaN();
    PT_CHECK(value || !missing, kData,
             "{} is missing; {} mean fills such cells, marker also marks them",
             place(cells_, at_, row), setting("missing"));
    PT_CHECK(value, kData, "{}: \"{}\" is not a number, as it is in the training data",
             place(cells_, at_, row), printable(cell));
    out[0] = static_cast<float>((*value - how_.mean) / how_.deviation);
  }

  void put_word(std::size_t row, const std::string& cell, bool missing, float* out) {
    const bool one_hot = how_.kind == Kind::kOneHot;
    PT_CHECK(!missing || how_.word || bad_as_nan_, kData,
             "{} is missing; {} mean fills in the most frequent word, marker makes a category of "
             "missing cells",
             place(cells_, at_, row), setting("missing"));
    const std::string& word = missing && how_.word ? *how_.word : cell;
    const auto found = std::ranges::lower_bound(how_.words, word);
    const bool known = found != how_.words.end() && *found == word;
    if (known) {
      const auto index = static_cast<std::size_t>(found - how_.words.begin());
      out[one_hot ? index : 0] = one_hot ? 1 : static_cast<float>(index);
      return;
    }
    if (!missing) unknown_.insert(word);
    if (one_hot && (!missing || how_.word)) return;  // zeros: none of the categories
    PT_CHECK(
        bad_as_nan_ || !missing, kData,
        "{} is missing, as no cell of this column in the training data is, so there is no code "
        "for it; {} mean fills in the most frequent word",
        place(cells_, at_, row), setting("missing"));
    PT_CHECK(bad_as_nan_, kData, "{}: \"{}\" is not a category of the training data",
             place(cells_, at_, row), printable(word));
    out[0] = std::numeric_limits<float>::quiet_NaN();
  }

  const TableCells& cells_;
  std::size_t at_;
  const EncodedColumn& how_;
  bool bad_as_nan_;
  std::size_t gaps_ = 0;
  std::set<std::string> unknown_;
};

}  // namespace

std::size_t EncodedColumn::width() const {
  return kind == Kind::kOneHot ? words.size() : marked ? 2 : 1;
}

std::size_t TableEncoding::width() const {
  std::size_t sum = 0;
  for (const EncodedColumn& column : columns) sum += column.width();
  return sum;
}

std::vector<std::string> TableEncoding::field_names() const {
  std::vector<std::string> names;
  for (const EncodedColumn& column : columns) {
    if (column.kind != Kind::kOneHot) names.push_back(column.name);
    if (column.marked) names.push_back(column.name + " missing");
    if (column.kind != Kind::kOneHot) continue;
    for (const std::string& word : column.words) names.push_back(column.name + "=" + word);
  }
  return names;
}

std::vector<std::vector<std::string>> TableEncoding::field_words() const {
  std::vector<std::vector<std::string>> words;
  for (const EncodedColumn& column : columns) {
    words.resize(words.size() + column.width());
    if (column.kind == Kind::kCodes) words.back() = column.words;
  }
  return words;
}

bool is_missing(std::string_view cell) {
  static constexpr std::array<std::string_view, 10> kWords = {"",     "NA",   "N/A",  "NaN", "nan",
                                                              "NULL", "null", "None", "?",   "n/a"};
  return std::ranges::count(kWords, cell) > 0;
}

std::optional<double> number_in(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (error == std::errc::result_out_of_range) {
    const std::size_t exponent = text.find_first_of("eE");
    const bool is_tiny = text.substr(std::min(exponent, text.size())).find('-') != text.npos;
    return is_tiny ? 0 : text.starts_with('-') ? -kInfinity : kInfinity;
  }
  if (error != std::errc()) return std::nullopt;
  // Numbers beyond float's range become infinite and are caught with the other bad values.
  return std::abs(value) > std::numeric_limits<float>::max() ? std::copysign(kInfinity, value)
                                                             : value;
}

TableEncoding fit_encoding(const TableCells& cells, std::span<const std::size_t> rows,
                           const CsvOptions& options) {
  TableEncoding out;
  for (std::size_t at = 0; at < cells.columns.size(); ++at) {
    EncodedColumn column;
    column.name = cells.names[at];
    const auto is_word = [&](std::size_t row) {
      const std::string& cell = cells.columns[at][row];
      return !is_missing(cell) && !number_in(cell);
    };
    const auto word = std::ranges::find_if(rows, is_word);
    PT_CHECK(
        word == rows.end() || options.categories != CsvOptions::Categories::kNone ||
            options.bad_cells_as_nan,
        kData,
        "{}: \"{}\" is not a number; encode words with {} one-hot or codes, or leave the column "
        "out: {} {}",
        place(cells, at, *word), printable(cells.columns[at][*word]), setting("categories"),
        setting("drop-columns"), printable(column.name));
    if (word != rows.end() && options.categories != CsvOptions::Categories::kNone) {
      fit_words(cells, at, rows, options, column);
    } else {
      fit_numbers(cells, at, rows, options, column);
    }
    out.columns.push_back(std::move(column));
  }
  return out;
}

std::vector<float> encode_table(const TableCells& cells, const TableEncoding& encoding,
                                bool bad_cells_as_nan, std::vector<std::string>& notes) {
  const std::size_t rows = cells.lines.size(), width = encoding.width();
  std::vector<float> out(rows * width);
  std::size_t first = 0;
  for (std::size_t at = 0; at < encoding.columns.size(); ++at) {
    const EncodedColumn& column = encoding.columns[at];
    ColumnEncoder encoder(cells, at, column, bad_cells_as_nan);
    for (std::size_t row = 0; row < rows; ++row) encoder.encode(row, &out[row * width + first]);
    first += column.width();
    if (std::string note = encoder.note(); !note.empty()) notes.push_back(std::move(note));
  }
  return out;
}

}  // namespace pipetrain
