#include "base/checksum.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstring>

#include "base/error.h"

namespace pipetrain {
namespace {

constexpr std::size_t kLanes = 8;
using CrcTables = std::array<std::array<std::uint32_t, 256>, kLanes>;

/// Table k advances a byte over k further zero bytes, so that eight bytes are processed at once
/// (Kounavis and Berry 2005).
constexpr CrcTables make_crc_tables() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, bits reversed
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t lane = 1; lane < kLanes; ++lane) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[lane - 1][byte];
      tables[lane][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr CrcTables kCrc = make_crc_tables();

#ifdef __x86_64__
bool has_crc_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

/// The checksum after further words of kLanes bytes, about five times as fast as with the tables.
__attribute__((target("sse4.2"))) std::uint32_t add_words(std::uint32_t crc,
                                                          std::span<const std::byte> bytes) {
  std::uint64_t wide = crc;
  for (std::size_t i = 0; i < bytes.size(); i += kLanes) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, kLanes);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  return static_cast<std::uint32_t>(wide);
}
#else
constexpr bool has_crc_instruction() { return false; }
std::uint32_t add_words(std::uint32_t crc, std::span<const std::byte>) { return crc; }
#endif

std::string hexadecimal(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  PT_CHECK(context_->evp && EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1, kInternal,
           "libcrypto offers no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size());
}

void Sha256::add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }

std::string Sha256::digest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_->evp, bytes.data(), &size);
  return hexadecimal({bytes.data(), size});
}

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.digest();
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  PT_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data(),
                &size) != nullptr,
           kInternal, "libcrypto offers no HMAC");
  return hexadecimal({bytes.data(), size});
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  std::size_t i = 0;
  if (has_crc_instruction()) {
    i = bytes.size() / kLanes * kLanes;
    crc = add_words(crc, bytes.first(i));
  }
  for (; i + kLanes <= bytes.size(); i += kLanes) {
    std::uint32_t low = 0, high = 0;
    std::memcpy(&low, bytes.data() + i, 4);
    std::memcpy(&high, bytes.data() + i + 4, 4);
    low ^= crc;
    crc = kCrc[7][low & 0xFF] ^ kCrc[6][(low >> 8) & 0xFF] ^ kCrc[5][(low >> 16) & 0xFF] ^
          kCrc[4][low >> 24] ^ kCrc[3][high & 0xFF] ^ kCrc[2][(high >> 8) & 0xFF] ^
          kCrc[1][(high >> 16) & 0xFF] ^ kCrc[0][high >> 24];
  }
  for (; i < bytes.size(); ++i)
    crc = (crc >> 8) ^ kCrc[0][(crc ^ static_cast<std::uint32_t>(bytes[i])) & 0xFF];
  return ~crc;
}

}  // namespace pipetrain
