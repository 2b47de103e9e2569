// External data: tensors whose bytes are in another file beside the model. The location comes from
// the file and is not trusted: it can only name a regular file beneath the model's directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace pipetrain {

/// How files named by a model may be reached.
struct ExternalDataRules {
  /// Follow symbolic links and accept files with several hard links (package caches have both).
  bool allow_links = false;
  /// Use openat2 where the kernel has it; false: always go component by component.
  bool use_openat2 = true;
};

/// What tells whether a data file is still the one that was read.
struct FileState {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since 1970
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// An open data file; it is closed when this goes away.
class ExternalFile {
 public:
  /// Opens `location` beneath `directory`. Error (kModel) naming `tensor` and the reason.
  static ExternalFile open(const std::filesystem::path& directory, const std::string& location,
                           const std::string& tensor, const ExternalDataRules& rules);
  ExternalFile(ExternalFile&& other) noexcept;
  ExternalFile& operator=(ExternalFile&& other) noexcept;
  ~ExternalFile();

  std::uint64_t bytes() const { return state_.bytes; }
  const FileState& state() const { return state_; }
  /// Whether nothing was ever written to it: all zeros, without any disk. False as well where the
  /// file system cannot tell.
  bool is_unwritten() const;
  /// Fills `out` from `offset`; the caller has checked that the range is inside. Error (kModel) if
  /// the file has become shorter meanwhile.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  ExternalFile(int descriptor, FileState state, std::string name);
  int descriptor_ = -1;
  FileState state_;
  std::string name_;
};

/// Where an external tensor lies, as its external_data entries say.
struct ExternalRange {
  std::string location;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> length;
};

/// Fails (kModel, naming `tensor`) unless the range lies inside the file and has the bytes that the
/// tensor's type needs.
void check_external_range(const ExternalRange& range, std::uint64_t file_bytes,
                          std::uint64_t needed_bytes, const std::string& tensor);

/// Fails (kModel, naming `tensor`) if `location` is empty, absolute, or has `..` or a NUL byte.
void check_location(const std::string& location, const std::string& tensor);

}  // namespace pipetrain
