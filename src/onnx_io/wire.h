// Protobuf's wire format, read with every bound checked and written byte by byte. A field is a tag
// (number and wire type) and a value; a message is its fields; a nested message is bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipetrain::onnx_wire {

enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// "a varint", "a byte string", …
std::string_view name_of(Wire wire);

/// Bytes [begin, end) of a file.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

/// One field of a message.
struct Field {
  std::uint32_t number = 0;
  Wire wire = Wire::kVarint;
  Range record;               // tag and value
  std::size_t length_at = 0;  // of kBytes: where the length prefix begins; it ends at content.begin
  Range content;              // kBytes: the bytes; fixed: the 4 or 8 bytes; varint: its bytes
  std::uint64_t varint = 0;
};

/// What is wrong with the bytes, and where.
struct Damage {
  std::size_t offset;
  std::string what;
};

/// Reads the fields of `bytes`[range) one after the other. Throws Damage.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, Range range)
      : bytes_(bytes), position_(range.begin), end_(range.end) {}

  bool at_end() const { return position_ >= end_; }
  std::size_t position() const { return position_; }
  /// The tag only; the value is then read by `finish`, so that a caller can name the field in
  /// what `finish` throws.
  Field start();
  void finish(Field& field);
  Field next() {
    Field field = start();
    finish(field);
    return field;
  }
  /// A bare varint: an element of a packed field.
  std::uint64_t varint();

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_;
  std::size_t end_;
};

inline std::string_view text(std::span<const std::byte> bytes, Range range) {
  return {reinterpret_cast<const char*>(bytes.data()) + range.begin, range.size()};
}

void append_varint(std::string& out, std::uint64_t value);
void append_tag(std::string& out, std::uint32_t number, Wire wire);
void append_int(std::string& out, std::uint32_t number, std::uint64_t value);
void append_bytes(std::string& out, std::uint32_t number, std::string_view value);

}  // namespace pipetrain::onnx_wire
