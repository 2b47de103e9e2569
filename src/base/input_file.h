// Opens what a user names as input. It is the only place that opens files for reading by name, for
// it may be a pipe that nothing writes to, or a device that never ends.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"

namespace pipetrain {

/// A file or pipe that is open for reading.
class InputFile {
 public:
  enum class Takes : std::uint8_t { kFiles, kPipesToo };
  /// Error (`kind`) naming `path` if it cannot be opened, is a directory, a pipe or a device. With
  /// kPipesToo, pipes are read; opening one that nothing writes to never waits longer than two
  /// seconds.
  InputFile(const std::filesystem::path& path, ErrorKind kind, Takes takes = Takes::kFiles);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }
  const struct stat& status() const { return status_; }
  /// The content; Error (`kind`) if it is larger than `most` bytes.
  std::string read(std::size_t most) const;
  /// `bytes` of a file from `offset` on, or fewer where it ends.
  std::string read_at(off_t offset, std::size_t bytes) const;

 private:
  void wait_for_writer();

  std::string path_;
  ErrorKind kind_;
  int descriptor_ = -1;
  struct stat status_ {};
  std::string begin_;  // read while waiting
};

/// What can be read from a descriptor until its end; Error (`kind`) naming `path`.
std::string read_all(int descriptor, const std::string& path, ErrorKind kind, std::size_t most);

/// The content of a file; Error (`kind`) as above.
std::string read_file(const std::filesystem::path& path, ErrorKind kind, std::size_t most);
/// The same, or its first bytes; none where that would be an error.
std::optional<std::string> read_if_file(const std::filesystem::path& path, std::size_t most);
std::optional<std::string> begin_of_file(const std::filesystem::path& path, std::size_t bytes);
/// The last bytes of a file; empty where that would be an error.
std::string end_of_file(const std::filesystem::path& path, std::size_t bytes);

}  // namespace pipetrain
