// Texts as tokens, made once when they are read: one stream of all texts, each with the end-of-text
// token behind it, or a row for each text.
//
//   packed   a b c . d e . f g h i .     samples (a b c .) (d e . f) (g h i .)
//   padded   a b c .  d e . _  f g h i   attention_mask 1 1 1 1  1 1 1 0  1 1 1 1
#include "data/formats/texts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/setting.h"
#include "data/formats/text_table.h"
#include "data/rows/ragged_rows.h"
#include "text/tokenizer.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;
using TextLayout = TextOptions::Layout;

constexpr std::size_t kMostTokens = std::size_t{1} << 20;  // of a sample
constexpr std::size_t kTextsAtOnce = 64;

class TextReader {
 public:
  TextReader(const TokenizerFile& file, const TextOptions& options)
      : tokenizer_(*file.tokenizer), options_(options) {
    end_ = tokenizer_.end_of_text();
    if (options.end_of_text.empty()) return;
    end_ = tokenizer_.find(options.end_of_text);
    PT_CHECK(end_, kData, "\"{}\" has no token \"{}\"", printable(options.tokenizer),
             printable(options.end_of_text));
  }

  /// One sample after the other, of all files.
  RawSplit pack(const std::vector<TextTable>& tables, const std::string& path) {
    const bool narrow = tokenizer_.vocabulary() <= 1 + std::numeric_limits<std::uint16_t>::max();
    std::string bytes;
    for (const TextTable& table : tables) {
      std::vector<TokenIds> firsts = encode(table, /*seconds=*/false), seconds;
      if (!table.seconds.empty()) seconds = encode(table, /*seconds=*/true);
      for (std::size_t row = 0; row < firsts.size(); ++row) {
        std::optional<TokenIds> second;
        if (!seconds.empty()) second = std::move(seconds[row]);
        const TokenIds whole =
            with_end(tokenizer_.assemble(std::move(firsts[row]), std::move(second), SIZE_MAX).ids);
        tokens_ += whole.size();
        for (const TokenId id : whole)
          bytes.append(reinterpret_cast<const char*>(&id), narrow ? 2 : 4);
      }
    }
    RawSplit out;
    if (bytes.empty()) return out;
    std::vector<TokenShard> shards(1);
    shards[0].file = tables.size() == 1 ? tables[0].file : path;
    shards[0].content = FileBytes(std::move(bytes));
    shards[0].dtype = narrow ? DType::kUint16 : DType::kUint32;
    shards[0].from_tokenizer = true;
    out.shards = std::make_shared<const std::vector<TokenShard>>(std::move(shards));
    out.window = options_.sample_length();
    return out;
  }

  /// A row for each text. `next_tokens`: labels are the tokens themselves.
  RawSplit pad(const TextTable& table, std::size_t length, bool next_tokens) {
    const std::size_t rows = table.size();
    PT_CHECK(length <= kMostTokens, kData, "samples of {} tokens are too long; at most {} are read",
             length, kMostTokens);
    std::vector<TokenIds> seconds;
    if (!table.seconds.empty()) seconds = encode(table, /*seconds=*/true);
    std::vector<TypedTokens> samples(rows);
    std::size_t longest = 0, all = 0;
    std::vector<TokenIds> firsts = encode(table, /*seconds=*/false);
    for (std::size_t row = 0; row < rows; ++row) {
      const bool paired = !seconds.empty();
      std::size_t whole = firsts[row].size() + (paired ? seconds[row].size() : 0);
      for (const TemplatePart& part : paired ? tokenizer_.pair() : tokenizer_.single())
        whole += part.ids.size();
      std::optional<TokenIds> second;
      if (paired) second = std::move(seconds[row]);
      samples[row] = tokenizer_.assemble(std::move(firsts[row]), std::move(second),
                                         length ? length : kMostTokens);
      cut_ += samples[row].ids.size() < whole;
      if (next_tokens && (!length || samples[row].ids.size() < length)) {
        samples[row].ids = with_end(std::move(samples[row].ids));
        samples[row].types.resize(samples[row].ids.size());
      }
      longest = std::max(longest, samples[row].ids.size());
      all += samples[row].ids.size();
    }
    tokens_ += all;
    PT_CHECK(
        length > 0 || !pads_too_much(rows, longest, all), kData,
        "\"{}\": the lengths of its texts differ too much for padding, up to {} tokens; cut them "
        "to so many tokens with {} N",
        printable(table.file), longest, setting("text-length"));
    if (!length) length = std::max<std::size_t>(longest, 1);
    return columns(table, samples, length, next_tokens);
  }

  std::size_t tokens() const { return tokens_; }
  std::size_t cut() const { return cut_; }

 private:
  TokenIds with_end(TokenIds ids) const {
    if (end_ && (ids.empty() || ids.back() != *end_)) ids.push_back(*end_);
    return ids;
  }

  /// Tokens of all texts; no id depends on the number of threads.
  std::vector<TokenIds> encode(const TextTable& table, bool seconds) const {
    std::vector<TokenIds> out(table.size());
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto work = [&] {
      try {
        WordCache cache;
        for (std::size_t first = next.fetch_add(kTextsAtOnce); first < out.size();
             first = next.fetch_add(kTextsAtOnce)) {
          for (std::size_t row = first; row < std::min(first + kTextsAtOnce, out.size()); ++row) {
            with_context(
                [&] {
                  return fmt::format(
                      "reading {}{}", printable(table.file),
                      row < table.lines.size() ? fmt::format(" line {}", table.lines[row]) : "");
                },
                [&] {
                  tokenizer_.encode(seconds ? table.seconds[row] : table.text(row), cache,
                                    out[row]);
                });
          }
        }
      } catch (...) {
        const std::lock_guard lock(guard);
        failure = std::current_exception();
        next = out.size();
      }
    };
    const std::size_t most = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
    const std::size_t count = std::min(most, (out.size() + kTextsAtOnce - 1) / kTextsAtOnce);
    {
      std::vector<std::jthread> others;
      for (std::size_t i = 1; i < count; ++i) others.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
    return out;
  }

  RawSplit columns(const TextTable& table, const std::vector<TypedTokens>& samples,
                   std::size_t length, bool next_tokens) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    const Shape shape{rows, static_cast<std::int64_t>(length)};
    HostTensor ids({DType::kInt32, shape}), mask({DType::kInt8, shape}),
        types({DType::kInt8, shape}), labels;
    if (next_tokens) labels = HostTensor({DType::kInt32, shape});
    for (std::size_t row = 0; row < samples.size(); ++row) {
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t at = row * length + i;
        const bool inside = i < samples[row].ids.size();
        const TokenId id = inside ? samples[row].ids[i] : tokenizer_.padding();
        ids.span<std::int32_t>()[at] = static_cast<std::int32_t>(id);
        mask.span<std::int8_t>()[at] = inside;
        types.span<std::int8_t>()[at] =
            static_cast<std::int8_t>(inside ? samples[row].types[i] : 0);
        if (next_tokens)
          labels.span<std::int32_t>()[at] =
              static_cast<std::int32_t>(inside ? id : options_.ignored_label);
      }
    }
    RawSplit out;
    const auto add = [&](const char* name, HostTensor values, ColumnRole role, bool is_optional) {
      RawColumn column{name, std::move(values), table.file, role, {}, {}, table.lines};
      column.is_optional = is_optional;
      out.columns.push_back(std::move(column));
    };
    add("input_ids", std::move(ids), ColumnRole::kInput, false);
    add("attention_mask", std::move(mask), ColumnRole::kInput, true);
    add("token_type_ids", std::move(types), ColumnRole::kInput, true);
    if (next_tokens) add("labels", std::move(labels), ColumnRole::kLabel, false);
    if (table.labels) out.columns.push_back(*table.labels);
    return out;
  }

  const Tokenizer& tokenizer_;
  const TextOptions& options_;
  std::optional<TokenId> end_;
  std::size_t tokens_ = 0, cut_ = 0;
};

TextTable read_table(const std::string& file, const std::string& format, const TextOptions& options,
                     const CsvOptions& table) {
  if (format == "text") {
    const bool rows = options.layout == TextLayout::kPad || options.one_row_per_text;
    const auto document = options.document;
    return read_plain_text(file, document == TextOptions::Document::kAuto
                                     ? rows
                                     : document == TextOptions::Document::kLine);
  }
  if (format == "jsonl") return read_text_lines(file, options, table);
  return read_text_columns(file, options, table);
}

std::vector<TextTable> read_tables(const std::vector<std::string>& files, const std::string& format,
                                   const TextOptions& options, const CsvOptions& table) {
  std::vector<TextTable> out;
  for (const std::string& file : files) out.push_back(read_table(file, format, options, table));
  return out;
}

/// The texts of several files as those of one.
TextTable joined_texts(std::vector<TextTable> tables, const std::string& path) {
  if (tables.size() == 1 && !tables[0].texts.empty()) return std::move(tables[0]);
  TextTable out;
  out.file = tables.size() == 1 ? tables[0].file : path;
  out.name = tables[0].name;
  for (TextTable& table : tables) {
    PT_CHECK(!table.labels, kData,
             "texts with labels are read from one file, not from the {} of \"{}\"", tables.size(),
             printable(path));
    for (std::size_t row = 0; row < table.size(); ++row) out.texts.emplace_back(table.text(row));
    for (std::string& second : table.seconds) out.seconds.push_back(std::move(second));
  }
  return out;
}

/// The files of a path that may have texts in such a format: of a folder, those that are read
/// without a tokenizer too.
std::vector<std::string> files_with_texts(const std::string& path, const std::string& format) {
  std::error_code error;
  if (format == "text" || !fs::is_directory(path, error)) return list_files(path);
  std::vector<std::string> out;
  if (format == "jsonl") {
    out = list_files(path, is_jsonl_name);
  } else if (const TableFiles tables = table_files_in(path); !tables.train.empty()) {
    out = {tables.train};
    if (!tables.validation.empty()) out.push_back(tables.validation);
  } else {
    out = list_files(path, is_table_name);
  }
  PT_CHECK(!out.empty(), kData, "\"{}\" has no *.{}", printable(path), format);
  return out;
}

std::size_t count_texts(const std::vector<TextTable>& tables) {
  std::size_t out = 0;
  for (const TextTable& each : tables) out += each.size();
  return out;
}

/// Says that texts are cut; as a warning if nobody has chosen the length, which is then the one of
/// the training data.
std::optional<std::string> note_on_cut(std::size_t cut, std::size_t texts, std::size_t length,
                                       bool is_chosen) {
  if (cut == 0) return std::nullopt;
  return fmt::format("{} of {} texts are cut to {} tokens{}", cut, texts, length,
                     is_chosen ? ""
                               : fmt::format(", as the training data have; {} N sets the length "
                                             "of all",
                                             setting("text-length")));
}

}  // namespace

TokenizerFile open_tokenizer_of(const TextOptions& options) {
  PT_CHECK(!options.tokenizer.empty(), kUsage, "no tokenizer; give one with {} FILE{}",
           setting("tokenizer"),
           options.name.empty()
               ? ""
               : fmt::format(": the model was trained with \"{}\", whose SHA-256 "
                             "begins with {}",
                             printable(options.name), printable(options.sha256.substr(0, 12))));
  TokenizerFile out = open_tokenizer(options.tokenizer);
  PT_CHECK(options.sha256.empty() || options.sha256 == out.sha256, kData,
           "\"{}\" is not the tokenizer that the model was trained with, \"{}\", whose SHA-256 "
           "begins with {}",
           printable(options.tokenizer), printable(options.name),
           printable(options.sha256.substr(0, 12)));
  return out;
}

bool may_have_texts(std::string_view format) {
  return format == "text" || format == "jsonl" || format == "csv" || format == "tsv";
}

bool has_texts(const std::string& path, const std::string& format) {
  return format != "jsonl" || first_line_has_text(files_with_texts(path, format)[0]);
}

RawData read_texts(const std::string& path, const std::string& format, const TextOptions& options,
                   const CsvOptions& table) {
  const TokenizerFile tokenizer = open_tokenizer_of(options);
  CsvOptions where = table;
  if (format == "tsv" && !where.delimiter) where.delimiter = '\t';
  std::vector<std::string> files, other_files;
  const std::vector<std::string> all = files_with_texts(path, format);
  // Of plain texts, any may be called "test" unless one is called "train".
  const bool has_parts = format != "text" || std::ranges::any_of(all, names_training_part);
  for (const std::string& file : all) {
    const bool other = has_parts && all.size() > 1 && names_other_part(file);
    (other ? other_files : files).push_back(file);
  }
  if (files.empty()) std::swap(files, other_files);
  std::vector<TextTable> tables = read_tables(files, format, options, where);
  TextReader reader(tokenizer, options);
  const bool rows = options.layout == TextLayout::kPad || options.one_row_per_text ||
                    (options.layout == TextLayout::kAuto && tables[0].labels.has_value());
  const bool next_tokens = rows && !options.one_row_per_text && !tables[0].labels;
  RawData out{path, "", {}, {}, {}};
  if (rows) prefer_validation(other_files, out.notes);
  const std::size_t texts = count_texts(tables);
  const std::string name = tables[0].name;
  const bool from_column = !name.empty();
  std::size_t length = options.sample_length();
  const auto read = [&](std::vector<TextTable> from) {
    return rows ? reader.pad(joined_texts(std::move(from), path), length, next_tokens)
                : reader.pack(from, path);
  };
  out.train = read(std::move(tables));
  PT_CHECK(!out.train.empty() && reader.tokens() > 0, kData, "\"{}\" has no text: it is empty",
           printable(path));
  TextOptions as_read = options;
  if (from_column) as_read.column = name;
  as_read.length = options.own_length();  // the model may take any
  out.train.texts = as_read.text(tokenizer.name, tokenizer.sha256);
  out.notes.push_back(fmt::format(
      "{} text{}{} as {} tokens of {}: {}, {} ids", texts, texts == 1 ? "" : "s",
      from_column ? fmt::format(" \"{}\"", printable(name)) : "", reader.tokens(),
      printable(tokenizer.name), tokenizer.tokenizer->kind(), tokenizer.tokenizer->vocabulary()));
  if (!tokenizer.tokenizer->names_special_tokens()) {
    out.notes.emplace_back(kNoSpecialTokens);
    // A model that was trained with it expects nothing else.
    if (options.name.empty()) out.warnings.push_back(out.notes.back());
  }
  if (rows) length = static_cast<std::size_t>(out.train.columns[0].sample_shape()[0]);
  const std::size_t cut = reader.cut();
  const bool is_chosen = options.own_length() > 0;
  if (const auto note = note_on_cut(cut, texts, length, is_chosen)) {
    out.notes.push_back(*note);
    if (!is_chosen) out.warnings.push_back(*note);
  }
  if (!rows && !tokenizer.tokenizer->end_of_text() && options.end_of_text.empty())
    out.notes.push_back("the tokenizer has no end-of-text token, so none is between the texts");
  if (!other_files.empty()) {
    std::vector<TextTable> others = read_tables(other_files, format, options, where);
    const std::size_t other_texts = count_texts(others);
    out.validation = read(std::move(others));
    if (const auto note = note_on_cut(reader.cut() - cut, other_texts, length, is_chosen)) {
      out.notes.push_back("of the validation part, " + *note);
      if (!is_chosen) out.validation_warnings.push_back(*note);
    }
  }
  out.format = fmt::format(
      "{}, {}",
      format == "text"    ? "text"
      : format == "jsonl" ? "JSON Lines"
                          : "CSV",
      rows ? fmt::format("a row of {} tokens for each text", length) : "one stream of tokens");
  return out;
}

}  // namespace pipetrain
