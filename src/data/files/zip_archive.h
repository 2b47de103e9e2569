// The part of ZIP (PKWARE APPNOTE 6.3, ZIP64 included) that .npz files need: stored and deflated
// entries, found through the central directory, because NumPy leaves the sizes in the local headers
// to ZIP64 fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/files/file_bytes.h"

namespace pipetrain {

struct ZipEntry {
  std::string name;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t checksum = 0;
  std::uint64_t compressed_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t header_begin = 0;
};

class ZipArchive {
 public:
  /// Reads the central directory. `name` is for errors (kData).
  ZipArchive(FileBytes content, std::string name);
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// The entry's bytes, checked against its size and CRC-32; not copied if stored.
  FileBytes read(const ZipEntry& entry) const;

 private:
  std::span<const std::byte> part(std::uint64_t begin, std::uint64_t length) const;
  void read_directory();

  FileBytes content_;
  std::string name_;
  std::vector<ZipEntry> entries_;
};

}  // namespace pipetrain
