#include "base/safe_text.h"

#include <fmt/core.h>

#include <cstdint>

namespace pipetrain {
namespace {

struct Decoded {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

/// The character at the beginning of a text that is not empty.
Decoded decode(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0U) != 0x80) return {};
    code = code << 6 | (next & 0x3fU);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kSmallest[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes};
}

bool is_control(std::uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
}

/// Characters that change the direction of text (Unicode, UAX #9), and line breaks of Unicode.
bool changes_order(std::uint32_t code) {
  return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

/// Length of ESC [ digits ; … m at the beginning of a text; 0 if there is none.
std::size_t color_length(std::string_view text) {
  if (!text.starts_with("\033[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

/// Whether a byte of UTF-8 begins a character.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80; }

std::string escaped(std::string_view text, bool keep_colors) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    if (const std::size_t color = keep_colors ? color_length(text) : 0) {
      out += text.substr(0, color);
      text.remove_prefix(color);
      continue;
    }
    const Decoded character = decode(text);
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes == 0 || (character.code < 0x20 && is_control(character.code))) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_control(character.code) || changes_order(character.code)) {
      out += fmt::format("\\u{:04x}", character.code);
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace

std::string safe_text(std::string_view text) { return escaped(text, false); }
std::string safe_colored_text(std::string_view text) { return escaped(text, true); }

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = decode(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string first_characters(std::string_view text, std::size_t most) {
  std::size_t end = 0, characters = 0;
  for (; end < text.size(); ++end) {
    if (begins_character(text[end]) && ++characters > most) break;
  }
  return std::string(text.substr(0, end));
}

std::string last_characters(std::string_view text, std::size_t most) {
  std::size_t begin = text.size();
  for (std::size_t characters = 0; begin > 0 && characters < most;) {
    if (begins_character(text[--begin])) ++characters;
  }
  return std::string(text.substr(begin));
}

}  // namespace pipetrain
