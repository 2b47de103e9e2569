#include "base/error.h"

#include <algorithm>

#include "base/safe_text.h"

namespace pipetrain {

Error::Error(ErrorKind kind, std::string message)
    : kind_(kind), message_(std::move(message)), text_(message_) {}

void Error::add_frame(const std::string& frame) {
  frames_.push_back("while " + frame);
  text_ += "\n  " + frames_.back();
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaximum = 200;
  std::size_t end = std::min(text.size(), kMaximum);
  // Between two characters, unless it is no UTF-8 anyway.
  const auto continues = [&] { return end < text.size() && (text[end] & 0xc0) == 0x80; };
  for (int i = 0; i < 3 && continues(); ++i) --end;
  std::string out;
  for (const char c : safe_text(text.substr(0, end))) {
    if (c == '\n' || c == '\t') {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += c;
    }
  }
  if (end < text.size()) out += "…";
  return out;
}

}  // namespace pipetrain
