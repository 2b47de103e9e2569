// Opens what a user names as input, which may be a pipe that nothing writes to.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "base/error.h"

namespace pipetrain {

/// A file or pipe that is open for reading.
class InputFile {
 public:
  /// Error (`kind`) naming `path` if it cannot be opened, is a directory, or is a pipe that nothing
  /// writes to: opening one never waits longer than two seconds.
  InputFile(const std::string& path, ErrorKind kind);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }
  const struct stat& status() const { return status_; }
  /// The content; Error (`kind`) if it is larger than `most` bytes.
  std::string read(std::size_t most) const;

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

}  // namespace pipetrain
