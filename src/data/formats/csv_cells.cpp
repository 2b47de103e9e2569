#include "data/formats/csv_cells.h"

#include <algorithm>
#include <iterator>

#include "data/formats/table_encoding.h"

namespace pipetrain {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string with_decimal_point(std::string_view cell) {
  const std::size_t comma = cell.find(',');
  if (comma == std::string_view::npos || cell.find(',', comma + 1) != std::string_view::npos ||
      cell.find_first_not_of("0123456789+-eE,") != std::string_view::npos)
    return {};
  std::string out(cell);
  out[comma] = '.';
  return out;
}

bool commas_are_decimal(std::string_view line) {
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool inside = i > 0 && i + 1 < line.size();
    if (line[i] == ',' && !(inside && is_digit(line[i - 1]) && is_digit(line[i + 1]))) return false;
  }
  return true;
}

bool looks_like_date(std::string_view cell) {
  char between = 0;
  for (int part = 1;; ++part) {
    const std::size_t digits =
        static_cast<std::size_t>(std::ranges::find_if_not(cell, is_digit) - cell.begin());
    if (digits == 0 || digits > 4) return false;
    cell.remove_prefix(digits);
    if (part == 3) return cell.empty() || cell.front() == ' ' || cell.front() == 'T';
    if (cell.empty() || std::string_view("-/.").find(cell.front()) == std::string_view::npos ||
        (part == 2 && cell.front() != between))
      return false;
    between = cell.front();
    cell.remove_prefix(1);
  }
}

bool looks_like_amount(std::string_view cell) {
  constexpr std::string_view kNoBreakSpace = "\u00a0", kNarrowSpace = "\u202f";
  constexpr std::string_view kSigns[] = {",", "'", "’", " ", kNoBreakSpace, kNarrowSpace, "%",
                                         "$", "€", "£", "¥", "₹",           "₩",          "₽"};
  std::string bare;
  while (!cell.empty()) {
    const auto* sign =
        std::ranges::find_if(kSigns, [&](std::string_view each) { return cell.starts_with(each); });
    const char c = cell.front();
    if (sign == std::end(kSigns)) {
      if (!is_digit(c) && c != '.' && c != '-' && c != '+') return false;
      bare += c;
    }
    cell.remove_prefix(sign == std::end(kSigns) ? 1 : sign->size());
  }
  return number_in(bare).has_value();
}

std::string quoted_cell(const std::string& text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  const bool plain =
      text.empty() || (!is_blank(text.front()) && !is_blank(text.back()) && text.front() != '#' &&
                       text.find_first_of(",;\"\r\n") == text.npos);
  if (plain) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace pipetrain
