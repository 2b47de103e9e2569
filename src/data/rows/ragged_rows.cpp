#include "data/rows/ragged_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/rows/readers.h"

namespace pipetrain {

namespace {

// What the loss passes over by default, as in PyTorch.
constexpr std::int64_t kIgnored = -100;

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

bool RaggedRows::same_length() const {
  for (std::size_t row = 0; row < rows(); ++row) {
    if (ends_[row] - begin(row) != ends_[0]) return false;
  }
  return true;
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

RawSplit columns_of(std::vector<RaggedRows> all, const std::string& file,
                    const std::vector<std::uint32_t>& lines, std::vector<std::string>& notes) {
  RawSplit out;
  PT_CHECK(!all.empty() && all[0].rows() > 0, kData, "\"{}\" has no rows", printable(file));
  const auto one_stream = [&](FileBytes content, DType dtype) {
    std::vector<TokenShard> shards;
    shards.push_back({file, std::move(content), dtype, 0});
    out.shards = std::make_shared<const std::vector<TokenShard>>(std::move(shards));
  };
  using Kind = RaggedRows::Kind;
  // Texts alone: their bytes, with a line end after each.
  if (all.size() == 1 && all[0].kind_ == Kind::kWord &&
      role_of_name(all[0].name_) != ColumnRole::kLabel) {
    std::string text;
    for (const std::string& word : all[0].words_) text += word + "\n";
    notes.push_back(fmt::format("the {} texts \"{}\" as bytes, one after the other", all[0].rows(),
                                printable(all[0].name_)));
    one_stream(FileBytes(std::move(text)), DType::kUint8);
    return out;
  }
  // Tokens alone, in rows of several lengths.
  if (all.size() == 1 && all[0].kind_ == Kind::kWhole && all[0].shape_.rank() == 1 &&
      !all[0].same_length()) {
    const auto bad = std::ranges::find_if(
        all[0].whole_, [](std::int64_t id) { return id < 0 || id > UINT32_MAX; });
    PT_CHECK(bad == all[0].whole_.end(), kData, "\"{}\" has {}, which is not a token",
             printable(file), bad == all[0].whole_.end() ? 0 : *bad);
    const std::vector<std::uint32_t> ids(all[0].whole_.begin(), all[0].whole_.end());
    notes.push_back(
        fmt::format("rows of several lengths, read as one stream of {} tokens", ids.size()));
    one_stream(FileBytes(std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 4)),
               DType::kUint32);
    return out;
  }
  for (RaggedRows& each : all) {
    const ColumnRole role = role_of_name(each.name_);
    RawColumn column{each.name_, {}, file, role, {}, {}, lines};
    if (each.kind_ == Kind::kWord) {
      if (role != ColumnRole::kLabel) {
        notes.push_back(
            fmt::format("\"{}\" is left out: strings that are not labels", printable(each.name_)));
        continue;
      }
      column.class_names = each.words_;
      std::ranges::sort(column.class_names);
      column.class_names.erase(std::unique(column.class_names.begin(), column.class_names.end()),
                               column.class_names.end());
      std::vector<std::int64_t> classes;
      for (const std::string& word : each.words_) {
        classes.push_back(std::ranges::lower_bound(column.class_names, word) -
                          column.class_names.begin());
      }
      column.values =
          HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(classes.size())}, classes);
      out.columns.push_back(std::move(column));
      continue;
    }
    std::size_t most = 0;
    for (std::size_t row = 0; row < each.rows(); ++row) {
      most = std::max(most, each.ends_[row] - each.begin(row));
    }
    const bool same = each.same_length();
    PT_CHECK(same || each.kind_ == Kind::kWhole, kData,
             "\"{}\": \"{}\" has rows of several lengths, up to {}", printable(file),
             printable(each.name_), most);
    PT_CHECK(same || most * each.rows() <= 64 * each.whole_.size() + (std::size_t{1} << 26), kData,
             "\"{}\": the lengths of the rows of \"{}\" differ too much for padding, up to {}",
             printable(file), printable(each.name_), most);
    if (!same) {
      notes.push_back(fmt::format("rows of \"{}\" are padded to {} with {}", printable(each.name_),
                                  most, role == ColumnRole::kLabel ? kIgnored : 0));
    }
    column.values = each.values(most, role == ColumnRole::kLabel ? kIgnored : 0);
    each = {};  // memory
    out.columns.push_back(std::move(column));
  }
  PT_CHECK(!out.columns.empty(), kData, "\"{}\" has no numbers", printable(file));
  return out;
}

}  // namespace pipetrain
