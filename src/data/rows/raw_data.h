// The content of a data file before it is bound to a model: named arrays with one row per sample,
// or a stream of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/files/file_bytes.h"
#include "tensor/tensor.h"

namespace pipetrain {

enum class ColumnRole { kUnknown, kInput, kLabel };

class RowSource;

/// One array; values: (rows, sample shape…), or empty where `source` makes the rows.
struct RawColumn {
  std::string name;
  HostTensor values;
  std::string file;
  ColumnRole role = ColumnRole::kUnknown;
  /// For a matrix read from a table: the header's name of each column of the matrix.
  std::vector<std::string> field_names;
  /// For labels that were names: the names, in the order of the class numbers.
  std::vector<std::string> class_names;
  /// For text files: the line of each row; empty where rows are just counted.
  std::vector<std::uint32_t> lines;
  /// Rows that are decoded on the fly (row_source.h).
  std::shared_ptr<const RowSource> source = nullptr;
  /// Made by the reader for models that have such an input; otherwise not missed: attention_mask.
  bool is_optional = false;
  /// Of a matrix read from a table: the words of each column of codes, empty for others.
  std::vector<std::vector<std::string>> field_words = {};
  /// Of labels that are numbers in a table of text, one a row: a training with other words among
  /// them has read such numbers as words.
  bool may_be_words = false;
  /// Of lists that are padded: how many values of each row are its own.
  std::vector<std::size_t> row_values = {};

  std::size_t rows() const;
  DType dtype() const;
  Shape sample_shape() const;
  /// "digits.csv line 17", or "labels.idx item 1234".
  std::string locate(std::size_t row) const;
};

/// A file of token ids, little-endian integers, not copied into memory.
struct TokenShard {
  std::string file;
  FileBytes content;
  DType dtype = DType::kUint16;  // any integer type; no id is negative
  std::size_t header_bytes = 0;
  bool from_tokenizer = false;

  std::size_t tokens() const;
  std::uint64_t token(std::size_t position) const;
};

/// Either columns or shards is empty.
struct RawSplit {
  std::vector<RawColumn> columns;
  std::shared_ptr<const std::vector<TokenShard>> shards = nullptr;
  /// Of a table: the names of its columns, and how they were encoded (TableEncoding::text); empty:
  /// they have no names.
  std::string encoding = {};
  bool is_encoded = false;  // its numbers are not just those of the table
  /// Whether texts were left out, for want of a tokenizer.
  bool leaves_out_texts = false;
  /// Tokens of a sample, where shards are to be cut into such; 0: as the model wants.
  std::size_t window = 0;
  /// Of texts: how they became tokens (TextOptions::text).
  std::string texts = {};
  /// Of rows of whole numbers that may be padded: their length.
  std::size_t row_length = 0;
  /// Of LibSVM's format: what the file's indices count from.
  std::optional<std::uint32_t> first_index = {};
  /// Of masks: whether they have classes above 1, so that 255 is no drawing's white in others
  /// either.
  bool masks_are_numbered = false;

  bool empty() const { return columns.empty() && !shards; }
};

struct RawData {
  std::string path;
  /// "NumPy archive (npz)", …
  std::string format;
  RawSplit train;
  /// The part that the source itself sets aside (x_test, t10k-images, val.bin); may be empty.
  RawSplit validation;
  /// Choices that the reader made, one sentence each.
  std::vector<std::string> notes;
  std::vector<std::string> warnings = {};             // those of them that nobody may miss
  std::vector<std::string> validation_warnings = {};  // of the validation part
};

}  // namespace pipetrain
