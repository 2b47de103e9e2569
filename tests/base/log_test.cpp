#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Log, ShowsFromItsLevelOn) {
  testing::internal::CaptureStderr();
  log_debug("profile", "hidden {}", 1);
  log_info("profile", "plain {}", 2);
  log_warning("profile", "careful {}", 3);
  set_log_level(LogLevel::kError);
  log_warning("profile", "hidden {}", 4);
  log_error("profile", "broken {}", 5);
  set_log_level(LogLevel::kDebug);
  log_debug("profile", "detail {}", 6);
  // Braces in a message are text.
  write_log(LogLevel::kInfo, "profile", "{} {0}");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "plain 2\nwarning: careful 3\nerror: broken 5\n[profile] detail 6\n{} {0}\n");
}

TEST(Log, IsCopiedToAFile) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("pipetrain_log_" + std::to_string(::getpid()) + ".log");
  testing::internal::CaptureStderr();
  log_info("train", "kept from before");
  copy_log_to(path);
  log_info("train", "kept");
  stop_copying_log("too bad");
  log_info("train", "not kept");
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("too bad"), std::string::npos);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  for (const char* kept : {" kept from before\n", " kept\n", " error: too bad\n"})
    EXPECT_NE(text.str().find(kept), std::string::npos) << text.str();
  EXPECT_EQ(text.str().find("not kept"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_THROW(copy_log_to("/proc/nowhere/stderr.log"), Error);
}

}  // namespace
}  // namespace pipetrain
