// One reader per file format. Each gives the arrays as they are in the file; errors are kData and
// name the file, and the line or the array.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/rows/raw_data.h"
#include "data/rows/row_lengths.h"
#include "data/rows/text_options.h"

namespace pipetrain {

struct NpyHeader {
  DType dtype = DType::kUndefined;  // kUndefined: a type that is not read here
  std::string descr;
  bool big_endian = false;
  bool fortran_order = false;
  Shape shape;
  std::size_t data_begin = 0;
};
NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& name);
/// NumPy array file format 1.0, 2.0 and 3.0 (numpy.lib.format): C or Fortran order, either byte
/// order, bool, integers, float16, float32, float64.
HostTensor parse_npy(std::span<const std::byte> bytes, const std::string& name);
/// An array of strings, of one axis: types "<U7" and "|S7". Empty for other arrays.
std::vector<std::string> parse_npy_words(std::span<const std::byte> bytes, const std::string& name);

/// An .npz archive: keys ending or beginning with train, test, val tell the parts apart.
RawData read_npz(const std::string& path);
/// Tells a key's part: "x_train" and "train_images" belong to the training data.
enum class SourcePart { kTrain, kValidation, kTest };
struct PartName {
  std::string base;
  std::optional<SourcePart> part;
};
PartName split_part_name(const std::string& key);
/// The parts of arrays that lie together: beside "ids", "valid_len" is of no part, as there is no
/// other "len".
std::vector<PartName> split_part_names(const std::vector<std::string>& keys);
/// The role that an array's name suggests: "y", "labels", "target", … are labels, and so is
/// "image/class/label", of whose parts between "/" the last one counts.
ColumnRole role_of_name(const std::string& name);
/// A .npy file, labels being looked for beside it (x.npy and y.npy, images.npy and labels.npy), or
/// a directory of them, with parts told as in an archive.
RawData read_npy(const std::string& path);

/// MNIST's format: a directory with the usual names, or an images file, by its name or a glob, with
/// its labels beside it.
RawData read_idx(const std::string& path);

enum class CifarKind { kCifar10, kCifar100 };
/// CIFAR's binary version: a file, a glob, or a directory. Of CIFAR-100's two labels, the fine one.
RawData read_cifar(const std::string& path, CifarKind kind);
/// The kind that a file's or directory's names and sizes tell, if any.
std::optional<CifarKind> recognise_cifar(const std::string& path);

struct CsvOptions {
  /// A header's name, a number from 0 (negative: from the end), "last", "none"; "" lets the
  /// header decide (label, labels, target, class, y), else last.
  std::string label_column;
  /// The label column may have gaps; a column of gaps is no labels.
  bool label_may_be_missing = false;
  /// The table may lack the column of this name.
  bool label_column_may_be_missing = false;
  /// ',' ';' '\t'; 0 lets the first line decide.
  char delimiter = 0;
  enum class Header { kAuto, kYes, kNo } header = Header::kAuto;
  /// Values that are not numbers become NaN, to be skipped later, instead of an error.
  bool bad_cells_as_nan = false;
  /// Columns by the header's names, or numbers from 0: those that are inputs (empty: all), and
  /// those that are left out.
  std::vector<std::string> features, drop;
  enum class Categories { kNone, kOneHot, kCodes } categories = Categories::kNone;
  enum class Missing { kError, kMean, kMarker } missing = Missing::kError;
  enum class Scale { kNone, kStandard } scale = Scale::kNone;
  /// As an earlier table was encoded (TableEncoding::text); empty: fitted to this one.
  std::string encoding;
  /// The rows that an encoding is fitted to, of that many; none: all of them.
  std::function<std::vector<std::size_t>(std::size_t)> training_rows;

  bool encodes() const {
    return !features.empty() || !drop.empty() || categories != Categories::kNone ||
           missing != Missing::kError || scale != Scale::kNone || !encoding.empty();
  }
};
/// Comma or tab separated numbers (RFC 4180: quoted fields; lines beginning with '#' are
/// comments); the label column may hold words, which become classes in byte order. A directory:
/// train.csv, test.csv.
RawData read_csv(const std::string& path, const CsvOptions& options);
/// Whether a text that nothing names is such a table: its beginning has rows of equally many cells
/// between commas, tabs or semicolons, at least half of them numbers, after a header or none.
bool looks_like_table(std::string_view head, bool is_whole_text);
RawSplit parse_csv(std::string_view text, const std::string& name, const CsvOptions& options,
                   std::vector<std::string>& notes);

/// Token files: llm.c's (header, magic 20240520 or 20240801), or nanoGPT's (no header; dtype
/// kUndefined guesses 2 or 4 bytes from the content). A file, a glob, or a directory.
RawData read_tokens(const std::string& path, DType headerless_dtype);
/// True for a file that begins with llm.c's header.
bool is_llmc_tokens(std::span<const std::byte> bytes);

/// Bytes as tokens 0 … 255. A file, a glob, a directory or "-".
RawData read_text(const std::string& path);

/// Folders of images: DIR/CLASS/*.png, or DIR/train and DIR/val of such, or images alone; also a
/// file, a glob or "-", which have no labels.
/// `masks_are_drawings`: masks that have only 0 and 255 are of the classes 0 and 1.
RawData read_image_folder(const std::string& path, bool masks_are_drawings = true);
/// Whether there are images in a folder or below it.
bool has_images(const std::string& folder);

/// WebDataset's tar archives (ustar, pax, GNU): members 000.png, 000.cls, 000.json, 000.npy. A
/// file, a glob, or a directory of shards.
RawData read_webdataset(const std::string& path);

/// JSON Lines: numbers, lists of numbers, and words as labels. Rows of tokens of several lengths
/// without labels are one stream; others are padded to `lengths`, or to the longest, and labels
/// with `ignored_label`. `label_may_be_missing`: labels that are null or missing in a line are
/// none. `one_row_per_text`: rows of tokens stay rows, also without labels. `skips_gaps`: samples
/// without a label have NaN, to be skipped later.
RawData read_jsonl(const std::string& path, const RowLengths& lengths = {},
                   std::int64_t ignored_label = -100, bool label_may_be_missing = false,
                   bool one_row_per_text = false, bool skips_gaps = false);

/// Whether a format may have texts: "text", "jsonl", "csv", "tsv".
bool may_have_texts(std::string_view format);
/// Whether a file of such a format has them, where ids might be instead.
bool has_texts(const std::string& path, const std::string& format);
/// Texts of such a file, a glob or a directory as tokens: one stream, or a row for each text with
/// its label. `table` says where the labels are.
RawData read_texts(const std::string& path, const std::string& format, const TextOptions& texts,
                   const CsvOptions& table);

/// Megatron-LM's PREFIX.idx and PREFIX.bin; either name, a glob, or a directory.
RawData read_megatron(const std::string& path);
bool is_megatron_index(std::span<const std::byte> bytes);

/// LibSVM's sparse rows, "label index:value …". `first_index`: that indices count from 0 or 1;
/// none: from 1 unless there is a 0.
RawData read_libsvm(const std::string& path, std::optional<std::uint32_t> first_index = {});
bool is_libsvm_line(std::string_view line);

/// TFRecord files of tf.train.Example: numbers, images, and bytes of one length. Labels of
/// several lengths are padded with `ignored_label`.
/// Rows of tokens are read as those of JSON Lines.
RawData read_tfrecord(const std::string& path, const RowLengths& lengths = {},
                      std::int64_t ignored_label = -100, bool one_row_per_text = false);
bool is_tfrecord(std::span<const std::byte> bytes);

/// Whether a file's name has a word for a part that is not trained on: val, valid, dev, test, …;
/// "latest" has none.
bool names_other_part(const std::string& file);
/// The same for test, tests, testing, testset.
bool names_test_part(const std::string& file);
/// Where there are files for validation, drops those for tests, which may lack labels, with a note.
void prefer_validation(std::vector<std::string>& files, std::vector<std::string>& notes);
struct FileParts {
  std::vector<std::string> train, validation;
};
/// Divides the files of a data set by their names, and prefers those for validation to those for
/// tests. Files that all have such names, and a single file, are trained on.
FileParts divide_files(const std::vector<std::string>& files, std::vector<std::string>& notes);
/// As names_other_part, for train, training, trainset.
bool names_training_part(const std::string& file);

/// A file's name in small letters, without .gz and .xz: its end tells a format.
std::string bare_name(const std::string& file);
/// Whether files of tables, or of JSON Lines, are called so in folders.
bool is_table_name(const std::string& name);
bool is_jsonl_name(const std::string& name);

/// Whether a path is a glob: its last part has any of * ? [.
bool is_glob(const std::string& path);
/// Files that a path names: itself, what a glob (* ? [) matches, or those of a directory's regular
/// files whose names `takes` accepts; sorted by name. Of a file and links to it beside it, one is
/// listed, or one for each part of the data that they name.
using TakesName = bool (*)(const std::string& name);
std::vector<std::string> list_files(const std::string& path, TakesName takes = nullptr);
/// The tables of a folder that are called train.csv, and val.csv or test.csv; empty if there are
/// none.
struct TableFiles {
  std::string train, validation;
};
TableFiles table_files_in(const std::string& folder);
/// The only one of them. Error kUsage if there are several, which this format does not take.
std::string only_file(const std::string& path, std::string_view format);

}  // namespace pipetrain
