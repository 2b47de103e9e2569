#include "onnx_io/wire.h"

#include <fmt/core.h>

namespace pipetrain::onnx_wire {

std::string_view name_of(Wire wire) {
  switch (wire) {
    case Wire::kVarint:
      return "a varint";
    case Wire::kFixed64:
      return "8 bytes";
    case Wire::kBytes:
      return "a byte string";
    case Wire::kFixed32:
      return "4 bytes";
  }
  return "an unknown wire type";
}

std::uint64_t Reader::varint() {
  const std::size_t start = position_;
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    if (position_ >= end_) throw Damage{start, "a number is cut off"};
    const auto byte = std::to_integer<std::uint64_t>(bytes_[position_++]);
    if (shift == 63 && byte > 1) throw Damage{start, "a number needs more than 64 bits"};
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

Field Reader::start() {
  Field field;
  field.record.begin = position_;
  const std::uint64_t tag = varint();
  const std::uint64_t wire = tag & 7;
  if (tag >> 3 == 0 || tag >> 32 != 0) {
    throw Damage{field.record.begin, fmt::format("there is no field number {}", tag >> 3)};
  }
  if (wire != 0 && wire != 1 && wire != 2 && wire != 5) {
    throw Damage{field.record.begin, fmt::format("wire type {} is not used by ONNX", wire)};
  }
  field.number = static_cast<std::uint32_t>(tag >> 3);
  field.wire = static_cast<Wire>(wire);
  return field;
}

void Reader::finish(Field& field) {
  field.length_at = position_;
  std::uint64_t size = 0;
  switch (field.wire) {
    case Wire::kVarint:
      field.varint = varint();
      field.content = {field.length_at, position_};
      break;
    case Wire::kFixed32:
      size = 4;
      break;
    case Wire::kFixed64:
      size = 8;
      break;
    case Wire::kBytes:
      size = varint();
      break;
  }
  if (size > end_ - position_) {
    throw Damage{field.length_at,
                 fmt::format("{} bytes are claimed and {} are left", size, end_ - position_)};
  }
  if (field.wire != Wire::kVarint) {
    field.content = {position_, position_ + static_cast<std::size_t>(size)};
    position_ = field.content.end;
  }
  field.record.end = position_;
}

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void append_tag(std::string& out, std::uint32_t number, Wire wire) {
  append_varint(out, static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(wire));
}

void append_int(std::string& out, std::uint32_t number, std::uint64_t value) {
  append_tag(out, number, Wire::kVarint);
  append_varint(out, value);
}

void append_bytes(std::string& out, std::uint32_t number, std::string_view value) {
  append_tag(out, number, Wire::kBytes);
  append_varint(out, value.size());
  out += value;
}

}  // namespace pipetrain::onnx_wire
