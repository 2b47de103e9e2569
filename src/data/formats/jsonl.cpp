// JSON Lines: {"x": [0.5, 1], "y": 3} or {"input_ids": [5, 9, 2], "labels": [5, 9, 2]}, one object
// a line.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/files/text_lines.h"
#include "data/rows/class_labels.h"
#include "data/rows/json_rows.h"
#include "data/rows/ragged_rows.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

constexpr std::size_t kMostKeys = 256;

// Takes the values of one line's object; nested objects are passed over.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit LineHandler(std::vector<RaggedRows>& rows) : rows_(rows) {}

  void begin_line() {
    depth_ = objects_ = 0;
    current_ = nullptr;
    top_ = false;
    problem.clear();
  }

  bool null() override {
    if (objects_ == 0) return complain("not a JSON object");
    if (pass()) return true;
    if (depth_ == 0 && is_label(key_) && (may_lack_labels || skips_gaps)) {
      if (!may_lack_labels) gaps[key_].push_back(rows_before);
      return true;
    }
    return complain(fmt::format("\"{}\" is null", printable(key_)));
  }
  bool boolean(bool value) override { return pass() || number(std::int64_t{value}); }
  bool number_integer(number_integer_t value) override { return pass() || number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return pass() || (value <= INT64_MAX ? number(static_cast<std::int64_t>(value))
                                         : number(static_cast<double>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (pass()) return true;
    // As in a table, whole numbers are classes however they are written.
    const bool whole = depth_ == 0 && std::nearbyint(value) == value && std::fabs(value) < 0x1p53;
    return whole && is_label(key_) ? number(static_cast<std::int64_t>(value)) : number(value);
  }
  bool string(string_t& value) override {
    if (pass()) return true;
    if (objects_ == 0) return complain("not a JSON object");
    if (depth_ > 0) return complain(fmt::format("\"{}\" has strings in a list", printable(key_)));
    current_->add(std::string_view(value));
    return finish_value(Shape{});
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (++objects_ == 1) {
      top_ = true;
      return true;
    }
    return depth_ == 0 || objects_ > 2 ||
           complain(fmt::format("\"{}\" has objects in a list", printable(key_)));
  }
  bool end_object() override {
    --objects_;
    return true;
  }
  bool key(string_t& name) override {
    if (objects_ > 1) return true;
    key_ = name;
    const auto found =
        std::ranges::find_if(rows_, [&](const RaggedRows& each) { return each.name() == name; });
    current_ = found == rows_.end() ? nullptr : &*found;
    if (!current_ && first_line) {
      if (rows_.size() == kMostKeys) return complain(fmt::format("more than {} keys", kMostKeys));
      rows_.emplace_back(name);
      current_ = &rows_.back();
      rows_before = 0;
    }
    if (current_ && rows_of(*current_) != rows_before) {
      return complain(fmt::format("\"{}\" occurs twice", printable(name)));
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (objects_ != 1 || !current_) return objects_ > 0 || complain("not a JSON object");
    const bool beside_number =
        depth_ > 0 && counts_[depth_ - 1] > 0 && depth_ < kMostAxes && extents_[depth_] < 0;
    if (beside_number || (depth_ > 0 && number_depth_ > 0 && depth_ >= number_depth_)) {
      return complain(fmt::format("\"{}\" mixes numbers and lists", printable(key_)));
    }
    if (depth_ > 0) ++counts_[depth_ - 1];
    if (depth_ == kMostAxes) return complain("lists are nested too deeply");
    counts_[depth_] = 0;
    if (depth_ == 0) {
      std::fill_n(extents_, kMostAxes, -1);
      number_depth_ = 0;
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (objects_ != 1 || !current_) return true;
    --depth_;
    std::int64_t& extent = extents_[depth_];
    if (extent >= 0 && extent != counts_[depth_]) {
      return complain(fmt::format("\"{}\" has lists of several lengths", printable(key_)));
    }
    extent = counts_[depth_];
    if (depth_ > 0) return true;
    std::vector<std::int64_t> dims;
    for (std::size_t axis = 0; axis < kMostAxes && extents_[axis] >= 0; ++axis) {
      dims.push_back(extents_[axis]);
    }
    return finish_value(Shape(std::move(dims)));
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kBeyondDouble = 406;
    if (error.id == kBeyondDouble)
      return complain(
          fmt::format("\"{}\" has {}, which is too large", printable(key_), printable(token)));
    return complain(fmt::format("invalid JSON at character {}", position));
  }

  static bool is_label(const std::string& name) { return role_of_name(name) == ColumnRole::kLabel; }
  bool is_object() const { return top_; }
  /// With those of its lines that have no label.
  std::size_t rows_of(const RaggedRows& each) const {
    const auto found = gaps.find(each.name());
    return each.rows() + (found == gaps.end() ? 0 : found->second.size());
  }
  std::string problem;
  bool may_lack_labels = false;                          // which are none then
  bool skips_gaps = false;                               // in labels: their samples are skipped
  std::map<std::string, std::vector<std::size_t>> gaps;  // by name: lines without a label
  bool first_line = true;
  std::size_t rows_before = 0;

 private:
  static constexpr std::size_t kMostAxes = 6;

  // Whether a value is not ours: in a nested object, or under a name that the first line lacks.
  bool pass() const { return objects_ > 1 || (objects_ == 1 && !current_); }
  bool complain(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  template <class Value>
  bool number(Value value) {
    if (objects_ == 0) return complain("not a JSON object");
    if (depth_ > 0) {
      // A number beside a list, or lists of several depths.
      if (depth_ < kMostAxes && extents_[depth_] >= 0)
        return complain(fmt::format("\"{}\" mixes numbers and lists", printable(key_)));
      ++counts_[depth_ - 1];
      number_depth_ = depth_;
    }
    current_->add(value);
    return depth_ > 0 || finish_value(Shape{});
  }
  bool finish_value(const Shape& shape) {
    const std::string wrong = current_->end_row(shape);
    return wrong.empty() || complain(wrong);
  }

  std::vector<RaggedRows>& rows_;
  RaggedRows* current_ = nullptr;
  std::string key_;
  std::size_t objects_ = 0, depth_ = 0;
  std::size_t number_depth_ = 0;  // of the numbers of this value; 0: none so far
  bool top_ = false;
  std::int64_t counts_[kMostAxes] = {};
  std::int64_t extents_[kMostAxes] = {};
};

/// Labels with the lines that have none.
void add_gaps(RawColumn& column, const std::map<std::string, std::vector<std::size_t>>& gaps) {
  const auto found = gaps.find(column.name);
  if (found == gaps.end()) return;
  PT_CHECK(column.values.shape().rank() == 1, kData,
           "\"{}\" of {} has lists, which no line may lack", printable(column.name),
           column.locate(found->second.front()));
  column.values = with_unlabelled(column.values, found->second);
}

RawSplit read_files(const std::vector<std::string>& files, const std::string& path,
                    std::vector<std::string>& notes, const RowLengths& lengths,
                    std::int64_t ignored_label, bool label_may_be_missing, bool one_row_per_text,
                    bool skips_gaps) {
  std::vector<RaggedRows> rows;
  rows.reserve(kMostKeys);
  std::vector<std::uint32_t> lines;
  LineHandler handler(rows);
  handler.may_lack_labels = label_may_be_missing;
  handler.skips_gaps = skips_gaps;
  for (const std::string& file : files) {
    const FileBytes content = FileBytes::open_text(file);
    for (TextLines text(content.text()); text.next_with_content();) {
      const std::string_view line = text.line();
      handler.begin_line();
      handler.first_line = lines.empty();
      handler.rows_before = lines.size();
      const bool good = nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
      const auto place = [&] { return fmt::format("{} line {}", printable(file), text.number()); };
      PT_CHECK(good, kData, "{}: {}", place(), handler.problem);
      PT_CHECK(handler.is_object(), kData, "{}: not a JSON object", place());
      lines.push_back(text.number());
      // A first line's value that was passed over (a nested object) leaves no row.
      if (lines.size() == 1) {
        std::erase_if(rows, [&](const RaggedRows& each) { return handler.rows_of(each) == 0; });
        PT_CHECK(!rows.empty(), kData, "{}: no numbers and no strings", place());
      }
      // Labels that some lines lack are none.
      std::erase_if(rows, [&](const RaggedRows& each) {
        return label_may_be_missing && each.rows() < lines.size() &&
               LineHandler::is_label(each.name());
      });
      for (const RaggedRows& each : rows) {
        if (skips_gaps && handler.rows_of(each) < lines.size() &&
            LineHandler::is_label(each.name()))
          handler.gaps[each.name()].push_back(lines.size() - 1);
        PT_CHECK(handler.rows_of(each) == lines.size(), kData,
                 "{}: \"{}\" is missing, which the first line has", place(),
                 printable(each.name()));
      }
    }
  }
  PT_CHECK(!lines.empty(), kData, "\"{}\" has no lines", printable(path));
  std::erase_if(rows, [](const RaggedRows& each) { return each.rows() == 0; });
  if (files.size() > 1) lines.clear();
  RawSplit out = columns_of(std::move(rows), files.size() == 1 ? files[0] : path, lines, notes,
                            lengths, ignored_label, /*alone=*/true, one_row_per_text);
  for (RawColumn& column : out.columns) {
    column.may_be_words = column.role == ColumnRole::kLabel && column.class_names.empty() &&
                          column.values.shape().rank() == 1;
    add_gaps(column, handler.gaps);
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> label_in_json(std::string_view text, const std::string& name) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  PT_CHECK(!json.is_discarded(), kData, "{} is not JSON", name);
  for (const char* key : {"label", "cls", "class", "y"}) {
    if (json.is_object() && json.contains(key) && json[key].is_number_integer()) {
      return json[key].get<std::int64_t>();
    }
  }
  return std::nullopt;
}

RawData read_jsonl(const std::string& path, const RowLengths& lengths, std::int64_t ignored_label,
                   bool label_may_be_missing, bool one_row_per_text, bool skips_gaps) {
  RawData out{path, "JSON Lines", {}, {}, {}};
  const auto [train, validation] = divide_files(list_files(path, is_jsonl_name), out.notes);
  PT_CHECK(!train.empty(), kData, "\"{}\" has no *.jsonl", printable(path));
  out.train = read_files(train, path, out.notes, lengths, ignored_label, label_may_be_missing,
                         one_row_per_text, skips_gaps);
  if (!validation.empty())
    out.validation = read_files(validation, path, out.notes, lengths_beside(out.train, lengths),
                                ignored_label, label_may_be_missing, one_row_per_text, skips_gaps);
  return out;
}

}  // namespace pipetrain
