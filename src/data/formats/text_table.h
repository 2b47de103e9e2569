// Texts as they are in files, before a tokenizer has seen them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/file_bytes.h"
#include "data/rows/raw_data.h"
#include "data/rows/readers.h"

namespace pipetrain {

/// Texts of one file, with what belongs to each.
struct TextTable {
  std::string file;
  std::string name;                  // of their column; empty: a plain file
  std::vector<std::string> texts;    // unless `whole` is the only one
  FileBytes whole;                   // a file that is one text
  std::vector<std::string> seconds;  // empty: no pairs
  std::vector<std::uint32_t> lines;
  std::optional<RawColumn> labels;

  std::size_t size() const { return texts.empty() ? 1 : texts.size(); }
  std::string_view text(std::size_t row) const {
    return texts.empty() ? whole.text() : std::string_view(texts[row]);
  }
};

/// Objects with a text each, one a line.
TextTable read_text_lines(const std::string& file, const TextOptions& options,
                          const CsvOptions& table);
/// A table with a column of texts.
TextTable read_text_columns(const std::string& file, const TextOptions& options,
                            const CsvOptions& table);
/// A plain file, as one text or line by line (without empty lines).
TextTable read_plain_text(const std::string& file, bool by_line);

/// Whether the first object of JSON Lines has a string that is no label.
bool first_line_has_text(const std::string& file);

/// Whether texts are usually called so, or a part of the name is: "text", "review text", …
bool is_name_of_texts(std::string_view name);

}  // namespace pipetrain
