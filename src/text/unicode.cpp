#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace pipetrain {

namespace {

utf8proc_category_t category_of(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

DecodedCharacter first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {kReplacementCharacter, 1, false};
  // The second byte's range excludes overlong forms, surrogates, and what is above U+10FFFF.
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  char32_t code = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const bool ends =
        i >= text.size() || byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xbf);
    if (ends) return {kReplacementCharacter, i, false};
    code = code << 6 | (byte(i) & 0x3f);
  }
  return {code, length, true};
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const DecodedCharacter one = first_character(text);
    if (one.valid) {
      out += text.substr(0, one.bytes);
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    text.remove_prefix(one.bytes);
  }
  return out;
}

std::u32string characters_of(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const DecodedCharacter one = first_character(text);
    out += one.code;
    text.remove_prefix(one.bytes);
  }
  return out;
}

std::string utf8_of(std::u32string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (const char32_t code : characters) append_utf8(out, code);
  return out;
}

std::u32string normalized(std::u32string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kKC || form == NormalForm::kKD;
  const bool composes = form == NormalForm::kC || form == NormalForm::kKC;
  const auto how = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                  (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size() + 1);
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18 characters
  for (const char32_t code : text) {
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), how, &boundary);
    PT_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), kInternal,
             "U+{:04X} has no decomposition", static_cast<std::uint32_t>(code));
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  // Marks in their canonical order. The library's own sorting is quadratic.
  const auto order = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (auto first = out.begin(); first != out.end();) {
    first = std::find_if(first, out.end(), [&](auto code) { return order(code) != 0; });
    const auto last = std::find_if(first, out.end(), [&](auto code) { return order(code) == 0; });
    std::stable_sort(first, last, [&](auto a, auto b) { return order(a) < order(b); });
    first = last;
  }
  auto length = static_cast<utf8proc_ssize_t>(out.size());
  if (composes) {
    out.push_back(0);
    length = utf8proc_normalize_utf32(
        out.data(), length, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  return {out.begin(), out.begin() + length};
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  const auto category = category_of(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_other(char32_t code) {
  const auto category = category_of(code);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
}

bool is_nonspacing_mark(char32_t code) { return category_of(code) == UTF8PROC_CATEGORY_MN; }

bool is_word_character(char32_t code) {
  // Symbols that are letters in circles and squares, and the two joiners.
  const bool other = (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
                     (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189) ||
                     code == 0x200c || code == 0x200d;
  const auto category = category_of(code);
  return other || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

void append_lower(std::u32string& out, char32_t code) {
  if (code == 0x130) {  // the only character whose mapping has two
    out += U"i\u0307";
    return;
  }
  out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

}  // namespace pipetrain
