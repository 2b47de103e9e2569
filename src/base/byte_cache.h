// A folder of files that can be made again: bytes by key, checked when they are read, the least
// recently used ones removed when they become too many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace pipetrain {

class ByteCache {
 public:
  /// An empty folder's name: nothing is kept. Several processes may share the folder.
  ByteCache(std::filesystem::path folder, std::uintmax_t most_bytes)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  /// What was put in last under the key; nothing when it is not there or is damaged.
  std::optional<std::string> find(std::string_view key) const;
  /// A folder that cannot be written is no error: then nothing is kept.
  void put(std::string_view key, std::string_view bytes) const;

 private:
  std::filesystem::path file_of(std::string_view key) const;
  void remove_oldest() const;

  std::filesystem::path folder_;
  std::uintmax_t most_bytes_;
};

}  // namespace pipetrain
