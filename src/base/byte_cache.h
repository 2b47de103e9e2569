// An on-disk cache: bytes by key, verified when read; the least recently used entries are removed
// when it exceeds its size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace pipetrain {

class ByteCache {
 public:
  /// An empty folder name disables the cache. Several processes may share the folder.
  ByteCache(std::filesystem::path folder, std::uintmax_t most_bytes)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  /// The bytes last stored under the key; nothing if missing or damaged.
  std::optional<std::string> find(std::string_view key) const;
  /// A folder that cannot be written is not an error: the entry is dropped.
  void put(std::string_view key, std::string_view bytes) const;

 private:
  std::filesystem::path file_of(std::string_view key) const;
  void remove_oldest() const;

  std::filesystem::path folder_;
  std::uintmax_t most_bytes_;
};

}  // namespace pipetrain
