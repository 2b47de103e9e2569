// The bytes of a file: mapped if it can be, read if it is a pipe, inflated if it is gzip or xz.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/files/mapped_file.h"

namespace pipetrain {

/// Shared by its copies, constant.
class FileBytes {
 public:
  FileBytes() = default;
  /// Takes over bytes that are in memory.
  explicit FileBytes(std::string content);
  /// Opens a file; "-" is standard input, which is read once and remembered. Error kData when it
  /// cannot be read.
  static FileBytes open(const std::string& path);
  /// As open; gzip (RFC 1952, several members too) and xz content is inflated.
  static FileBytes open_inflated(const std::string& path);
  /// As open_inflated, of a text. Error kData if it is UTF-16, whose bytes no reader understands.
  static FileBytes open_text(const std::string& path);
  /// The beginning, inflated: enough to recognise a format by, without the rest.
  static FileBytes open_head(const std::string& path, std::size_t most);

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  std::size_t size() const { return bytes_.size(); }
  /// A part, which keeps the whole alive. The caller has checked the range.
  FileBytes slice(std::size_t begin, std::size_t length) const;
  /// After bytes were read: Error (kData) if the file has become shorter since it was opened, so
  /// that some of them may be zeros.
  void check() const {
    if (mapped_) mapped_->check();
  }

 private:
  std::shared_ptr<const void> owner_;
  const MappedFile* mapped_ = nullptr;  // the owner, where that is one
  std::span<const std::byte> bytes_;
};

/// Error (kData) if a text begins with the mark of UTF-16; `name`: of its file.
void check_not_utf16(std::string_view text, const std::string& name);

bool is_gzip(std::span<const std::byte> bytes);
bool is_xz(std::span<const std::byte> bytes);

/// Inflates a whole gzip or xz file; `name` is for errors (kData). With `most`, not more than as
/// many bytes, and what comes after them may be damaged.
std::string inflate_gzip(std::span<const std::byte> bytes, const std::string& name,
                         std::size_t most = SIZE_MAX);
std::string inflate_xz(std::span<const std::byte> bytes, const std::string& name,
                       std::size_t most = SIZE_MAX);

/// Error (kData) if a file of `compressed` bytes inflates to too many; `program` inflates it.
void check_inflated(std::uint64_t compressed, std::uint64_t inflated, const std::string& name,
                    const char* program);

/// Inflates a raw deflate stream (RFC 1951) that must give exactly out.size() bytes.
void inflate_raw(std::span<const std::byte> bytes, std::span<std::byte> out,
                 const std::string& name);

/// Unsigned integers at any alignment. The caller has checked the length.
std::uint64_t little_endian(std::span<const std::byte> bytes);
std::uint64_t big_endian(std::span<const std::byte> bytes);

/// Bytes of an element type swapped in place: big-endian files on a little-endian machine.
void swap_bytes(std::span<std::byte> bytes, std::size_t element_size);

}  // namespace pipetrain
