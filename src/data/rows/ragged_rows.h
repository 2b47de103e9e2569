// Rows of numbers with the same name, read from records (JSON Lines, TFRecord). Rows of equal
// length become an array; token lists of different lengths become one stream, or are padded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/rows/raw_data.h"
#include "data/rows/row_lengths.h"

namespace pipetrain {

class RaggedRows {
 public:
  RaggedRows() = default;
  explicit RaggedRows(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  std::size_t rows() const { return ends_.size(); }

  void add(std::int64_t value);
  void add(double value);
  void add(std::string_view word);
  /// Ends a row. `shape`: () for a single value; only its first extent may differ from the first
  /// row's. Returns what is wrong, or nothing.
  std::string end_row(const Shape& shape);
  /// Makes lists of one of the single whole numbers so far, before a row of more; false if the rows
  /// are others.
  bool become_lists();
  /// Whether they cannot become an array: real numbers in rows of different lengths.
  bool are_ragged_reals() const { return kind_ == Kind::kReal && !same_length(); }

 private:
  friend RawSplit columns_of(std::vector<RaggedRows> all, const std::string& file,
                             const std::vector<std::uint32_t>& lines,
                             std::vector<std::string>& notes, const RowLengths& lengths,
                             std::int64_t ignored_label, bool alone, bool one_sample_each);
  enum class Kind { kNone, kWhole, kReal, kWord };
  /// Rows of whole numbers: may be tokens.
  bool is_list() const { return kind_ == Kind::kWhole && shape_.rank() == 1; }
  bool same_length() const;
  std::size_t longest() const;
  /// The rows of tokens among all: "input_ids", or else the first list that is padded, or the first
  /// one, rather not a decoder's; none if there is no list.
  static const RaggedRows* tokens_in(const std::vector<RaggedRows>& all);
  /// What each is padded to; 0: its longest row. Labels go with the rows that are as long.
  static std::vector<std::size_t> wanted_lengths(const std::vector<RaggedRows>& all,
                                                 const RaggedRows* tokens,
                                                 const RowLengths& lengths);
  /// Rows that are a stream where they are alone: texts, and tokens of several lengths; else empty.
  RawSplit stream(const std::string& file, std::vector<std::string>& notes) const;
  void add_classes(RawColumn& column) const;
  RawColumn mask(std::size_t most, const std::string& file,
                 const std::vector<std::uint32_t>& lines) const;
  std::size_t begin(std::size_t row) const { return row ? ends_[row - 1] : 0; }
  HostTensor values(std::size_t most, std::int64_t filling) const;
  std::vector<std::size_t> row_values() const;

  std::string name_;
  Kind kind_ = Kind::kNone, row_kind_ = Kind::kNone;
  Shape shape_;
  std::vector<std::int64_t> whole_;
  std::vector<float> real_;
  std::vector<std::string> words_;
  std::vector<std::size_t> ends_;
};

/// Whether so many rows padded to the longest would take far more memory than what they hold.
bool pads_too_much(std::size_t rows, std::size_t longest, std::size_t values);

/// Lengths for other parts of the same data: at least those of the training's rows.
RowLengths lengths_beside(const RawSplit& training, RowLengths lengths);

/// All names have as many rows. `lines`: of each row in the file; may be empty. Rows of tokens, and
/// what is as long as they are, are padded to `lengths`, or to the longest if that is longer;
/// labels with `ignored_label`, others with 0. Tokens that are padded get a mask. Without other
/// columns (`alone`) the only rows may be a stream, rows of tokens unless each is a sample
/// (`one_sample_each`).
RawSplit columns_of(std::vector<RaggedRows> all, const std::string& file,
                    const std::vector<std::uint32_t>& lines, std::vector<std::string>& notes,
                    const RowLengths& lengths = {}, std::int64_t ignored_label = -100,
                    bool alone = true, bool one_sample_each = false);

}  // namespace pipetrain
