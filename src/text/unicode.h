// UTF-8, and what Unicode says of a character (utf8proc).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pipetrain {

constexpr char32_t kReplacementCharacter = 0xfffd;

struct DecodedCharacter {
  char32_t code = 0;
  std::size_t bytes = 0;
  bool valid = true;  // otherwise code is U+FFFD, and the bytes are what one of them stands for
};
/// The first character of a text that is not empty. What is not UTF-8 counts by its longest
/// beginnings of characters, as in Python and in browsers.
DecodedCharacter first_character(std::string_view text);
void append_utf8(std::string& out, char32_t code);
/// `text` with U+FFFD for what is not UTF-8.
std::string valid_utf8(std::string_view text);
/// The characters of a text.
std::u32string characters_of(std::string_view text);
std::string utf8_of(std::u32string_view characters);

enum class NormalForm : unsigned char { kC, kD, kKC, kKD };
std::u32string normalized(std::u32string_view text, NormalForm form);

/// The property White_Space.
bool is_white_space(char32_t code);
/// General categories Cc, Cf, Co (and Cs).
bool is_other(char32_t code);
/// General category Mn.
bool is_nonspacing_mark(char32_t code);
/// Alphabetic, marks, digits, connectors, joiners: \w of Unicode's regular expressions.
bool is_word_character(char32_t code);
/// The full lower-case mapping of one character, without context.
void append_lower(std::u32string& out, char32_t code);

}  // namespace pipetrain
