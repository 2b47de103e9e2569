// The fields of one message in protobuf's wire format, for small messages that are read without
// generated code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipetrain {

class ProtobufMessage {
 public:
  using Bytes = std::span<const std::byte>;
  explicit ProtobufMessage(Bytes bytes) : rest_(bytes) {}

  /// Steps to the next field; false at the end or where the message is damaged.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    number = static_cast<std::uint32_t>(tag >> 3);
    wire = static_cast<int>(tag & 7);
    if (!good) return false;
    if (wire == 0) {
      value = varint();
    } else if (wire == 1) {
      take(8);
    } else if (wire == 2) {
      take(varint());
    } else if (wire == 5) {
      take(4);
    } else {
      good = false;
    }
    return good;
  }
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = std::to_integer<std::uint64_t>(rest_[0]);
      rest_ = rest_.subspan(1);
      if (shift < 64) out |= (byte & 127) << shift;
      if (byte < 128) return out;
    }
    good = false;
    return 0;
  }
  bool at_end() const { return rest_.empty(); }

  std::uint32_t number = 0;
  int wire = 0;
  std::uint64_t value = 0;
  Bytes content;
  bool good = true;

 private:
  void take(std::uint64_t length) {
    good &= length <= rest_.size();
    if (!good) return;
    content = rest_.first(length);
    rest_ = rest_.subspan(length);
  }
  Bytes rest_;
};

}  // namespace pipetrain
