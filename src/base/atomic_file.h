// A file that appears whole or not at all: written under a temporary name in the target's
// directory, synced, then renamed. Killed at any moment, the old file is still there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace pipetrain {

/// Whether a path is a device or a pipe, which is written and not replaced.
bool is_special(const std::filesystem::path& path);
/// Refuses to read one (kData): it would be waited for, or never end.
void check_is_file(const std::filesystem::path& path);

/// One file being written. Nothing is at `path` before commit; without it, nothing is left.
/// Errors are kResource and name the file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  const std::filesystem::path& path() const { return path_; }
  /// Reserves disk space, so that a full disk is found before anything is written.
  void reserve(std::uint64_t bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Leaves `bytes` zeros out: they take no disk where the file system knows holes.
  void skip(std::uint64_t bytes);
  /// Length of the file so far, what was skipped included.
  std::uint64_t written() const { return written_; }
  /// Brings the bytes to the disk and closes the temporary file. Writing several files that belong
  /// together: finish all, then commit them in the order in which they refer to each other.
  void finish();
  /// Renames it to `path`, replacing what is there, and syncs the directory. Finishes if needed.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: a pipe or a device, which is written in place
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool finished_ = false;
  bool committed_ = false;
};

/// Writes a whole file at once.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace pipetrain
