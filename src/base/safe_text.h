// Text that may hold anything from a file, made safe for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pipetrain {

/// `text` with what a terminal would obey or show in another order escaped: control characters but
/// for line breaks and tabs, C1 controls and bidirectional controls as \x1b or \u009b, bytes that
/// are not UTF-8 as \xff. JSON stays JSON.
std::string safe_text(std::string_view text);

/// The same for text of this program that has colours: ESC [ … m stays.
std::string safe_colored_text(std::string_view text);

bool is_utf8(std::string_view text);

/// At most that many characters of a text in UTF-8, from its beginning or its end.
std::string first_characters(std::string_view text, std::size_t most);
std::string last_characters(std::string_view text, std::size_t most);

}  // namespace pipetrain
