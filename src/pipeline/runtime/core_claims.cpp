#include "pipeline/runtime/core_claims.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace pipetrain {
namespace {

/// The claims of all runs are locks on the bytes of one file, a byte a core; they end with their
/// process, however it ends.
int open_claims() {
  for (const char* path : {"/dev/shm/pipetrain-cores", "/tmp/pipetrain-cores"}) {
    // Another user's file is not opened to be created.
    int file = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
      file = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (file >= 0) ::fchmod(file, 0666);
      if (file < 0) file = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    struct stat status {};
    if (file >= 0 && ::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) return file;
    if (file >= 0) ::close(file);
  }
  return -1;
}

class CoreClaims {
 public:
  std::vector<int> claim(int device, int first, int count) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& mine = of_device_[device];
    if (static_cast<int>(mine.size()) == count) return mine;
    for (const int core : std::exchange(mine, {})) release(core);
    const std::vector<int> allowed = allowed_cores();
    const auto size = static_cast<int>(allowed.size());
    for (int i = 0; i < size && static_cast<int>(mine.size()) < count; ++i) {
      const int core = allowed[static_cast<std::size_t>((first + i) % size)];
      if (take(core)) mine.push_back(core);
    }
    if (static_cast<int>(mine.size()) < count) {
      for (const int core : std::exchange(mine, {})) release(core);
    }
    return mine;
  }

 private:
  static std::vector<int> allowed_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
    }
    return cores;
  }

  bool lock_byte(int core, short type) const {
    struct flock range {};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = core;
    range.l_len = 1;
    return ::fcntl(file_, F_OFD_SETLK, &range) == 0;
  }
  bool take(int core) {
    if (taken_.contains(core) || (file_ >= 0 && !lock_byte(core, F_WRLCK))) return false;
    taken_.insert(core);
    return true;
  }
  void release(int core) {
    taken_.erase(core);
    if (file_ >= 0) lock_byte(core, F_UNLCK);
  }

  std::mutex mutex_;
  const int file_ = open_claims();
  std::set<int> taken_;
  std::map<int, std::vector<int>> of_device_;
};

}  // namespace

std::vector<int> claim_cores(int device, int first, int count) {
  static CoreClaims claims;
  return claims.claim(device, first, count);
}

}  // namespace pipetrain
