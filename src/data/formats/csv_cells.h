// What the cells of a table look like.
#pragma once

#include <string>
#include <string_view>

namespace pipetrain {

/// "3,14" as "3.14"; empty unless the cell may be a number with a decimal comma.
std::string with_decimal_point(std::string_view cell);
/// Whether every comma of a line stands between digits, as a decimal comma does.
bool commas_are_decimal(std::string_view line);
/// 2024-05-31, 31.5.24, 05/31/2024, also with a time behind it.
bool looks_like_date(std::string_view cell);
/// "1,234.50", "$12", "50 %": a number with separators or signs around it.
bool looks_like_amount(std::string_view cell);

/// A text as a cell: in quotation marks where readers would take it for something else (RFC 4180).
std::string quoted_cell(const std::string& text);

}  // namespace pipetrain
