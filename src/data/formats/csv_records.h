// Records of CSV: quoting of RFC 4180.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/formats/csv_cells.h"

namespace pipetrain {

// Splits a text into records of fields; blank lines and, unless they may be data, comments are
// passed over: all lines beginning with '#', as a row that is taken out looks like any other.
class RecordReader {
 public:
  /// `decimal_commas`: numbers with one get a point. `comments`: lines beginning with '#' are such.
  RecordReader(std::string_view text, char delimiter, const std::string& name,
               bool decimal_commas = false, bool comments = true)
      : rest_(text),
        delimiter_(delimiter),
        name_(name),
        comments_(comments),
        decimal_commas_(decimal_commas) {}

  /// The next record's fields, valid until the following call; false at the end.
  bool next(std::vector<std::string_view>& fields) {
    fields.clear();
    unquoted_.clear();
    while (!rest_.empty()) {
      ++line_;
      record_line_ = line_;
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      const std::string_view line = without_blanks(rest_.substr(0, end));
      const bool comment = comments_ && line.starts_with('#');
      if (!line.empty() && !comment) break;
      passed_over_ += comment;
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
    }
    if (rest_.empty()) return false;
    bool more = true;
    while (more) more = take_field(fields);
    for (std::size_t i = 0; decimal_commas_ && i < fields.size(); ++i) {
      if (std::string number = with_decimal_point(fields[i]); !number.empty())
        fields[i] = *unquoted_.insert(unquoted_.end(), std::move(number));
    }
    return true;
  }
  /// The line that the record begins on, from 1.
  std::uint32_t line() const { return record_line_; }
  /// Comments so far.
  std::size_t comments() const { return passed_over_; }

  static std::string_view trim(std::string_view text) {
    const auto blank = [](char c) { return c == ' ' || c == '\r' || c == '\t'; };
    while (!text.empty() && blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    return text;
  }

 private:
  // Tabs between empty cells are not blanks.
  std::string_view without_blanks(std::string_view line) const {
    const std::string_view blanks = delimiter_ == '\t' ? " \r" : " \r\t";
    const std::size_t begin = line.find_first_not_of(blanks);
    return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(blanks) + 1 - begin);
  }
  // Takes one field and its delimiter; returns whether the record continues.
  bool take_field(std::vector<std::string_view>& fields) {
    std::size_t begin = 0;
    while (begin < rest_.size() && rest_[begin] == ' ') ++begin;
    if (begin < rest_.size() && rest_[begin] == '"') {
      rest_.remove_prefix(begin + 1);
      fields.push_back(take_quoted());
      const std::size_t end = find_end();
      PT_CHECK(trim(rest_.substr(0, end)).empty(), kData,
               "{} line {}: text follows the closing quote of column {}", name_, line_,
               fields.size());
      return take_end(end);
    }
    const std::size_t end = find_end();
    fields.push_back(trim(rest_.substr(0, end)));
    return take_end(end);
  }
  std::size_t find_end() const {
    std::size_t end = 0;
    while (end < rest_.size() && rest_[end] != delimiter_ && rest_[end] != '\n') ++end;
    return end;
  }
  bool take_end(std::size_t end) {
    const bool more = end < rest_.size() && rest_[end] == delimiter_;
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return more;
  }
  // rest_ is after the opening quote; "" inside is an escaped quote.
  std::string_view take_quoted() {
    std::string out;
    while (true) {
      const std::size_t quote = rest_.find('"');
      PT_CHECK(quote != std::string_view::npos, kData, "{} line {}: a quoted field is never closed",
               name_, record_line_);
      const std::string_view part = rest_.substr(0, quote);
      line_ += static_cast<std::uint32_t>(std::count(part.begin(), part.end(), '\n'));
      out += part;
      rest_.remove_prefix(quote + 1);
      if (!rest_.starts_with('"')) break;
      out += '"';
      rest_.remove_prefix(1);
    }
    return *unquoted_.insert(unquoted_.end(), std::move(out));
  }

  std::string_view rest_;
  char delimiter_;
  const std::string& name_;
  bool comments_;
  std::uint32_t line_ = 0;
  std::uint32_t record_line_ = 0;
  std::size_t passed_over_ = 0;
  bool decimal_commas_;
  std::list<std::string> unquoted_;  // unescaped and rewritten fields of this record
};

}  // namespace pipetrain
