#include "data/loading/open_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "data/binding/match_columns.h"
#include "data/files/tar_archive.h"
#include "data/images/image.h"
#include "data/rows/element.h"
#include "data/rows/ragged_rows.h"
#include "data/rows/row_source.h"
#include "data/rows/synthetic.h"

namespace pipetrain {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSyntheticSamples = 6400;  // 100 batches of 64
constexpr std::size_t kHead = 4096;              // bytes that tell a format

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

bool looks_like_text(std::string_view text) {
  const std::string_view head = text.substr(0, kHead);
  return head.find('\0') == std::string_view::npos;
}

std::string detect_in_directory(const std::string& path) {
  if (const auto kind = recognise_cifar(path)) {
    return kind == CifarKind::kCifar10 ? "cifar10" : "cifar100";
  }
  bool idx = false, bin = false, csv = false, npy = false, tar = false, jsonl = false;
  bool megatron = false, tfrecord = false;
  for (const std::string& file : list_files(path)) {
    const std::string name = bare_name(file);
    idx |= name.find("images") != std::string::npos && name.find("ubyte") != std::string::npos;
    bin |= is_one_of(name, {".bin"});
    csv |= name == "train.csv" || name == "train.tsv";
    npy |= is_one_of(name, {".npy"});
    tar |= is_one_of(name, {".tar", ".tgz"});
    jsonl |= is_one_of(name, {".jsonl"});
    tfrecord |= name.find("tfrecord") != std::string::npos;
    megatron |= is_one_of(name, {".idx"}) && is_megatron_index(FileBytes::open(file).bytes());
  }
  if (idx) return "idx";
  if (csv) return "csv";
  if (npy) return "npy";
  if (megatron) return "megatron";
  if (bin) return "tokens";
  if (tar) return "webdataset";
  if (tfrecord) return "tfrecord";
  if (jsonl) return "jsonl";
  if (has_images(path)) return "images";
  const std::vector<std::string> files = list_files(path);
  const auto is_text = [](const std::string& file) {
    return looks_like_text(FileBytes::open_head(file, kHead).text());
  };
  if (!files.empty() && std::ranges::all_of(files, is_text)) return "text";
  PT_FAIL(kData,
          "\"{}\" is a directory in an unknown format: looked for MNIST's *-images-idx3-ubyte, "
          "CIFAR's data_batch_1.bin, train.csv, arrays *.npy, tokens *.bin, archives *.tar, "
          "*.tfrecord, *.jsonl, images in folders, and text files; give {}",
          printable(path), setting("format"));
}

std::string detect_text(std::string_view text, const std::string& name) {
  if (is_one_of(name, {".libsvm", ".svm", ".svmlight"})) return "libsvm";
  if (is_one_of(name, {".jsonl", ".ndjson"})) return "jsonl";
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "text";
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  if (line.starts_with("{\"")) return "jsonl";
  // The head may end within the line.
  if (is_libsvm_line(line.substr(0, line.size() < text.size() ? line.size() : line.rfind(' ')))) {
    return "libsvm";
  }
  return looks_like_table(text, text.size() < kHead) ? "csv" : "text";
}

std::string detect_by_content(const std::string& path, const std::string& name) {
  const FileBytes content = FileBytes::open_head(path, kHead);
  const auto bytes = content.bytes();
  PT_CHECK(!bytes.empty(), kData, "\"{}\" is empty", printable(path));
  if (content.text().starts_with("PK\x03\x04") || content.text().starts_with("PK\x05\x06")) {
    return "npz";
  }
  if (content.text().starts_with("\x93NUMPY")) return "npy";
  if (is_llmc_tokens(bytes)) return "tokens";
  if (is_tar(bytes)) return "webdataset";
  if (is_megatron_index(bytes)) return "megatron";
  if (is_tfrecord(bytes)) return "tfrecord";
  const bool idx_magic = bytes.size() > 8 && little_endian(bytes.first(2)) == 0 &&
                         std::to_integer<int>(bytes[2]) >= 8 &&
                         std::to_integer<int>(bytes[2]) <= 14 &&
                         std::to_integer<int>(bytes[3]) >= 1 && std::to_integer<int>(bytes[3]) <= 4;
  if (idx_magic && !name.ends_with(".bin")) return "idx";
  if (name.ends_with(".bin")) {
    const fs::path index = fs::path(path).replace_extension(".idx");
    std::error_code error;
    const bool indexed = fs::is_regular_file(index, error) &&
                         is_megatron_index(FileBytes::open(index.string()).bytes());
    return indexed ? "megatron" : "tokens";
  }
  if (image_format(bytes) != ImageFormat::kNone) return "images";
  if (name.find("tfrecord") != std::string::npos) return "tfrecord";
  check_not_utf16(content.text(), path);
  PT_CHECK(looks_like_text(content.text()), kData,
           "\"{}\" is in an unknown format; give {}, one of {}", printable(path), setting("format"),
           format_names());
  return detect_text(content.text(), name);
}

std::string detect_format(const std::string& path) {
  if (path == "synthetic") return path;
  if (path == "-") return detect_by_content(path, "");
  std::error_code error;
  if (fs::is_directory(path, error)) return detect_in_directory(path);
  const std::vector<std::string> files = list_files(path);
  const bool is_there = fs::exists(files[0], error);
  PT_CHECK(!error, kData, "cannot read \"{}\": {}", printable(path), error.message());
  PT_CHECK(is_there, kData, "there is no data file \"{}\"", printable(path));
  PT_CHECK(!fs::is_character_file(files[0], error) && !fs::is_block_file(files[0], error), kData,
           "\"{}\" is a device, not a file", printable(path));
  const std::string name = bare_name(files[0]);
  if (is_one_of(name, {".csv"})) return "csv";
  if (is_one_of(name, {".tsv", ".tab"})) return "tsv";
  if (is_one_of(name, {".txt", ".text", ".md"})) return "text";
  if (const auto kind = recognise_cifar(files[0])) {
    return kind == CifarKind::kCifar10 ? "cifar10" : "cifar100";
  }
  return detect_by_content(files[0], name);
}

/// Samples of so many that a split takes for validation; 0: none.
std::size_t validation_rows_of(const DataOptions& options, std::size_t samples) {
  if (options.validation_rows > 0 || options.validation_split <= 0) return options.validation_rows;
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(
                                      options.validation_split * static_cast<double>(samples))));
}

/// The rows that are trained on, of so many: what is fitted to them must not see the others.
std::vector<std::size_t> training_rows_of(const DataOptions& options, std::size_t rows) {
  const std::size_t used = options.limit ? std::min(options.limit, rows) : rows;
  const std::size_t validation = validation_rows_of(options, used);
  std::vector<std::uint8_t> held_out(used);
  if (validation > 0) held_out = held_out_rows(used, validation, options.seed);
  std::vector<std::size_t> out;
  for (std::size_t row = 0; row < used; ++row) {
    if (!held_out[row]) out.push_back(row);
  }
  return out;
}

/// Bad cells are left to the check of samples where that skips some.
CsvOptions table_options(const DataOptions& options) {
  CsvOptions out = options.csv;
  out.bad_cells_as_nan |= options.bind.on_bad_sample == BadSample::kSkip;
  return out;
}

RawData read_table(const std::string& path, const DataOptions& options, char delimiter) {
  CsvOptions csv = table_options(options);
  csv.training_rows = [&options](std::size_t rows) { return training_rows_of(options, rows); };
  if (!csv.delimiter) csv.delimiter = delimiter;
  return read_csv(path, csv);
}

RowLengths row_lengths(const TextOptions& text) {
  RowLengths out(text.sample_length());
  out.others = text.other_rows;
  return out;
}

struct Reader {
  std::string_view name;
  RawData (*read)(const std::string& path, const DataOptions& options);
};
// The values of --format. Only formats that are read as one stream accept a pipe.
constexpr Reader kReaders[] = {
    {"npz", [](const std::string& path, const DataOptions&) { return read_npz(path); }},
    {"npy", [](const std::string& path, const DataOptions&) { return read_npy(path); }},
    {"csv", [](const std::string& path,
               const DataOptions& options) { return read_table(path, options, 0); }},
    {"tsv", [](const std::string& path,
               const DataOptions& options) { return read_table(path, options, '\t'); }},
    {"idx", [](const std::string& path, const DataOptions&) { return read_idx(path); }},
    {"mnist", [](const std::string& path, const DataOptions&) { return read_idx(path); }},
    {"cifar10", [](const std::string& path,
                   const DataOptions&) { return read_cifar(path, CifarKind::kCifar10); }},
    {"cifar100", [](const std::string& path,
                    const DataOptions&) { return read_cifar(path, CifarKind::kCifar100); }},
    {"images",
     [](const std::string& path, const DataOptions& options) {
       return read_image_folder(path, options.masks_are_drawings);
     }},
    {"webdataset",
     [](const std::string& path, const DataOptions&) { return read_webdataset(path); }},
    {"tfrecord",
     [](const std::string& path, const DataOptions& options) {
       return read_tfrecord(path, row_lengths(options.text), options.text.ignored_label,
                            options.text.one_row_per_text);
     }},
    {"jsonl",
     [](const std::string& path, const DataOptions& options) {
       return read_jsonl(path, row_lengths(options.text), options.text.ignored_label,
                         options.csv.label_may_be_missing, options.text.one_row_per_text,
                         table_options(options).bad_cells_as_nan);
     }},
    {"libsvm", [](const std::string& path,
                  const DataOptions& options) { return read_libsvm(path, options.first_index); }},
    {"tokens", [](const std::string& path,
                  const DataOptions& options) { return read_tokens(path, options.token_dtype); }},
    {"megatron", [](const std::string& path, const DataOptions&) { return read_megatron(path); }},
    {"text", [](const std::string& path, const DataOptions&) { return read_text(path); }},
};

// "0 … 15", of sample 0.
std::string first_sample_range(const Dataset& dataset, std::size_t column) {
  const Column& what = dataset.columns()[column];
  const HostTensor sample(what.batch_type(1));
  const std::size_t index = 0;
  dataset.gather({&index, 1}, column, sample.view());
  const ValueRange range =
      range_of(sample.view().data, what.dtype, static_cast<std::size_t>(sample.type().count()));
  if (range.low == range.high) return fmt::format("{:.6g}", range.low);
  return fmt::format("{:.6g} … {:.6g}", range.low, range.high);
}

/// `rows`: of training data whose columns are fitted, bad ones among them.
void split_and_limit(const DataOptions& options, std::optional<std::size_t> rows, OpenedData& out) {
  if (out.validation && options.limit)
    out.validation = first_samples(out.validation, options.limit);
  PT_CHECK(options.validation_split >= 0 && options.validation_split < 1, kUsage,
           "{} takes a fraction from 0 to below 1, not {}", setting("val-split"),
           options.validation_split);
  const bool splits = options.validation_rows > 0 || options.validation_split > 0;
  if (options.limit && !(splits && rows)) out.train = first_samples(out.train, options.limit);
  if (!splits) return;
  // As in training_rows_of: what is fitted to a table's training rows does not know the bad ones.
  if (rows && options.limit) rows = std::min(options.limit, *rows);
  const std::size_t validation = validation_rows_of(options, rows.value_or(out.train->size()));
  DatasetSplit parts = split_dataset(out.train, validation, options.seed, rows);
  out.train = std::move(parts.train);
  out.validation = std::move(parts.validation);
  out.description +=
      fmt::format("  {} of {} samples used for validation, chosen by seed {}\n",
                  out.validation->size(), out.train->size() + out.validation->size(), options.seed);
}

// One core in four, and at least one: the stages need the others.
int workers_for_images() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

void add_lines(std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) text += "  " + line + "\n";
}

void describe_samples(OpenedData& out) {
  std::vector<std::string> ranges;
  for (std::size_t column = 0; column < out.train->columns().size(); ++column) {
    ranges.push_back(fmt::format("\"{}\" {}", printable(out.train->columns()[column].name),
                                 first_sample_range(*out.train, column)));
  }
  out.description += fmt::format("  first sample: {}\n", fmt::join(ranges, ", "));
  std::string sizes = fmt::format("{} training samples", out.train->size());
  if (out.validation) sizes += fmt::format(", {} validation samples", out.validation->size());
  out.description += "  " + sizes;
  out.headline += " · " + sizes;
}

// Where the labels of a table come from, without how to change it.
std::string label_words(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    if (note.starts_with("labels from")) return " · " + note.substr(0, note.find(" ("));
  }
  return {};
}

}  // namespace

std::string format_names() {
  std::string out;
  for (const auto& [name, read] : kReaders) out += fmt::format("{}, ", name);
  return out + "synthetic";
}

RawData read_source(const std::string& path, const DataOptions& options) {
  const auto read_by_format = [&]() -> RawData {
    const std::string format = options.format != "auto" ? options.format : detect_format(path);
    const auto reader = std::ranges::find(kReaders, format, &Reader::name);
    PT_CHECK(format != "synthetic", kUsage, "synthetic data cannot be read from \"{}\"",
             printable(path));
    PT_CHECK(reader != std::end(kReaders), kUsage, "unknown {} {}; one of: auto, {}",
             setting("format"), printable(format), format_names());
    const TextOptions& text = options.text;
    if (text.tokenizer.empty()) {
      RawData out = reader->read(path, options);
      const bool are_bytes = may_have_texts(format) && out.train.shards &&
                             out.train.shards->front().dtype == DType::kUint8;
      // A model that was trained with a tokenizer needs that, which read_texts() asks for.
      if (!are_bytes || text.name.empty()) return out;
    }
    PT_CHECK(may_have_texts(format) || text.from_model, kUsage,
             "{} is for text, JSON Lines and CSV, but \"{}\" is {}", setting("tokenizer"),
             printable(path), format);
    if (!may_have_texts(format) || (text.from_model && !has_texts(path, format)))
      return reader->read(path, options);
    return read_texts(path, format, text, table_options(options));
  };
  const auto read = [&] {
    try {
      return read_by_format();
    } catch (const fs::filesystem_error& error) {
      PT_FAIL(kData, "cannot read \"{}\": {}", printable(error.path1().string()),
              error.code().message());
    }
  };
  RawData out = read_and_check(read, check_mapped_files);
  for (RawSplit* split : {&out.train, &out.validation}) {
    if (split->shards && split->window == 0) split->window = options.text.length;
  }
  return out;
}

namespace {

/// What rows of other data are cut or padded to.
RowLengths lengths_of_rows(const RawSplit& split, const TextOptions& options) {
  RowLengths out;
  out.others = options.other_rows;
  out = lengths_beside(split, std::move(out));
  if (out.tokens == 0 && !split.texts.empty() && !split.columns.empty())
    out.tokens = static_cast<std::size_t>(split.columns[0].sample_shape()[0]);
  return out;
}

/// Options that read validation data like the training data. `encoding`: of its columns.
DataOptions read_as(const RawSplit& train, const std::string& encoding,
                    const DataOptions& options) {
  DataOptions out = options;
  out.csv.encoding = encoding;
  out.first_index = train.first_index;
  out.masks_are_drawings &= !train.masks_are_numbered;
  const RowLengths lengths = lengths_of_rows(train, options.text);
  out.text.training_rows = lengths.tokens;
  out.text.other_rows = lengths.others;
  return out;
}

/// With those of its warnings that the training data do not have. `read`: the reader's.
void take_validation(BoundData bound, const std::vector<std::string>& read, OpenedData& out) {
  out.validation = std::move(bound.dataset);
  for (const auto* warnings : {&read, &std::as_const(bound.warnings)}) {
    for (const std::string& warning : *warnings) {
      if (std::ranges::count(out.warnings, warning) > 0) continue;
      out.warnings.push_back("of the validation data: " + warning);
      out.description += "  " + out.warnings.back() + "\n";
    }
  }
}

}  // namespace

OpenedData open_data(const DataOptions& options, const DataSpec& spec, const RawData* already) {
  OpenedData out;
  out.workers = std::max(options.workers, 1);
  if (options.path == "synthetic" || options.format == "synthetic") {
    PT_CHECK(options.validation_path.empty(), kUsage,
             "{} needs {} PATH; of synthetic data, {} makes a part validation data",
             setting("val-data"), setting("data"), setting("val-split"));
    const std::size_t samples =
        options.synthetic_samples ? options.synthetic_samples : kSyntheticSamples;
    out.synthetic = true;
    out.format = "synthetic";
    out.train = make_synthetic(spec, samples, options.seed);
    out.rows = samples;
    out.description = "data: synthetic, generated for the model's inputs; labels by a fixed rule\n";
    out.headline = "data     synthetic";
    split_and_limit(options, {}, out);
    describe_samples(out);
    return out;
  }
  const RawData raw = already ? *already : read_source(options.path, options);
  const bool decodes = std::ranges::any_of(
      raw.train.columns, [](const RawColumn& column) { return column.source != nullptr; });
  if (options.workers == 0 && decodes) out.workers = workers_for_images();
  out.format = raw.format;
  out.description = fmt::format("data {}: {}\n", printable(raw.path), raw.format);
  out.headline =
      fmt::format("data     {}: {}{}", printable(raw.path), raw.format, label_words(raw.notes));
  add_lines(out.description, raw.notes);
  if (raw.train.is_encoded)
    out.headline += fmt::format(" · {} numbers per row", raw.train.columns[0].sample_shape()[0]);
  BoundData train = bind_data(raw.train, spec, options.bind);
  add_lines(out.description, train.notes);
  out.warnings = raw.warnings;
  out.warnings.insert(out.warnings.end(), train.warnings.begin(), train.warnings.end());
  out.train = train.dataset;
  out.rows = train.rows;
  out.class_names = train.class_names;
  out.divisors = train.divisors;
  out.has_large_values = train.has_large_values;
  // A model that takes some columns by name needs no others.
  if (raw.train.is_encoded || !train.takes_fields) out.encoding = raw.train.encoding;
  out.first_index = raw.train.first_index;
  out.row_lengths = lengths_of_rows(raw.train, options.text);
  out.masks_are_numbered = raw.train.masks_are_numbered;
  out.texts = raw.train.texts;
  const bool own_split = options.validation_split > 0 || options.validation_rows > 0;
  if (!options.validation_path.empty()) {
    PT_CHECK(!own_split, kUsage, "{} and {} exclude each other", setting("val-data"),
             setting("val-split"));
    with_context(
        [&] {
          return fmt::format("reading the validation data {}", printable(options.validation_path));
        },
        [&] {
          const DataOptions as_trained = read_as(raw.train, out.encoding, options);
          const RawData other = read_source(options.validation_path, as_trained);
          take_validation(bind_data(other.train, spec, options.bind, &train), other.warnings, out);
          out.description +=
              fmt::format("  validation from {}: {}\n", printable(other.path), other.format);
        });
  } else if (!raw.validation.empty() && !own_split) {
    // Test parts without labels, as in competitions, must not stop the training.
    try {
      take_validation(bind_data(raw.validation, spec, options.bind, &train),
                      raw.validation_warnings, out);
      out.description += "  validation on the validation part of the data\n";
    } catch (const Error& error) {
      check_mapped_files();
      if (error.kind() != ErrorKind::kData) throw;
      out.warnings.push_back(
          fmt::format("no validation on the validation part of the data: {}", error.message()));
      out.description += "  " + out.warnings.back() + "\n";
    }
  }
  std::optional<std::size_t> rows;
  if (options.csv.encoding.empty() && raw.train.is_encoded) rows = train.rows;
  split_and_limit(options, rows, out);
  describe_samples(out);
  return out;
}

}  // namespace pipetrain
