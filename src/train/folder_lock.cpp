#include "train/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/setting.h"

namespace pipetrain {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& folder, LockPatience patience) : file_(folder / kLockFile) {
  const std::error_code error = make_directories(folder);
  PT_CHECK(!error, kResource, "cannot create the folder {}: {}", printable(folder.string()),
           error.message());
  constexpr double kSoon = 1;  // seconds
  const double begin = steady_seconds();
  bool is_told = false;
  for (double waited = 0; waited <= patience.seconds; waited = steady_seconds() - begin) {
    if (waited > kSoon && !std::exchange(is_told, true))
      log_warning("train",
                  "another process, maybe of a lost host, has locked {}; waiting up to "
                  "{:.0f} s for it",
                  printable(folder.string()), patience.seconds);
    descriptor_ = open_output(file_, OutputMode::kAppend);
    const bool is_free = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    // Whoever held the lock before may have removed the file.
    struct stat locked {
    }, there{};
    if (is_free && ::fstat(descriptor_, &locked) == 0 && ::stat(file_.c_str(), &there) == 0 &&
        locked.st_ino == there.st_ino)
      return;
    ::close(descriptor_);
    ::usleep(waited < kSoon ? 20'000 : 200'000);
  }
  throw Error(patience.failure,
              fmt::format("another process is training in {}; wait for it, or give another {}",
                          printable(folder.string()), setting("run-dir")));
}

FolderLock::~FolderLock() {
  ::unlink(file_.c_str());
  ::close(descriptor_);
}

bool is_locked(const fs::path& folder) {
  try {
    const InputFile file(folder / kLockFile, ErrorKind::kResource);
    return ::flock(file.descriptor(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  } catch (const Error&) {
    return false;  // there is no such file
  }
}

}  // namespace pipetrain
