#include "onnx_io/external_data.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel_blocks.h"

namespace pipetrain {
namespace {

constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

std::vector<std::string> components(const std::string& location) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (begin <= location.size()) {
    const std::size_t end = std::min(location.find('/', begin), location.size());
    const std::string part = location.substr(begin, end - begin);
    if (!part.empty() && part != ".") out.push_back(part);
    begin = end + 1;
  }
  return out;
}

// Returns a descriptor, or -1 with errno set (ELOOP: a symbolic link is on the way).
int open_beneath(int directory, const std::string& location, const ExternalDataRules& rules) {
  if (rules.allow_links) return ::openat(directory, location.c_str(), kOpenFlags);
  if (rules.use_openat2) {
    open_how how{};
    how.flags = kOpenFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    const long result = ::syscall(SYS_openat2, directory, location.c_str(), &how, sizeof how);
    if (result >= 0) return static_cast<int>(result);
    if (errno != ENOSYS && errno != EPERM) return -1;
  }
  // Older kernels and sandboxes: one component at a time, none of them a link.
  const std::vector<std::string> parts = components(location);
  Descriptor at(::openat(directory, ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  for (std::size_t i = 0; i < parts.size() && at.get() >= 0; ++i) {
    const bool last = i + 1 == parts.size();
    struct stat status {};
    if (::fstatat(at.get(), parts[i].c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return -1;
    if (S_ISLNK(status.st_mode)) {
      errno = ELOOP;
      return -1;
    }
    at = Descriptor(
        ::openat(at.get(), parts[i].c_str(), kOpenFlags | O_NOFOLLOW | (last ? 0 : O_DIRECTORY)));
  }
  return at.release();
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

constexpr int kEndOfFile = -1;

/// Returns 0, an error number or kEndOfFile.
int read_range(int descriptor, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : kEndOfFile;
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

}  // namespace

void check_location(const std::string& location, const std::string& tensor) {
  const std::string who = printable(tensor);
  PT_CHECK(!location.empty(), kModel, "tensor '{}': its external data has no location", who);
  PT_CHECK(location.find('\0') == std::string::npos, kModel,
           "tensor '{}': the location of its external data has a NUL byte", who);
  PT_CHECK(location.size() <= 4095, kModel,
           "tensor '{}': the location of its external data is {} bytes long", who, location.size());
  PT_CHECK(location[0] != '/', kModel,
           "tensor '{}': the location '{}' of its external data is an absolute path", who,
           printable(location));
  const std::vector<std::string> parts = components(location);
  PT_CHECK(!parts.empty(), kModel, "tensor '{}': the location '{}' names no file", who,
           printable(location));
  for (const std::string& part : parts) {
    PT_CHECK(part != "..", kModel,
             "tensor '{}': the location '{}' of its external data leaves the model's directory",
             who, printable(location));
  }
}

ExternalFile::ExternalFile(int descriptor, FileState state, std::string name)
    : descriptor_(descriptor), state_(state), name_(std::move(name)) {}

ExternalFile::ExternalFile(ExternalFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      state_(other.state_),
      name_(std::move(other.name_)) {}

ExternalFile& ExternalFile::operator=(ExternalFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(state_, other.state_);
  std::swap(name_, other.name_);
  return *this;
}

ExternalFile::~ExternalFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ExternalFile ExternalFile::open(const std::filesystem::path& directory, const std::string& location,
                                const std::string& tensor, const ExternalDataRules& rules) {
  check_location(location, tensor);
  const std::string who = printable(tensor);
  const std::string where = printable(location);
  PT_CHECK(!directory.empty(), kModel,
           "tensor '{}' is stored in the file '{}', which is not read inside sub-graphs, nor where "
           "the model is not read from a directory",
           who, where);
  const Descriptor base(::open(directory.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  PT_CHECK(base.get() >= 0, kModel, "cannot open the directory {}: {}",
           printable(directory.string()), std::strerror(errno));
  Descriptor file(open_beneath(base.get(), location, rules));
  if (file.get() < 0) {
    const int reason = errno;
    PT_CHECK(
        reason != ELOOP, kModel,
        "tensor '{}': its data '{}' is reached through a symbolic link, which is not followed; "
        "put a copy of the file beside the model (cp -L)",
        who, where);
    PT_CHECK(reason != ENOENT, kModel,
             "tensor '{}': its data file '{}' is missing; it belongs beside the model, in {}", who,
             where, printable(directory.string()));
    PT_CHECK(reason != EXDEV, kModel,
             "tensor '{}': the location '{}' of its external data leaves the model's directory",
             who, where);
    PT_FAIL(kModel, "tensor '{}': cannot open its data file '{}': {}", who, where,
            std::strerror(reason));
  }
  struct stat status {};
  PT_CHECK(::fstat(file.get(), &status) == 0, kModel, "tensor '{}': cannot examine '{}': {}", who,
           where, std::strerror(errno));
  PT_CHECK(S_ISREG(status.st_mode), kModel, "tensor '{}': its data '{}' is {}, not a regular file",
           who, where, kind_of(status.st_mode));
  PT_CHECK(rules.allow_links || status.st_nlink == 1, kModel,
           "tensor '{}': its data file '{}' has {} hard links, so it may belong to something else; "
           "put a copy of it beside the model",
           who, where, status.st_nlink);
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  const FileState state{static_cast<std::uint64_t>(status.st_size),
                        status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
  return {file.release(), state, location};
}

bool ExternalFile::is_unwritten() const {
  return bytes() > 0 && ::lseek(descriptor_, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

void ExternalFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  std::atomic<int> problem = 0;
  in_parallel_blocks(out.size(), [&](std::size_t begin, std::size_t bytes) {
    const int result = read_range(descriptor_, offset + begin, out.subspan(begin, bytes));
    if (result != 0) problem = result;
  });
  PT_CHECK(problem != kEndOfFile, kModel, "the data file '{}' became shorter while it was read",
           printable(name_));
  PT_CHECK(problem == 0, kModel, "cannot read the data file '{}': {}", printable(name_),
           std::strerror(problem));
}

void check_external_range(const ExternalRange& range, std::uint64_t file_bytes,
                          std::uint64_t needed_bytes, const std::string& tensor) {
  const std::string who = printable(tensor);
  const std::string where = printable(range.location);
  PT_CHECK(!range.length || *range.length == needed_bytes, kModel,
           "tensor '{}' needs {} bytes, but its external data says length {}", who, needed_bytes,
           range.length.value_or(0));
  PT_CHECK(range.offset <= file_bytes && needed_bytes <= file_bytes - range.offset, kModel,
           "tensor '{}' needs {} bytes from offset {} of '{}', which has {}", who, needed_bytes,
           range.offset, where, file_bytes);
}

}  // namespace pipetrain
