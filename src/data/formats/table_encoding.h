// How the columns of a table become numbers: words as categories, fillings for missing cells, and
// scaling. Fitted on the training rows; a trained model keeps it for later tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/rows/readers.h"

namespace pipetrain {

/// The feature columns of a table as text.
struct TableCells {
  std::string file;                               // for errors
  std::vector<std::string> names;                 // one per column; "column 3" without a header
  std::vector<std::vector<std::string>> columns;  // [column][row]
  std::vector<std::uint32_t> lines;               // one per row
};

struct EncodedColumn {
  enum class Kind : std::uint8_t { kNumber, kOneHot, kCodes };
  std::string name;
  Kind kind = Kind::kNumber;
  /// Categories in byte order; an empty word is the category of missing cells.
  std::vector<std::string> words;
  /// What missing cells get: a number, or a category (an empty word that is not among the words:
  /// no category, as no training row had a gap). None: they are errors.
  std::optional<double> filling;
  std::optional<std::string> word;
  bool marked = false;  // a number: another column is 1 where the cell was missing
  double mean = 0, deviation = 1;

  std::size_t width() const;
};

struct TableEncoding {
  bool has_header = false;
  std::string label;  // the header's name of the label column, if there was one
  std::vector<EncodedColumn> columns;
  /// The columns are all those of a table of numbers, as they are: only their names matter.
  bool names_only = false;
  std::optional<std::size_t> label_place;  // then: the label column's, for tables without a header

  std::size_t width() const;
  /// Names of the numbers: "age", "age missing", "city=Paris".
  std::vector<std::string> field_names() const;
  /// The words of each of them that is a code; none for others.
  std::vector<std::vector<std::string>> field_words() const;
  /// As JSON, for a model's metadata.
  std::string text() const;
  /// Error (kData) for what text() does not write.
  static TableEncoding parse(const std::string& text);
};

/// Whether a cell stands for a missing value: empty, NA, NaN, null, None, ?.
bool is_missing(std::string_view cell);
/// A cell as a number, if it is one.
std::optional<double> number_in(std::string_view cell);

/// Chooses the encoding from some rows. Errors: kData, naming line and column, and the option that
/// encodes the cell.
TableEncoding fit_encoding(const TableCells& cells, std::span<const std::size_t> rows,
                           const CsvOptions& options);

/// (rows, width) numbers. `notes` get one sentence per column that is not just copied. With
/// `bad_cells_as_nan`, cells that have no number become NaN instead of errors.
std::vector<float> encode_table(const TableCells& cells, const TableEncoding& encoding,
                                bool bad_cells_as_nan, std::vector<std::string>& notes);

}  // namespace pipetrain
