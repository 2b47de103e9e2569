// The lock by which a process keeps others out of the folder of its run.
#pragma once

#include <filesystem>

#include "base/error.h"

namespace pipetrain {

/// What processes lock in a folder: over NFS, a lock of the folder itself would hold on one host
/// only.
inline constexpr const char* kLockFile = ".lock";

/// How long to wait for the lock of another process, and the kind of error if that does not end.
struct LockPatience {
  double seconds = 0.1;  // is_locked() holds the lock only briefly
  ErrorKind failure = ErrorKind::kUsage;
};
/// Of a process that goes on where another one was lost: a file server keeps the lock of a host
/// that is lost for a while (NFSv4: 90 s by default).
inline constexpr LockPatience kPatienceForLost{180, ErrorKind::kDevice};

/// Locks the folder of a run for one process.
class FolderLock {
 public:
  /// Makes the folder. Error when another process still trains there after that time, kResource
  /// when the folder cannot be made.
  explicit FolderLock(const std::filesystem::path& folder, LockPatience patience = {});
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

/// Whether some process holds that lock now.
bool is_locked(const std::filesystem::path& folder);

}  // namespace pipetrain
