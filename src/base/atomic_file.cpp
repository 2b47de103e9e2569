#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/output_file.h"

namespace pipetrain {
namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Short enough for any file system, whatever the length of the target name.
std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  return directory_of(path) / fmt::format(".{}.{}-{}.tmp", path.filename().string().substr(0, 200),
                                          ::getpid(), ++counter);
}

bool is_pipe_or_device(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

/// Whether a path is the name of an open file, which must not be replaced whatever that file is.
bool names_descriptor(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  return name == "/dev/stdout" || name == "/dev/stderr" || name.starts_with("/dev/fd/") ||
         name.starts_with("/proc/self/fd/");
}

}  // namespace

bool is_special(const std::filesystem::path& path) {
  return names_descriptor(path) || is_pipe_or_device(path);
}

bool names_standard_output(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  return name == "/dev/stdout" || name == "/dev/fd/1" || name == "/proc/self/fd/1";
}

void check_is_file(const std::filesystem::path& path) {
  PT_CHECK(!is_pipe_or_device(path), kData, "cannot read {}: it is a pipe or a device, not a file",
           printable(path.string()));
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_name(path_)) {
  PT_CHECK(path_.has_filename(), kResource, "cannot write '{}': it names no file",
           printable(path_.string()));
  if (is_special(path_)) {
    // Pipes and devices are written in place.
    temporary_.clear();
    descriptor_ = open_output(path_, OutputMode::kAppend, OutputTakes::kPipesToo);
    return;
  }
  constexpr mode_t kMode = 0666;  // before the umask
  // Removes the stale file of a dead process with our process id.
  ::unlink(temporary_.c_str());
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor_ < 0) fail("create");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) const {
  const int reason = errno;
  const char* hint = "";
  if (reason == ENOSPC || reason == EDQUOT) hint = "; free some space or write elsewhere";
  if (reason == ENOENT) hint = "; does its directory exist?";
  PT_FAIL(kResource, "cannot {} {}: {}{}", what, printable(path_.string()), std::strerror(reason),
          hint);
}

void AtomicFile::reserve(std::uint64_t bytes) {
  if (bytes == 0 || temporary_.empty()) return;
  int result = 0;
  do {
    result = ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // Some file systems cannot reserve; they will fail while writing.
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail("reserve space for");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  PT_CHECK(descriptor_ >= 0, kInternal, "{} was written after finish()", path_.string());
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    written_ += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::skip(std::uint64_t bytes) {
  PT_CHECK(descriptor_ >= 0, kInternal, "{} was extended after finish()", path_.string());
  const auto end = static_cast<off_t>(written_ + bytes);
  if (::ftruncate(descriptor_, end) != 0 || ::lseek(descriptor_, end, SEEK_SET) < 0) fail("extend");
  written_ += bytes;
}

void AtomicFile::finish() {
  if (finished_) return;
  // A pipe or a terminal cannot be synced.
  if (::fsync(descriptor_) != 0 && !temporary_.empty()) fail("write");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("write");
  finished_ = true;
}

void AtomicFile::commit() {
  PT_CHECK(!committed_, kInternal, "{} was committed twice", path_.string());
  finish();
  if (temporary_.empty()) {
    committed_ = true;
    return;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write");
  committed_ = true;
  if (const std::error_code error = sync_directory(directory_of(path_))) {
    errno = error.value();
    fail("sync the directory of");
  }
}

std::error_code sync_directory(const std::filesystem::path& directory) {
  const auto error = [] { return std::error_code(errno, std::generic_category()); };
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (descriptor < 0) return error();
  // Some network file systems refuse to sync a directory; its entries are there all the same.
  const std::error_code result =
      ::fsync(descriptor) == 0 || errno == EINVAL ? std::error_code() : error();
  ::close(descriptor);
  return result;
}

std::error_code make_directories(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return {};
  const std::filesystem::path above = directory_of(directory);
  if (above != directory) error = make_directories(above);
  if (!error) std::filesystem::create_directory(directory, error);
  return error ? error : sync_directory(above);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.reserve(text.size());
  file.write(text);
  file.commit();
}

}  // namespace pipetrain
