// What a source of data has, for `data inspect`: arrays, classes and columns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "data/loading/open_data.h"
#include "data/rows/element.h"
#include "data/rows/row_source.h"

namespace pipetrain {

namespace {

constexpr std::size_t kMostClasses = 1000, kShownClasses = 20, kMostFields = 64, kShownWords = 5;

// How many samples each class has.
std::string classes_of(const RawColumn& labels) {
  if (labels.source || is_float(labels.dtype()) || labels.sample_shape().count() != 1) return {};
  std::map<std::int64_t, std::size_t> counts;
  for (const std::int64_t number : labels.values.to_int64s()) {
    ++counts[number];
    if (counts.size() > kMostClasses) return {};
  }
  std::string out = fmt::format("    {} classes:", counts.size());
  std::size_t shown = 0;
  for (const auto& [number, count] : counts) {
    if (shown++ == kShownClasses) return out + ", …\n";
    const auto index = static_cast<std::size_t>(number);
    const bool named = number >= 0 && index < labels.class_names.size();
    out +=
        fmt::format("{} {} {} ({:.1f} %)", shown > 1 ? "," : "",
                    named ? printable(labels.class_names[index]) : fmt::format("{}", number), count,
                    100 * static_cast<double>(count) / static_cast<double>(labels.rows()));
  }
  return out + "\n";
}

// The words of a column that are numbered, the first of them.
std::string words_of(const std::string& name, const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < std::min(words.size(), kShownWords); ++i)
    out += fmt::format("{}{}", i ? ", " : "", printable(words[i]));
  return fmt::format("    {:<28}{:>13}  {}{}\n", printable(name),
                     fmt::format("{} words", words.size()), out,
                     words.size() > kShownWords ? ", …" : "");
}

// The columns of a table: the least, mean and largest number, or the words.
std::string fields_of(const RawColumn& table) {
  const Shape shape = table.sample_shape();
  const std::size_t width = static_cast<std::size_t>(shape.count());
  if (shape.rank() != 1 || width > kMostFields || table.field_names.size() != width) return {};
  const std::vector<double> values = table.values.to_doubles();
  std::string out =
      fmt::format("    {:<28}{:>13}{:>13}{:>13}\n", "column", "least", "mean", "largest");
  for (std::size_t c = 0; c < width; ++c) {
    if (c < table.field_words.size() && !table.field_words[c].empty()) {
      out += words_of(table.field_names[c], table.field_words[c]);
      continue;
    }
    double low = INFINITY, high = -INFINITY, sum = 0;
    for (std::size_t i = c; i < values.size(); i += width) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
      sum += values[i];
    }
    out += fmt::format("    {:<28}{:>13.6g}{:>13.6g}{:>13.6g}\n", printable(table.field_names[c]),
                       low, sum / static_cast<double>(table.rows()), high);
  }
  return out;
}

}  // namespace

std::string describe(const RawData& raw) {
  std::string out = fmt::format("{}: {}\n", printable(raw.path), raw.format);
  const auto part = [&](const char* name, const RawSplit& split) {
    if (split.empty()) return;
    if (split.shards) {
      std::size_t tokens = 0;
      double largest = 0;
      for (const TokenShard& shard : *split.shards) {
        tokens += shard.tokens();
        const auto bytes = shard.content.bytes().subspan(shard.header_bytes);
        largest = std::max(largest, range_of(bytes.data(), shard.dtype, shard.tokens()).high);
        shard.content.check();
      }
      out += fmt::format("  {}: {} tokens in {} file{}, the largest id is {:.0f}\n", name, tokens,
                         split.shards->size(), split.shards->size() == 1 ? "" : "s", largest);
      return;
    }
    for (const RawColumn& column : split.columns) {
      if (column.source) {
        out += fmt::format("  {}: {} samples of \"{}\" {} {}, decoded on the fly\n", name,
                           column.rows(), printable(column.name), name_of(column.dtype()),
                           column.sample_shape().text());
        continue;
      }
      const std::size_t first =
          column.rows() ? static_cast<std::size_t>(column.sample_shape().count()) : 0;
      const ValueRange range = range_of(column.values.view().data, column.values.dtype(), first);
      out += fmt::format(
          "  {}: {} samples of \"{}\" {} {}, values of the first from {:.6g} to {:.6g}{}\n", name,
          column.rows(), printable(column.name), name_of(column.values.dtype()),
          column.sample_shape().text(), range.low, range.high,
          column.role == ColumnRole::kLabel ? " (labels)" : "");
      out += column.role == ColumnRole::kLabel ? classes_of(column) : fields_of(column);
    }
  };
  part("train", raw.train);
  part("validation", raw.validation);
  for (const std::string& note : raw.notes) out += "  " + note + "\n";
  return out;
}

}  // namespace pipetrain
