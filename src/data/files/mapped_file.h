// A memory-mapped file for reading. Where it is truncated meanwhile, it reads as zeros instead of
// ending the program with SIGBUS; readers check afterwards whether that has happened.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace pipetrain {

struct MappedRange;

class MappedFile {
 public:
  /// Maps an open file that is regular and not empty; null where it cannot be mapped. `path` is
  /// where it was opened.
  static std::shared_ptr<const MappedFile> map(int descriptor, const struct stat& status,
                                               const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Error (kData) if the file has become shorter since it was mapped, so that some of what was
  /// read may be zeros.
  void check() const;

 private:
  MappedFile(std::span<const std::byte> bytes, const struct stat& status, const std::string& path);
  /// What has happened to the file, in a sentence; empty: nothing.
  std::string damage() const;

  std::span<const std::byte> bytes_;
  dev_t device_;
  ino_t inode_;
  std::string path_;
  MappedRange* range_;
  mutable std::atomic<bool> checked_ = false;
};

/// Error (kData) if a file that is mapped has become shorter, or one that nobody has checked before
/// it was unmapped.
void check_mapped_files();

/// Runs `read`, then `check`, even where `read` fails: a file that became shorter meanwhile is the
/// cause of whatever else went wrong.
template <class Read, class Check>
auto read_and_check(Read&& read, Check&& check) {
  const auto result = [&] {
    try {
      return read();
    } catch (...) {
      check();
      throw;
    }
  };
  auto out = result();
  check();
  return out;
}

}  // namespace pipetrain
