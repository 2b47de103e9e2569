// A file that is replaced atomically: written under a temporary name in the target's directory,
// synced, then renamed. If the process is killed at any moment, the old file is intact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace pipetrain {

/// Whether a path is written in place: a device, a pipe, or the name of an open file (/dev/stdout).
bool is_special(const std::filesystem::path& path);
/// Whether a path is a name of standard output: /dev/stdout, /dev/fd/1.
bool names_standard_output(const std::filesystem::path& path);
/// Throws an Error (kData) for a pipe or a device: reading it could block, or never end.
void check_is_file(const std::filesystem::path& path);

/// One file being written. Nothing appears at `path` before commit(); without it, the temporary
/// file is removed. Errors are kResource and name the file.
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
  /// Skips `bytes` zero bytes: they take no disk space if the file system supports sparse files.
  void skip(std::uint64_t bytes);
  /// Length of the file so far, including skipped bytes.
  std::uint64_t written() const { return written_; }
  /// Syncs the bytes to disk and closes the temporary file. To write several files that refer to
  /// each other, finish all, then commit a file before those that refer to it.
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

/// Makes the entries of a directory last through a power loss. Returns what prevents it.
std::error_code sync_directory(const std::filesystem::path& directory);
/// Makes a directory and those above it where they are missing; all of them last.
std::error_code make_directories(const std::filesystem::path& directory);

/// Writes a whole file at once.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace pipetrain
