#include "base/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace pipetrain {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Sha256, HasTheDigestsOfTheStandard) {
  // FIPS 180-4's examples.
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 parts;
  parts.add("a");
  parts.add(bytes_of("bc"));
  EXPECT_EQ(parts.digest(), sha256("abc"));
}

TEST(Crc32c, HasTheChecksumsOfTheStandard) {
  // RFC 3720, appendix B.4, and the usual check value.
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
  std::vector<std::byte> rising(32);
  for (std::size_t i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(rising), 0x46DD794EU);
}

TEST(Crc32c, IsTheRemainderAtEveryLengthAndPlace) {
  std::vector<std::byte> data(100);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 + 11);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t length = 0; length + begin <= data.size(); ++length) {
      const auto part = std::span<const std::byte>(data).subspan(begin, length);
      std::uint32_t remainder = 0xFFFFFFFFU;  // bit by bit
      for (const std::byte one : part) {
        remainder ^= static_cast<std::uint32_t>(one);
        for (int bit = 0; bit < 8; ++bit)
          remainder = remainder >> 1 ^ ((remainder & 1) != 0 ? 0x82F63B78U : 0U);
      }
      ASSERT_EQ(crc32c(part), ~remainder) << begin << " " << length;
    }
  }
}

TEST(Crc32c, GoesOnWhereItWas) {
  const std::string_view text = "The quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t first = crc32c(bytes_of(text.substr(0, cut)));
    EXPECT_EQ(crc32c(bytes_of(text.substr(cut)), first), 0x22620404U) << cut;
  }
}

TEST(Hmac, IsThatOfTheStandard) {
  // RFC 4231, test cases 1 and 2.
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace pipetrain
