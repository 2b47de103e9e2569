// The lines of a text file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace pipetrain {

/// One line after the other, without its end.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : rest_(text) {}

  /// Moves to the next line; false after the last one.
  bool next() {
    if (rest_.empty()) return false;
    line_ = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(line_.size() + 1, rest_.size()));
    ++number_;
    return true;
  }
  /// The same; lines of white space alone are passed over.
  bool next_with_content() {
    while (next()) {
      if (line_.find_first_not_of(" \t\r") != std::string_view::npos) return true;
    }
    return false;
  }
  /// Without the carriage return of files from other systems.
  std::string_view line() const {
    return line_.substr(0, line_.size() - (line_.ends_with('\r') ? 1 : 0));
  }
  /// Of the line in the file, from 1.
  std::uint32_t number() const { return number_; }

 private:
  std::string_view rest_, line_;
  std::uint32_t number_ = 0;
};

}  // namespace pipetrain
