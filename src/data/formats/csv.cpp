// CSV: numbers independent of the locale.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/safe_text.h"
#include "base/setting.h"
#include "base/units.h"
#include "data/formats/csv_cells.h"
#include "data/formats/csv_records.h"
#include "data/formats/table_encoding.h"
#include "data/formats/table_header.h"
#include "data/rows/class_labels.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

// Whole, and small enough for a double to have every digit.
bool is_whole(double value) { return std::nearbyint(value) == value && std::fabs(value) < 0x1p53; }

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

// The labels of a table: words, which become classes, or numbers.
struct Labels {
  bool are_words = false;
  std::vector<std::string> words;
  std::vector<std::size_t> gaps;  // rows without one
  std::vector<double> values;

  std::size_t size() const { return are_words ? words.size() : values.size(); }
  RawColumn column(const std::string& file, std::vector<std::uint32_t> lines) {
    const Shape shape{static_cast<std::int64_t>(size())};
    const auto make = [&](const auto& numbers) {
      RawColumn out = make_column("y", file, ColumnRole::kLabel, shape, numbers, std::move(lines));
      if (!gaps.empty()) out.values = with_unlabelled(out.values, gaps);
      out.may_be_words = !are_words;
      return out;
    };
    if (are_words) {
      PT_CHECK(!words.empty(), kData, "\"{}\" has no labels", printable(file));
      ClassNumbers classes = number_classes(words);
      RawColumn out = make(classes.numbers);
      out.class_names = std::move(classes.names);
      return out;
    }
    // An integer type tells the choice of the loss that these may be classes.
    if (std::ranges::all_of(values, is_whole))
      return make(std::vector<std::int64_t>(values.begin(), values.end()));
    return make(values);
  }
};

// One table: its beginning is looked at, then all rows are read.
class TableReader {
 public:
  TableReader(std::string_view text, const std::string& file, const CsvOptions& options,
              std::vector<std::string>& notes)
      : text_(text), file_(file), name_(printable(file)), options_(options), notes_(notes) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // byte order mark
    delimiter_ = options.delimiter ? options.delimiter : guess_delimiter(text_);
    decimal_commas_ = has_decimal_commas(text_, delimiter_, name_);
    if (decimal_commas_) notes_.push_back("numbers have decimal commas");
    if (!options.encoding.empty()) encoding_ = TableEncoding::parse(options.encoding);
    look_at_head();
    choose_label();
  }

  /// Whether columns are chosen, filled, scaled or made from words, now or when the model was
  /// trained.
  bool encodes() const {
    if (encoding_) return !encoding_->names_only;
    return options_.encoding.empty() && options_.encodes();
  }

  /// Numbers as they are.
  RawSplit read() {
    std::vector<std::size_t> chosen;
    if (encoding_) {
      chosen = feature_columns();
    } else {
      for (std::size_t i = 0; i < first_.size(); ++i)
        if (i != label_) chosen.push_back(i);
    }
    std::vector<float> features;
    std::vector<double> wide;  // in place of features, when float would round a whole number
    each_row([&](const std::vector<std::string_view>& fields, std::uint32_t line) {
      if (label_ != kNoLabel) take_label(fields[label_], line);
      for (const std::size_t i : chosen) {
        const double value = number_at(i, fields[i], line);
        const bool rounds = is_whole(value) && static_cast<float>(value) != value;
        if (rounds && wide.empty()) wide.assign(features.begin(), features.end());
        if (rounds || !wide.empty()) wide.push_back(value);
        features.push_back(static_cast<float>(value));
      }
    });
    const auto rows = static_cast<std::int64_t>(lines_.size());
    const Shape matrix{rows, static_cast<std::int64_t>(chosen.size())};
    RawSplit out;
    if (!chosen.empty()) {
      const auto role = ColumnRole::kInput;
      out.columns.push_back(wide.empty() ? make_column("x", file_, role, matrix, features, lines_)
                                         : make_column("x", file_, role, matrix, wide, lines_));
      for (const std::size_t i : chosen) {
        if (!header_.empty()) out.columns[0].field_names.push_back(header_[i]);
      }
      out.encoding = names_of(chosen);
    }
    add_labels(out);
    return out;
  }

  /// Chosen columns, encoded.
  RawSplit read_encoded() {
    const std::vector<std::size_t> chosen = feature_columns();
    TableCells cells;
    cells.file = file_;
    for (const std::size_t i : chosen) cells.names.push_back(name_of_column(i));
    cells.columns.resize(chosen.size());
    each_row([&](const std::vector<std::string_view>& fields, std::uint32_t line) {
      if (label_ != kNoLabel) take_label(fields[label_], line);
      for (std::size_t k = 0; k < chosen.size(); ++k)
        cells.columns[k].emplace_back(fields[chosen[k]]);
    });
    cells.lines = lines_;
    if (!encoding_) {
      std::vector<std::size_t> rows(lines_.size());
      std::iota(rows.begin(), rows.end(), std::size_t{0});
      if (options_.training_rows) rows = options_.training_rows(lines_.size());
      if (rows.size() < lines_.size())
        notes_.push_back(fmt::format("columns are fitted to {} of {} rows, which are trained on",
                                     rows.size(), lines_.size()));
      encoding_ = fit_encoding(cells, rows, options_);
      encoding_->has_header = !header_.empty();
      if (!header_.empty() && label_ != kNoLabel) encoding_->label = header_[label_];
    }
    check_size();
    const std::vector<float> values =
        encode_table(cells, *encoding_, options_.bad_cells_as_nan, notes_);
    const Shape matrix{static_cast<std::int64_t>(lines_.size()),
                       static_cast<std::int64_t>(encoding_->width())};
    RawSplit out;
    out.columns.push_back(make_column("x", file_, ColumnRole::kInput, matrix, values, lines_));
    out.columns[0].field_names = encoding_->field_names();
    out.columns[0].field_words = encoding_->field_words();
    out.encoding = encoding_->text();
    out.is_encoded = true;
    add_labels(out);
    return out;
  }

 private:
  /// A column of many words takes many numbers in each row.
  void check_size() const {
    constexpr std::size_t kLeast = std::size_t{384} << 20, kTimes = 64;
    const std::size_t bytes = lines_.size() * encoding_->width() * sizeof(float);
    PT_CHECK(
        bytes <= std::max(kLeast, kTimes * text_.size()), kData,
        "{} would take {} with {} numbers in each of {} rows; encode words with {} codes, or leave "
        "columns of many words out: {}",
        name_, bytes_text(bytes), encoding_->width(), lines_.size(), setting("categories"),
        setting("drop-columns"));
  }

  void look_at_head() {
    std::vector<std::string_view> fields;
    RecordReader peek(text_, delimiter_, name_, decimal_commas_);
    if (peek.next(fields)) first_.assign(fields.begin(), fields.end());
    first_line_ = peek.line();
    if (peek.next(fields)) below_.assign(fields.begin(), fields.end());
    PT_CHECK(!first_.empty(), kData, "{} has no rows", name_);
    // Gaps may hide that a column has numbers.
    for (int i = 0; i < kLookedAt && std::ranges::any_of(below_, is_missing) && peek.next(fields);
         ++i) {
      for (std::size_t c = 0; c < std::min(below_.size(), fields.size()); ++c) {
        if (is_missing(below_[c])) below_[c] = fields[c];
      }
    }
    const std::set<std::string_view> words(first_.begin(), first_.end());
    const bool named = encoding_ && encoding_->has_header &&
                       std::ranges::all_of(encoding_->columns, [&](const EncodedColumn& column) {
                         return words.contains(column.name);
                       });
    const bool has_header = options_.header == CsvOptions::Header::kYes || named ||
                            (options_.header == CsvOptions::Header::kAuto &&
                             (has_words_above_numbers(first_, below_) || is_alone() || is_named()));
    if (has_header) header_ = first_;
    // Numbers without names are taken by their places.
    if (encoding_ && encoding_->names_only && header_.empty()) {
      places_in_training_ = encoding_->columns.size();
      if (first_.size() == places_in_training_ + 1) label_in_training_ = encoding_->label_place;
      encoding_.reset();
    }
  }

  // Words with nothing below them, which are of no use as data.
  bool is_alone() const {
    return below_.empty() && !encoding_ && options_.categories == CsvOptions::Categories::kNone &&
           std::ranges::none_of(first_, [](const std::string& cell) {
             return number_in(cell).has_value() || is_missing(cell);
           });
  }

  // The first rows are read once more only where all are words.
  bool is_named() {
    const bool numbers = std::ranges::any_of(
        first_, [](const std::string& cell) { return number_in(cell).has_value(); });
    if (numbers || encoding_) return false;
    const std::vector<Record> head = first_records(text_, delimiter_, name_, /*comments=*/true);
    if (has_names_above_words(head, options_)) return true;
    if (differs_from_rows(head))
      notes_.push_back(
          fmt::format("the first row is read as data; if it has the columns' names, {} "
                      "with one of them says so",
                      setting("label-column")));
    return false;
  }

  void choose_label() {
    CsvOptions options = options_;
    if (encoding_ && !header_.empty()) choose_label_as_trained(options);
    // A table to predict may have the features only.
    if (encoding_ && header_.empty()) places_in_training_ = encoding_->columns.size();
    if (first_.size() == places_in_training_) options.label_column = "none";
    if (options.label_column.empty() && label_in_training_)
      options.label_column = fmt::format("{}", *label_in_training_);
    label_ = find_label(options, header_, first_.size(), name_, notes_);
    const bool in_first = header_.empty() && label_ < first_.size() && !is_missing(first_[label_]);
    const std::vector<std::string>& sample = in_first ? first_ : below_;
    labels_.are_words = label_ != kNoLabel && label_ < sample.size() && !number_in(sample[label_]);
    PT_CHECK(!labels_.are_words || !looks_like_amount(sample[label_]), kData,
             "{}: the label \"{}\" is not a number; write numbers without separators of thousands, "
             "currencies and percent signs",
             name_, printable(sample[label_]));
  }

  void choose_label_as_trained(CsvOptions& options) const {
    const auto has = [&](const std::string& name) { return std::ranges::count(header_, name) > 0; };
    std::string& wanted = options.label_column;
    const bool by_rule = wanted.empty();
    const bool by_place = !by_rule && wanted != "none" && !has(wanted) &&
                          (wanted == "last" || number_in(wanted).has_value());
    // A place is that of the table that was trained with.
    if ((by_rule || by_place) && !encoding_->label.empty() && has(encoding_->label)) {
      wanted = encoding_->label;
    } else if (by_rule) {
      const std::size_t other =
          encoding_->names_only ? label_beside(*encoding_, header_) : kNoLabel;
      wanted = other == kNoLabel ? "none" : fmt::format("{}", other);
    }
  }

  template <class Take>
  void each_row(const Take& take) {
    std::vector<std::string_view> fields;
    RecordReader reader(text_, delimiter_, name_, decimal_commas_);
    if (!header_.empty()) reader.next(fields);
    while (reader.next(fields)) {
      PT_CHECK(fields.size() == first_.size(), kData, "{} line {} has {} columns, line {} has {}",
               name_, reader.line(), fields.size(), first_line_, first_.size());
      lines_.push_back(reader.line());
      take(fields, reader.line());
    }
    if (reader.comments() > 0)
      notes_.push_back(
          fmt::format("{} line{} beginning with # passed over (\"#…\" in quotes is a cell)",
                      reader.comments(), reader.comments() == 1 ? "" : "s"));
    PT_CHECK(!lines_.empty(), kData, "{} has a header and no rows", name_);
  }

  void take_label(std::string_view cell, std::uint32_t line) {
    const bool may_lack = options_.label_may_be_missing;
    // The first rows, which tell words from numbers, may have had none.
    if (may_lack && labels_.size() == 0) labels_.are_words = !number_in(cell);
    if (may_lack ? is_missing(cell) : labels_.are_words && cell.empty()) {
      PT_CHECK(may_lack || options_.bad_cells_as_nan, kData, "{} line {} has no label", name_,
               line);
      labels_.gaps.push_back(lines_.size() - 1);
    } else if (labels_.are_words) {
      labels_.words.emplace_back(cell);
    } else {
      labels_.values.push_back(number_at(label_, cell, line));
    }
  }

  void add_labels(RawSplit& out) {
    if (label_ == kNoLabel || (options_.label_may_be_missing && labels_.size() == 0)) return;
    out.columns.push_back(labels_.column(file_, std::move(lines_)));
  }

  double number_at(std::size_t column, std::string_view cell, std::uint32_t line) const {
    std::optional<double> value = number_in(cell);
    if (!value && options_.bad_cells_as_nan) value = std::numeric_limits<double>::quiet_NaN();
    PT_CHECK(value, kData, "{} line {}, column {}{}: \"{}\" is not a number{}", name_, line,
             column + 1,
             header_.empty() ? std::string() : fmt::format(" ({})", printable(header_[column])),
             printable(cell), column == label_ ? "" : advice_for(column, cell));
    return *value;
  }

  // What makes a number of a cell that is none.
  std::string advice_for(std::size_t column, std::string_view cell) const {
    if (encoding_) return ", as it is in the training data";
    if (is_missing(cell))
      return fmt::format("; {} mean fills such cells, marker also marks them", setting("missing"));
    const std::string leave =
        fmt::format("leave the column out: {} {}", setting("drop-columns"),
                    header_.empty() ? fmt::format("{}", column) : printable(header_[column]));
    if (looks_like_date(cell)) return "; write dates as numbers, days for example, or " + leave;
    if (looks_like_amount(cell))
      return "; write numbers without separators of thousands, currencies and percent signs, or " +
             leave;
    return fmt::format(
        "; encode words with {} one-hot or codes, make tokens of texts with {} FILE, or {}",
        setting("categories"), setting("tokenizer"), leave);
  }

  std::string name_of_column(std::size_t i) const {
    return header_.empty() ? fmt::format("column {}", i) : header_[i];
  }

  // A name's second use takes the second column of that name.
  std::vector<std::size_t> columns_named(std::span<const std::string> names,
                                         const std::string& whose) const {
    std::vector<std::size_t> out;
    std::vector<bool> taken(first_.size());
    for (const std::string& name : names) {
      const std::vector<std::size_t>& all = all_named(name);
      const auto free = std::ranges::find_if(
          all, [&](std::size_t i) { return !taken[i] && (i != label_ || all.size() == 1); });
      PT_CHECK(free != all.end(), kData, "{} has no {} \"{}\"{}: {}", name_,
               all.empty() ? "column" : "further column", printable(name), whose,
               header_.empty()
                   ? fmt::format("it has {} columns, without a header", first_.size())
                   : fmt::format("its header is {}",
                                 printable(fmt::format("{}", fmt::join(header_, ", ")))));
      out.push_back(*free);
      taken[*free] = true;
    }
    return out;
  }
  /// The encoding of numbers as they are, which has the names of columns only, so that another
  /// table may have them in another order. Empty where the names do not tell them apart.
  std::string names_of(const std::vector<std::size_t>& chosen) const {
    constexpr std::size_t kMost = 4096;  // a trained file has all names
    if (header_.empty() || chosen.size() > kMost) return {};
    TableEncoding out;
    out.has_header = out.names_only = true;
    if (label_ != kNoLabel) {
      out.label = header_[label_];
      out.label_place = label_;
    }
    std::set<std::string> names;
    for (const std::size_t i : chosen) {
      if (!is_utf8(header_[i]) || !names.insert(header_[i]).second) return {};
      out.columns.emplace_back().name = header_[i];
    }
    return is_utf8(out.label) && !names.contains(out.label) ? out.text() : std::string();
  }
  /// A trained file names the columns that it was trained with.
  void check_names_suffice(const std::vector<std::size_t>& chosen) {
    if (header_.empty()) return;
    std::vector<std::string> names;
    for (const std::size_t column : chosen) names.push_back(name_of_column(column));
    const std::vector<std::size_t> found = columns_named(names, "");
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      PT_CHECK(found[i] == chosen[i], kData,
               "columns {} and {} of {} are both named \"{}\", by which a trained file could not "
               "tell them apart; rename one of them",
               std::min(found[i], chosen[i]), std::max(found[i], chosen[i]), name_,
               printable(names[i]));
    }
  }
  const std::vector<std::size_t>& all_named(const std::string& name) const {
    static const std::vector<std::size_t> none;
    const auto found = places_.find(name);
    return found == places_.end() ? none : found->second;
  }

  // In the order of the encoding, or of the table.
  std::vector<std::size_t> feature_columns() {
    for (std::size_t i = 0; i < first_.size(); ++i) places_[name_of_column(i)].push_back(i);
    // A name that is a number goes before the number of a column. An encoding has names.
    const bool by_number = !encoding_ || header_.empty();
    for (std::size_t i = 0; by_number && i < first_.size(); ++i)
      places_.try_emplace(fmt::format("{}", i), std::vector<std::size_t>{i});
    if (encoding_) {
      std::vector<std::string> names;
      for (const EncodedColumn& column : encoding_->columns) names.push_back(column.name);
      return columns_named(names, ", which the model was trained with");
    }
    for (const std::string& name : options_.features) {
      const auto given = std::ranges::count(options_.features, name);
      check_unique(name, static_cast<std::size_t>(given), label_, header_, name_);
    }
    std::vector<std::size_t> out =
        columns_named(options_.features, " for " + setting("feature-columns"));
    for (std::size_t i = 0; options_.features.empty() && i < first_.size(); ++i) {
      if (i != label_) out.push_back(i);
    }
    std::set<std::size_t> dropped;
    for (const std::string& name : options_.drop) {
      columns_named({&name, 1}, " for " + setting("drop-columns"));  // which must be there
      dropped.insert(all_named(name).begin(), all_named(name).end());
    }
    std::erase_if(out, [&](std::size_t i) { return dropped.contains(i); });
    PT_CHECK(!out.empty(), kUsage, "no column of {} is left as an input", name_);
    PT_CHECK(std::ranges::count(out, label_) == 0, kUsage,
             "column \"{}\" of {} is the label, and cannot be an input too",
             printable(name_of_column(label_)), name_);
    check_names_suffice(out);
    return out;
  }

  // Rows at the beginning in which a number tells a header from data.
  static constexpr int kLookedAt = 100;

  std::string_view text_;
  const std::string& file_;
  std::string name_;
  const CsvOptions& options_;
  std::vector<std::string>& notes_;
  char delimiter_ = ',';
  bool decimal_commas_ = false;
  std::vector<std::string> first_, header_;
  std::map<std::string, std::vector<std::size_t>> places_;  // of names and numbers
  std::vector<std::string> below_;  // the second row, with the values of later ones in its gaps
  std::uint32_t first_line_ = 0;
  std::size_t label_ = kNoLabel;
  std::size_t places_in_training_ = 0;  // features, where no names tell them; 0: not known
  std::optional<std::size_t> label_in_training_;
  Labels labels_;
  std::vector<std::uint32_t> lines_;
  std::optional<TableEncoding> encoding_;
};

}  // namespace

RawSplit parse_csv(std::string_view text, const std::string& file, const CsvOptions& options,
                   std::vector<std::string>& notes) {
  TableReader reader(text, file, options, notes);
  return reader.encodes() ? reader.read_encoded() : reader.read();
}

RawData read_csv(const std::string& path, const CsvOptions& options) {
  RawData out{path, "", {}, {}, {}};
  const TableFiles files = std::filesystem::is_directory(path)
                               ? table_files_in(path)
                               : TableFiles{only_file(path, "csv"), ""};
  PT_CHECK(!files.train.empty(), kData, "\"{}\" has no train.csv", printable(path));
  const auto read = [](const std::string& file, CsvOptions chosen,
                       std::vector<std::string>& notes) {
    if (!chosen.delimiter && bare_name(file).ends_with(".tsv")) chosen.delimiter = '\t';
    const FileBytes content = FileBytes::open_text(file);
    return parse_csv(content.text(), file == "-" ? "standard input" : file, chosen, notes);
  };
  out.train = read(files.train, options, out.notes);
  std::vector<std::string> ignored;
  if (!files.validation.empty()) {
    CsvOptions as_trained = options;
    as_trained.encoding = out.train.encoding;
    try {
      out.validation = read(files.validation, as_trained, ignored);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData || out.train.is_encoded) throw;
      // In competitions, test.csv lacks columns: how it fits is seen later.
      as_trained.encoding.clear();
      out.validation = read(files.validation, as_trained, ignored);
    }
  }
  // Encoded columns have names also without a header.
  const bool header = out.train.encoding.empty()
                          ? !out.train.columns.empty() && !out.train.columns[0].field_names.empty()
                          : TableEncoding::parse(out.train.encoding).has_header;
  out.format = fmt::format("CSV{}", header ? ", with a header" : ", without a header");
  return out;
}

}  // namespace pipetrain
