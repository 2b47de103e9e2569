// Checksums of files: SHA-256 (FIPS 180-4) identifies a file, CRC-32C (Castagnoli, as in iSCSI and
// TensorFlow's checkpoints) locates damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace pipetrain {

/// Incremental SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// The digest: 64 lower-case hexadecimal digits. Nothing may be added afterwards.
  std::string digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// SHA-256 of a text.
std::string sha256(std::string_view text);

/// HMAC-SHA-256 (RFC 2104) of a text under a key: 64 hexadecimal digits, lower case.
std::string hmac_sha256(std::string_view key, std::string_view text);

/// CRC-32C of bytes appended to data with checksum `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace pipetrain
