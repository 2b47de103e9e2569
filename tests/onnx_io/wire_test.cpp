#include "onnx_io/wire.h"

#include <gtest/gtest.h>

#include <limits>

namespace pipetrain::onnx_wire {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(WireTest, VarintsAreThoseOfTheProtobufDocumentation) {
  std::string out;
  append_varint(out, 1);
  append_varint(out, 150);
  append_varint(out, 300);
  EXPECT_EQ(out, "\x01\x96\x01\xac\x02");
  out.clear();
  append_varint(out, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(out, std::string(9, '\xff') + "\x01");
  Reader reader(bytes_of(out), {0, out.size()});
  EXPECT_EQ(reader.varint(), std::numeric_limits<std::uint64_t>::max());
}

TEST(WireTest, FieldsKnowWhereTheyStand) {
  // Field 2, "testing"; field 1, 150: the examples of the encoding's documentation.
  const std::string file = "\x12\x07testing\x08\x96\x01";
  Reader reader(bytes_of(file), {0, file.size()});
  const Field string = reader.next();
  EXPECT_EQ(string.number, 2U);
  EXPECT_EQ(string.wire, Wire::kBytes);
  EXPECT_EQ(string.length_at, 1U);
  EXPECT_EQ(text(bytes_of(file), string.content), "testing");
  EXPECT_EQ(string.record.end, 9U);
  const Field number = reader.next();
  EXPECT_EQ(number.number, 1U);
  EXPECT_EQ(number.varint, 150U);
  EXPECT_EQ(number.record.begin, 9U);
  EXPECT_TRUE(reader.at_end());
}

TEST(WireTest, EveryWayToRunPastTheEndIsDamage) {
  for (const std::string& file :
       {std::string("\x12"),
        std::string("\x12\x05"
                    "abcd"),
        std::string("\x0d\x01\x02\x03"), std::string("\x09\x01"), std::string("\x08\x80"),
        std::string("\x0b"), std::string("\x00", 1),
        std::string("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    Reader reader(bytes_of(file), {0, file.size()});
    EXPECT_THROW(reader.next(), Damage);
  }
}

TEST(WireTest, ARangeIsNotLeft) {
  const std::string file = "\x12\x07testing";
  Reader reader(bytes_of(file), {0, 5});
  EXPECT_THROW(reader.next(), Damage);
}

}  // namespace
}  // namespace pipetrain::onnx_wire
