#include "data/rows/ragged_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/setting.h"
#include "data/rows/class_labels.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

constexpr const char* kMaskName = "attention_mask";

bool is_token_name(std::string_view name) {
  return name == "input_ids" || name == kMaskName || name == "token_type_ids" || name == "labels" ||
         name.starts_with("decoder_");
}

}  // namespace

void RaggedRows::add(std::int64_t value) {
  row_kind_ = std::max(row_kind_, Kind::kWhole);
  if (kind_ == Kind::kReal) {
    real_.push_back(static_cast<float>(value));
  } else {
    kind_ = std::max(kind_, Kind::kWhole);
    whole_.push_back(value);
  }
}

void RaggedRows::add(double value) {
  row_kind_ = std::max(row_kind_, Kind::kReal);
  if (kind_ != Kind::kReal) {
    real_.assign(whole_.begin(), whole_.end());
    whole_ = {};
    kind_ = Kind::kReal;
  }
  real_.push_back(static_cast<float>(value));
}

void RaggedRows::add(std::string_view word) {
  kind_ = row_kind_ = Kind::kWord;
  words_.emplace_back(word);
}

std::string RaggedRows::end_row(const Shape& shape) {
  const bool words = kind_ == Kind::kWord;
  if (!words_.empty() && (!words || !whole_.empty() || !real_.empty())) {
    return fmt::format("\"{}\" is a string in some rows and a number in others", printable(name_));
  }
  if (rows() == 0) shape_ = shape;
  const auto inner = [](const Shape& each) {
    return std::vector<std::int64_t>(each.begin() + (each.rank() > 0 ? 1 : 0), each.end());
  };
  if (shape.rank() != shape_.rank() || (shape.count() > 0 && inner(shape) != inner(shape_))) {
    return fmt::format("\"{}\" has shape {}, the first has {}", printable(name_), shape.text(),
                       shape_.text());
  }
  const std::size_t end = words ? words_.size() : std::max(whole_.size(), real_.size());
  if (end - begin(rows()) != static_cast<std::size_t>(shape.count())) {
    return fmt::format("\"{}\" mixes numbers and lists", printable(name_));
  }
  ends_.push_back(end);
  row_kind_ = Kind::kNone;
  return {};
}

bool RaggedRows::become_lists() {
  if (kind_ != Kind::kWhole || shape_.rank() > 0) return false;
  shape_ = Shape{1};
  return true;
}

bool RaggedRows::same_length() const {
  for (std::size_t row = 0; row < rows(); ++row) {
    if (ends_[row] - begin(row) != ends_[0]) return false;
  }
  return true;
}

std::size_t RaggedRows::longest() const {
  std::size_t most = 0;
  for (std::size_t row = 0; row < rows(); ++row) most = std::max(most, ends_[row] - begin(row));
  return most;
}

// Rows of `most` values each, filled up.
HostTensor RaggedRows::values(std::size_t most, std::int64_t filling) const {
  std::vector<std::int64_t> dims = shape_.dims();
  const auto inner =
      static_cast<std::size_t>(shape_.rank() > 1 ? shape_.count(1, shape_.rank()) : 1);
  if (!dims.empty()) dims[0] = inner > 0 ? static_cast<std::int64_t>(most / inner) : 0;
  dims.insert(dims.begin(), static_cast<std::int64_t>(rows()));
  const bool real = kind_ == Kind::kReal;
  HostTensor out(
      {real ? DType::kFloat32 : DType::kInt64, Shape(std::move(dims)), Layout::kRowMajor});
  if (out.type().count() == 0) return out;
  for (std::size_t row = 0; row < rows(); ++row) {
    const std::size_t first = begin(row), length = ends_[row] - first;
    for (std::size_t i = 0; i < most; ++i) {
      const bool inside = i < length;
      if (real) {
        out.span<float>()[row * most + i] = inside ? real_[first + i] : static_cast<float>(filling);
      } else {
        out.span<std::int64_t>()[row * most + i] = inside ? whole_[first + i] : filling;
      }
    }
  }
  return out;
}

std::vector<std::size_t> RaggedRows::row_values() const {
  std::vector<std::size_t> out;
  for (std::size_t row = 0; row < rows(); ++row) out.push_back(ends_[row] - begin(row));
  return out;
}

// 1 where a row has a value.
RawColumn RaggedRows::mask(std::size_t most, const std::string& file,
                           const std::vector<std::uint32_t>& lines) const {
  HostTensor values(
      {DType::kInt8, Shape{static_cast<std::int64_t>(rows()), static_cast<std::int64_t>(most)}});
  for (std::size_t row = 0; row < rows(); ++row)
    std::fill_n(&values.span<std::int8_t>()[row * most], ends_[row] - begin(row), std::int8_t{1});
  RawColumn out{kMaskName, std::move(values), file, ColumnRole::kInput, {}, {}, lines};
  out.is_optional = true;
  return out;
}

RawSplit RaggedRows::stream(const std::string& file, std::vector<std::string>& notes) const {
  RawSplit out;
  const auto one_stream = [&](FileBytes content, DType dtype) {
    std::vector<TokenShard> shards;
    shards.push_back({file, std::move(content), dtype, 0});
    out.shards = std::make_shared<const std::vector<TokenShard>>(std::move(shards));
  };
  // Texts: their bytes, with a line end after each.
  if (kind_ == Kind::kWord && role_of_name(name_) != ColumnRole::kLabel) {
    std::string text;
    for (const std::string& word : words_) text += word + "\n";
    notes.push_back(
        fmt::format("the {} texts \"{}\" as bytes, one after the other", rows(), printable(name_)));
    one_stream(FileBytes(std::move(text)), DType::kUint8);
  }
  // Tokens in rows of several lengths.
  if (is_list() && !same_length()) {
    const auto bad =
        std::ranges::find_if(whole_, [](std::int64_t id) { return id < 0 || id > UINT32_MAX; });
    PT_CHECK(bad == whole_.end(), kData, "\"{}\" has {}, which is not a token", printable(file),
             bad == whole_.end() ? 0 : *bad);
    const std::vector<std::uint32_t> ids(whole_.begin(), whole_.end());
    notes.push_back(
        fmt::format("rows of several lengths, read as one stream of {} tokens", ids.size()));
    one_stream(FileBytes(std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 4)),
               DType::kUint32);
  }
  return out;
}

// Words as numbers of classes, in the order of the words.
void RaggedRows::add_classes(RawColumn& column) const {
  column.class_names = words_;
  std::ranges::sort(column.class_names);
  column.class_names.erase(std::unique(column.class_names.begin(), column.class_names.end()),
                           column.class_names.end());
  std::vector<std::int64_t> classes;
  for (const std::string& name : column.class_names) check_class_name(name);
  for (const std::string& word : words_) {
    classes.push_back(std::ranges::lower_bound(column.class_names, word) -
                      column.class_names.begin());
  }
  column.values =
      HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(classes.size())}, classes);
}

const RaggedRows* RaggedRows::tokens_in(const std::vector<RaggedRows>& all) {
  const RaggedRows* best = nullptr;
  int best_rank = 0;
  for (const RaggedRows& each : all) {
    if (!each.is_list() || role_of_name(each.name_) == ColumnRole::kLabel) continue;
    const int rank = each.name_ == "input_ids"            ? 4
                     : each.name_.starts_with("decoder_") ? 1
                     : each.same_length()                 ? 2
                                                          : 3;
    if (rank <= best_rank) continue;
    best = &each;
    best_rank = rank;
  }
  return best;
}

std::vector<std::size_t> RaggedRows::wanted_lengths(const std::vector<RaggedRows>& all,
                                                    const RaggedRows* tokens,
                                                    const RowLengths& lengths) {
  std::vector<std::size_t> out;
  for (const RaggedRows& each : all) {
    std::size_t wanted = 0;
    const auto take = [&](const std::string& name) {
      const auto found = lengths.others.find(name);
      if (wanted == 0 && found != lengths.others.end()) wanted = found->second;
    };
    if (each.is_list()) {
      take(each.name_);
      // Others of the same lengths, row by row, go with them; labels with a decoder, if it has
      // them.
      const auto takes = [&](const RaggedRows& other) {
        return wanted == 0 && lengths.others.contains(other.name_) && other.is_list() &&
               other.ends_ == each.ends_;
      };
      if (role_of_name(each.name_) == ColumnRole::kLabel) {
        for (const RaggedRows& other : all)
          if (other.name_.starts_with("decoder_") && takes(other)) take(other.name_);
      }
      if (wanted == 0 && tokens && each.ends_ == tokens->ends_) wanted = lengths.tokens;
      for (const RaggedRows& other : all) {
        if (takes(other)) take(other.name_);
      }
    }
    out.push_back(wanted);
  }
  return out;
}

RowLengths lengths_beside(const RawSplit& training, RowLengths lengths) {
  lengths.tokens = std::max(lengths.tokens, training.row_length);
  for (const RawColumn& column : training.columns) {
    const bool are_rows =
        !column.source && !is_float(column.dtype()) && column.values.shape().rank() == 2;
    const bool are_tokens = is_token_name(column.name) && column.role != ColumnRole::kLabel;
    if (are_rows && (are_tokens || !column.row_values.empty()))
      lengths.others[column.name] = static_cast<std::size_t>(column.sample_shape()[0]);
  }
  return lengths;
}

bool pads_too_much(std::size_t rows, std::size_t longest, std::size_t values) {
  constexpr std::size_t kTimes = 64, kLeast = std::size_t{1} << 26;
  return rows > 0 && longest > (kTimes * values + kLeast) / rows;
}

RawSplit columns_of(std::vector<RaggedRows> all, const std::string& file,
                    const std::vector<std::uint32_t>& lines, std::vector<std::string>& notes,
                    const RowLengths& lengths, std::int64_t ignored_label, bool alone,
                    bool one_sample_each) {
  RawSplit out;
  PT_CHECK(!all.empty() && all[0].rows() > 0, kData, "\"{}\" has no rows", printable(file));
  using Kind = RaggedRows::Kind;
  const bool stay_rows = one_sample_each && all[0].is_list();
  if (all.size() == 1 && alone && !stay_rows) out = all[0].stream(file, notes);
  if (out.shards) return out;
  const bool has_mask =
      std::ranges::any_of(all, [](const RaggedRows& each) { return each.name_ == kMaskName; });
  std::optional<RawColumn> mask;
  const bool by_name = all.size() > 1 || !alone || one_sample_each;
  const RaggedRows* const tokens = RaggedRows::tokens_in(all);
  const std::vector<std::size_t> wanted = RaggedRows::wanted_lengths(all, tokens, lengths);
  for (RaggedRows& each : all) {
    const ColumnRole role = role_of_name(each.name_);
    RawColumn column{each.name_, {}, file, role, {}, {}, lines};
    if (each.kind_ == Kind::kWord) {
      if (role != ColumnRole::kLabel) {
        out.leaves_out_texts = true;
        notes.push_back(
            fmt::format("\"{}\" is left out: strings that are not labels (texts need {} FILE)",
                        printable(each.name_), setting("tokenizer")));
        continue;
      }
      each.add_classes(column);
      out.columns.push_back(std::move(column));
      continue;
    }
    const std::int64_t filling = role == ColumnRole::kLabel ? ignored_label : 0;
    std::size_t most = each.longest();
    // Rows that are equally long by chance are padded like others of tokens.
    const std::size_t length = wanted[static_cast<std::size_t>(&each - all.data())];
    const bool is_short =
        most < length && (!each.same_length() || (by_name && is_token_name(each.name_)));
    if (is_short) most = length;
    const bool same = each.same_length() && !is_short;
    if (&each == tokens) out.row_length = most;
    PT_CHECK(same || each.kind_ == Kind::kWhole, kData,
             "\"{}\": \"{}\" has rows of several lengths, up to {}", printable(file),
             printable(each.name_), most);
    PT_CHECK(same || !pads_too_much(each.rows(), most, each.whole_.size()), kData,
             "\"{}\": the lengths of the rows of \"{}\" differ too much for padding, up to {}",
             printable(file), printable(each.name_), most);
    if (!same) {
      notes.push_back(fmt::format("rows of \"{}\" are padded to {} with {}", printable(each.name_),
                                  most, filling));
      column.row_values = each.row_values();
      if (&each == tokens) mask = each.mask(most, file, lines);
    }
    column.values = each.values(most, filling);
    each = {};  // memory
    out.columns.push_back(std::move(column));
  }
  PT_CHECK(!out.columns.empty(), kData, "\"{}\" has no numbers (texts need {} FILE)",
           printable(file), setting("tokenizer"));
  if (mask && !has_mask) {
    notes.push_back("attention_mask is made from the lengths of the rows");
    out.columns.push_back(*std::move(mask));
  }
  return out;
}

}  // namespace pipetrain
