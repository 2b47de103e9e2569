#include "data/formats/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/setting.h"
#include "data/files/text_lines.h"
#include "data/formats/csv_cells.h"
#include "data/formats/csv_records.h"
#include "data/formats/table_encoding.h"
#include "data/formats/table_header.h"
#include "data/rows/class_labels.h"
#include "data/rows/ragged_rows.h"

namespace pipetrain {

namespace {

using JsonValue = nlohmann::json;

/// Labels as they come: whole numbers, others, or words.
class LabelRows {
 public:
  explicit LabelRows(const CsvOptions& table)
      : may_lack_(table.bad_cells_as_nan || table.label_may_be_missing),
        may_lack_all_(table.label_may_be_missing) {}

  void add(const JsonValue& value, const std::string& place) {
    if (value.is_null()) return add_word({}, place);
    if (value.is_string()) return add_word(value.get_ref<const std::string&>(), place);
    PT_CHECK(value.is_number() || value.is_boolean(), kData,
             "{}: the label {} is neither a number nor a word", place, printable(value.dump()));
    if (value.is_number_float() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      return add_number(value.get<double>(), place);
    rows_.add(value.is_boolean() ? std::int64_t{value.get<bool>()} : value.get<std::int64_t>());
    end(place);
  }
  /// After a first word that is no gap and no amount, numbers are words too, as in tables without
  /// texts.
  void add_cell(std::string_view cell, const std::string& place) {
    const std::optional<double> number = are_words_ ? std::nullopt : number_in(cell);
    if (number) return add_number(*number, place);
    const bool is_first = rows_.rows() == 0;
    add_word(cell, place);
    are_words_ |= is_first && rows_.rows() > 0 && !is_missing(cell) && !looks_like_amount(cell);
  }
  /// None where no row has one, and none needs one.
  std::optional<RawColumn> column(const std::string& file,
                                  const std::vector<std::uint32_t>& lines) {
    if (may_lack_all_ && rows_.rows() == 0) return std::nullopt;
    std::vector<RaggedRows> all;
    all.push_back(std::move(rows_));
    std::vector<std::string> notes;
    RawColumn out = columns_of(std::move(all), file, lines, notes).columns.at(0);
    if (!gaps_.empty()) out.values = with_unlabelled(out.values, gaps_);
    out.may_be_words = out.class_names.empty();
    return out;
  }

 private:
  void add_number(double number, const std::string& place) {
    const bool whole = std::nearbyint(number) == number && std::fabs(number) < 0x1p53;
    if (whole) {
      rows_.add(static_cast<std::int64_t>(number));
    } else {
      rows_.add(number);
    }
    end(place);
  }
  void add_word(std::string_view word, const std::string& place) {
    if (word.empty() || (may_lack_all_ && is_missing(word))) {
      PT_CHECK(may_lack_, kData, "{} has no label", place);
      gaps_.push_back(rows_.rows() + gaps_.size());
      return;
    }
    rows_.add(word);
    end(place);
  }
  void end(const std::string& place) {
    const std::string wrong = rows_.end_row(Shape{});
    PT_CHECK(wrong.empty(), kData, "{}: {}", place, wrong);
  }

  RaggedRows rows_{"label"};
  bool are_words_ = false;         // cells are, as the first label is one
  bool may_lack_;                  // a row without one is a gap
  bool may_lack_all_;              // and so is each cell that stands for a missing value
  std::vector<std::size_t> gaps_;  // rows without a label
};

/// The columns that are used, by number in a list of names.
struct ChosenColumns {
  std::size_t text = 0;
  std::optional<std::size_t> second, label;
};

std::string names_list(const std::vector<std::string>& names) {
  return printable(fmt::format("{}", fmt::join(names, ", ")));
}

/// `is_text`: whether a column has words in the first row. `last_is_label`: if no other is, and
/// another one has words.
ChosenColumns choose_columns(const std::vector<std::string>& names,
                             const std::vector<bool>& is_text, const std::string& file,
                             const TextOptions& options, const CsvOptions& table,
                             bool last_is_label = false) {
  const auto named = [&](const std::string& wanted, const std::string& what) {
    const auto found = std::find(names.begin(), names.end(), wanted);
    PT_CHECK(found != names.end(), kData, "{} has no column \"{}\" for {}: it has {}",
             printable(file), printable(wanted), what, names_list(names));
    return static_cast<std::size_t>(found - names.begin());
  };
  ChosenColumns out;
  const std::string& wanted = table.label_column;
  const bool may_lack = table.label_column_may_be_missing || options.from_model;
  if (!wanted.empty() && wanted != "none" &&
      (!may_lack || std::count(names.begin(), names.end(), wanted) > 0))
    out.label = wanted == "last" ? names.size() - 1 : named(wanted, "the labels");
  for (std::size_t i = 0; i < names.size() && wanted.empty() && !out.label; ++i) {
    if (names_labels(names[i])) out.label = i;
  }
  const std::size_t last = names.size() - 1;
  if (last_is_label && wanted.empty() && !out.label && names[last] != options.column &&
      names[last] != options.pair && !is_name_of_texts(names[last]) &&
      std::find(is_text.begin(), is_text.end() - 1, true) != is_text.end() - 1)
    out.label = last;
  if (!options.pair.empty()) out.second = named(options.pair, "second texts");
  const bool has_column = std::count(names.begin(), names.end(), options.column) > 0;
  if (!options.column.empty() && (has_column || !options.from_model)) {
    out.text = named(options.column, "the texts");
    return out;
  }
  std::vector<std::size_t> free, usual;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == out.label || i == out.second || !is_text[i]) continue;
    free.push_back(i);
    if (is_name_of_texts(names[i])) usual.push_back(i);
  }
  if (free.size() > 1 && !usual.empty()) free = {usual[0]};
  PT_CHECK(!free.empty(), kData, "{} has no column of texts: it has {}", printable(file),
           names_list(names));
  PT_CHECK(free.size() == 1, kData, "{} has several columns of words: {}; choose one with {} NAME",
           printable(file), names_list(names), setting("text-column"));
  out.text = free[0];
  return out;
}

bool has_places_for_names(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != fmt::format("{}", i)) return false;
  }
  return true;
}

JsonValue parse_line(std::string_view line, const std::string& place) {
  constexpr int kDeepest = 32;
  try {
    JsonValue json =
        JsonValue::parse(line, [&](int depth, JsonValue::parse_event_t, const JsonValue&) {
          PT_CHECK(depth <= kDeepest, kData, "{}: nested more than {} deep", place, kDeepest);
          return true;
        });
    PT_CHECK(json.is_object(), kData, "{}: not a JSON object", place);
    return json;
  } catch (const JsonValue::exception&) {
    PT_FAIL(kData, "{}: invalid JSON", place);
  }
}

}  // namespace

bool is_name_of_texts(std::string_view name) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "text", "texts", "sentence", "content", "document", "review", "body", "message"};
  const auto is_part = [](char c) { return c != ' ' && c != '_' && c != '-' && c != '.'; };
  std::string part;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (i < name.size() && is_part(name[i])) {
      part += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
      continue;
    }
    if (std::find(kNames.begin(), kNames.end(), part) != kNames.end()) return true;
    part.clear();
  }
  return false;
}

bool first_line_has_text(const std::string& file) {
  const FileBytes content = FileBytes::open_text(file);
  TextLines lines(content.text());
  const JsonValue json = parse_line(lines.next_with_content() ? lines.line() : "", printable(file));
  for (const auto& [key, value] : json.items()) {
    if (value.is_string() && role_of_name(key) != ColumnRole::kLabel) return true;
  }
  return false;
}

TextTable read_text_lines(const std::string& file, const TextOptions& options,
                          const CsvOptions& table) {
  TextTable out;
  out.file = file;
  LabelRows labels(table);
  const JsonValue none;
  std::string text, second, label;  // names
  const FileBytes content = FileBytes::open_text(file);
  for (TextLines lines(content.text()); lines.next_with_content();) {
    const std::string place = fmt::format("{} line {}", printable(file), lines.number());
    const JsonValue json = parse_line(lines.line(), place);
    if (out.texts.empty()) {
      std::vector<std::string> names;
      std::vector<bool> is_text;
      for (const auto& [key, value] : json.items()) {
        names.push_back(key);
        is_text.push_back(value.is_string());
      }
      const ChosenColumns chosen = choose_columns(names, is_text, file, options, table);
      text = names[chosen.text];
      if (chosen.second) second = names[*chosen.second];
      if (chosen.label) label = names[*chosen.label];
    }
    const auto text_at = [&](const std::string& key) -> const std::string& {
      const auto found = json.find(key);
      PT_CHECK(found != json.end() && found->is_string(), kData,
               "{}: \"{}\" is {}, which the first line has", place, printable(key),
               found == json.end() ? "missing" : "no text");
      return found->get_ref<const std::string&>();
    };
    out.texts.push_back(text_at(text));
    if (!second.empty()) out.seconds.push_back(text_at(second));
    if (!label.empty()) {
      const auto found = json.find(label);
      PT_CHECK(found != json.end() || table.label_may_be_missing, kData,
               "{}: \"{}\" is missing, which the first line has", place, printable(label));
      labels.add(found == json.end() ? none : *found, place);
    }
    out.lines.push_back(lines.number());
  }
  PT_CHECK(!out.texts.empty(), kData, "\"{}\" has no lines", printable(file));
  out.name = text;
  if (!label.empty()) out.labels = labels.column(file, out.lines);
  return out;
}

TextTable read_text_columns(const std::string& file, const TextOptions& options,
                            const CsvOptions& table) {
  TextTable out;
  out.file = file;
  const FileBytes content = FileBytes::open_text(file);
  std::string_view text = content.text();
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  const bool tabs = bare_name(file).ends_with(".tsv");
  const char delimiter = table.delimiter ? table.delimiter : tabs ? '\t' : guess_delimiter(text);
  const std::string name = file == "-" ? "standard input" : file;
  RecordReader reader(text, delimiter == ' ' ? ',' : delimiter, name,
                      /*decimal_commas=*/false, /*comments=*/false);
  std::vector<std::string_view> fields;
  PT_CHECK(reader.next(fields), kData, "\"{}\" has no rows", printable(file));
  std::vector<std::string> names(fields.begin(), fields.end());
  // Columns without a header are called by their places, and so may be those of a header; in other
  // first rows such a number is data.
  const bool are_places = has_places_for_names(names);
  const auto is_place = [&](const std::string& cell) {
    const std::optional<double> number = number_in(cell);
    return number && *number < static_cast<double>(names.size());
  };
  const auto is_known = [&](const std::string& cell) {
    return !cell.empty() && (are_places || !is_place(cell)) &&
           (cell == options.column || cell == options.pair || cell == table.label_column);
  };
  const auto is_usual = [&](const std::string& cell) {
    return (is_name_of_texts(cell) && cell.find(' ') == std::string::npos) || names_labels(cell);
  };
  const auto looks_like_header = [&] {
    const std::vector<Record> head =
        first_records(text, delimiter == ' ' ? ',' : delimiter, name, /*comments=*/false);
    return begins_with_names(head) ||
           (std::ranges::any_of(names, is_usual) && differs_from_rows(head));
  };
  const bool header = table.header == CsvOptions::Header::kYes ||
                      (table.header == CsvOptions::Header::kAuto &&
                       (std::ranges::any_of(names, is_known) || looks_like_header()));
  bool more = true;
  if (header) {
    more = reader.next(fields);
  } else {
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = fmt::format("{}", i);
  }
  PT_CHECK(more, kData, "\"{}\" has a header and no rows", printable(file));
  std::vector<bool> is_text;
  for (const std::string_view field : fields) is_text.push_back(!number_in(field));
  is_text.resize(names.size());
  const ChosenColumns chosen =
      choose_columns(names, is_text, file, options, table,
                     /*last_is_label=*/names.size() > 1 && (!header || options.one_label_per_text));
  LabelRows labels(table);
  for (; more; more = reader.next(fields)) {
    const std::string place = fmt::format("{} line {}", printable(file), reader.line());
    PT_CHECK(fields.size() == names.size(), kData, "{} has {} columns, the first line has {}",
             place, fields.size(), names.size());
    out.texts.emplace_back(fields[chosen.text]);
    if (chosen.second) out.seconds.emplace_back(fields[*chosen.second]);
    if (chosen.label) labels.add_cell(fields[*chosen.label], place);
    out.lines.push_back(reader.line());
  }
  out.name = names[chosen.text];
  if (chosen.label) out.labels = labels.column(file, out.lines);
  return out;
}

TextTable read_plain_text(const std::string& file, bool by_line) {
  TextTable out;
  out.file = file;
  out.whole = FileBytes::open_text(file);
  if (!by_line) return out;
  for (TextLines lines(out.whole.text()); lines.next();) {
    if (lines.line().empty()) continue;
    out.texts.emplace_back(lines.line());
    out.lines.push_back(lines.number());
  }
  return out;
}

}  // namespace pipetrain
