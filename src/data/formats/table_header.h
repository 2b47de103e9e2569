// What the beginning of a table tells: what is between its cells, whether its first row has the
// names of the columns, and whether its numbers have decimal commas.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "data/formats/table_encoding.h"
#include "data/rows/readers.h"

namespace pipetrain {

using Record = std::vector<std::string>;

/// The first of , tab ; space outside quotes in the first line that is not a comment; not a comma
/// where all of them are decimal commas between others.
char guess_delimiter(std::string_view text);

/// Whether numbers have decimal commas, from the beginning of the text.
bool has_decimal_commas(std::string_view text, char delimiter, const std::string& name);

/// Whether a column's name says that it holds the labels. "sales/target" is a quotient.
bool names_labels(const std::string& column);

/// The first records of a table, at most. `comments`: as RecordReader has it.
std::vector<Record> first_records(std::string_view text, char delimiter, const std::string& name,
                                  bool comments);

/// Whether the first record names the columns: it has no number, and a column below it has numbers,
/// or the same words again and again but never that of the first record.
bool begins_with_names(const std::vector<Record>& records);

/// Whether the first row has a word in a column that holds a number below it. What begins like a
/// number is a damaged number, not a word.
bool has_words_above_numbers(const Record& first, const Record& second);

/// Whether a table without numbers below words certainly begins with names: those that the options
/// give, or a name of labels in a record that differs from the rows. A row must not get lost.
bool has_names_above_words(const std::vector<Record>& records, const CsvOptions& options);

/// Whether there are rows below the first record, none of whose cells is one of its column below or
/// begins like a number.
bool differs_from_rows(const std::vector<Record>& records);

constexpr std::size_t kNoLabel = std::numeric_limits<std::size_t>::max();

/// The column of the labels in a table called `name`, or kNoLabel. `header` may be empty.
std::size_t find_label(const CsvOptions& options, const Record& header, std::size_t columns,
                       const std::string& name, std::vector<std::string>& notes);

/// The label column of a table whose header lacks the name that the labels had in training: a
/// column that is no feature and is named like labels, is the only such column, or the last of the
/// table. kNoLabel if there is none.
std::size_t label_beside(const TableEncoding& features, const Record& header);

/// Error (kData) if a header has a name more often than it is `given`, not counting the label.
void check_unique(const std::string& column, std::size_t given, std::size_t label,
                  const Record& header, const std::string& name);

}  // namespace pipetrain
