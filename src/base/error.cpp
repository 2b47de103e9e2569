#include "base/error.h"

namespace pipetrain {

Error::Error(ErrorKind kind, std::string message)
    : kind_(kind), message_(std::move(message)), text_(message_) {}

void Error::add_frame(const std::string& frame) {
  frames_.push_back("while " + frame);
  text_ += "\n  " + frames_.back();
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaximum = 200;
  std::string out;
  for (const char c : text.substr(0, kMaximum)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kMaximum) out += "…";
  return out;
}

}  // namespace pipetrain
