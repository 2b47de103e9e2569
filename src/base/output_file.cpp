#include "base/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/pipe_wait.h"

namespace pipetrain {
namespace {

constexpr mode_t kMode = 0666;  // before the umask
// Opening a pipe without O_NONBLOCK waits for its reader; with it, and no reader, it is ENXIO.
constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

int flags_of(OutputMode mode) {
  switch (mode) {
    case OutputMode::kReplace:
      return O_TRUNC;
    case OutputMode::kAppend:
      return O_APPEND;
    case OutputMode::kNew:
      return O_EXCL;
  }
  return 0;
}

bool is_regular(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

int open_output(const std::filesystem::path& path, OutputMode mode, OutputTakes takes,
                const std::string& who) {
  const auto fail = [&](const char* reason) {
    throw Error(ErrorKind::kResource,
                fmt::format("{}cannot write \"{}\": {}", who, printable(path.string()), reason));
  };
  // Some systems refuse to create where there is a pipe of somebody else.
  const int flags = (kFlags | flags_of(mode)) & ~(is_special(path) ? O_CREAT : 0);
  int descriptor = ::open(path.c_str(), flags, kMode);
  for (int waited = 0;
       descriptor < 0 && errno == ENXIO && takes == OutputTakes::kPipesToo && waited < kPipeWait;
       waited += kPipePause) {
    ::poll(nullptr, 0, kPipePause);
    descriptor = ::open(path.c_str(), flags, kMode);
  }
  if (descriptor < 0 && errno == ENXIO)
    fail(takes == OutputTakes::kPipesToo ? "it is a pipe that nothing reads from"
                                         : "it is a pipe or a device, not a file");
  if (descriptor < 0) fail(std::strerror(errno));
  if (takes == OutputTakes::kFiles && !is_regular(descriptor)) {
    ::close(descriptor);
    fail("it is a pipe or a device, not a file");
  }
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  return descriptor;
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(descriptor, text.data(), text.size());
    if (done >= 0) text.remove_prefix(static_cast<std::size_t>(done));
    if (done < 0 && errno != EINTR) return false;
  }
  return true;
}

bool write_all_or_nothing(int descriptor, std::string_view text) {
  struct stat before {};
  const bool can_undo = ::fstat(descriptor, &before) == 0 && S_ISREG(before.st_mode);
  if (write_all(descriptor, text)) return true;
  const int reason = errno;
  if (can_undo && ::ftruncate(descriptor, before.st_size) == 0)
    ::lseek(descriptor, before.st_size, SEEK_SET);
  errno = reason;
  return false;
}

void write_text(const std::filesystem::path& path, OutputMode mode, std::string_view text,
                const std::string& who) {
  const int descriptor = open_output(path, mode, OutputTakes::kFiles, who);
  int reason = write_all_or_nothing(descriptor, text) ? 0 : errno;
  if (::close(descriptor) != 0 && reason == 0) reason = errno;
  PT_CHECK(reason == 0, kResource, "{}cannot write \"{}\": {}", who, printable(path.string()),
           std::strerror(reason));
}

int open_output_or_none(const char* path) noexcept {
  const int descriptor = ::open(path, kFlags | O_TRUNC, kMode);
  if (descriptor < 0 || is_regular(descriptor)) return descriptor;
  ::close(descriptor);
  return -1;
}

}  // namespace pipetrain
