#include "train/folder_lock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

TEST(FolderLockTest, TheLockOfALostProcessIsWaitedFor) {
  const TemporaryDirectory folder;
  std::optional<FolderLock> first(folder.path());
  try {
    const FolderLock second(folder.path(), {.seconds = 0.2, .failure = ErrorKind::kDevice});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
  }
  std::thread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    first.reset();
  });
  try {
    const FolderLock second(folder.path(), {.seconds = 60, .failure = ErrorKind::kDevice});
    EXPECT_TRUE(is_locked(folder.path()));
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  end.join();
}

}  // namespace
}  // namespace pipetrain
