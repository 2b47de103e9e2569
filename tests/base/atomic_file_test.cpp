#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/stale_files.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t count_entries(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

TEST(AtomicFileTest, NothingIsThereBeforeCommit) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "out.bin";
  AtomicFile file(path);
  file.write("half ");
  EXPECT_FALSE(fs::exists(path));
  file.write("and half");
  file.finish();
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(get_file(path), "half and half");
  EXPECT_EQ(file.written(), 13U);
  EXPECT_EQ(count_entries(directory.path()), 1);
}

TEST(AtomicFileTest, AbandonedFileLeavesTheOldOneAndNoTrace) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "out.bin";
  put_file(path, "old");
  { AtomicFile(path).write("new"); }
  EXPECT_EQ(get_file(path), "old");
  EXPECT_EQ(count_entries(directory.path()), 1);
}

TEST(AtomicFileTest, ReplacesASymbolicLinkAndNotWhatItPointsAt) {
  const TemporaryDirectory directory;
  put_file(directory / "precious", "precious");
  fs::create_symlink("precious", directory / "out.bin");
  write_file(directory / "out.bin", "new");
  EXPECT_EQ(get_file(directory / "precious"), "precious");
  EXPECT_EQ(get_file(directory / "out.bin"), "new");
  EXPECT_FALSE(fs::is_symlink(directory / "out.bin"));
}

// "-o /dev/stdout > FILE": the file has the content, and no name of a descriptor is replaced.
TEST(AtomicFileTest, NamesOfOpenFilesAreWrittenInPlace) {
  const TemporaryDirectory directory;
  const fs::path target = directory / "out";
  const int descriptor = ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  ASSERT_GE(descriptor, 0);
  const std::string name = fmt::format("/proc/self/fd/{}", descriptor);
  EXPECT_TRUE(is_special(name));
  EXPECT_TRUE(is_special("/dev/stdout"));
  EXPECT_FALSE(is_special(target));
  AtomicFile file(name);
  file.write("hello");
  file.commit();
  ::close(descriptor);
  EXPECT_EQ(get_file(target), "hello");
}

TEST(AtomicFileTest, StandardOutputHasSeveralNames) {
  for (const char* name : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/../dev/stdout"})
    EXPECT_TRUE(names_standard_output(name)) << name;
  for (const char* name : {"-", "stdout", "/dev/stderr", "/dev/fd/12", "/proc/self/fd/2", ""})
    EXPECT_FALSE(names_standard_output(name)) << name;
}

TEST(AtomicFileTest, ReservingDoesNotChangeTheLength) {
  const TemporaryDirectory directory;
  AtomicFile file(directory / "out.bin");
  file.reserve(1 << 20);
  file.write("short");
  file.commit();
  EXPECT_EQ(fs::file_size(directory / "out.bin"), 5U);
}

TEST(AtomicFileTest, NewFilesObeyTheUmask) {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(027);
  write_file(directory / "out.bin", "x");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((directory / "out.bin").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST(AtomicFileTest, LongNamesHaveTemporaryNamesThatFit) {
  const TemporaryDirectory directory;
  const std::string name(255, 'n');
  write_file(directory / name, "x");
  EXPECT_EQ(get_file(directory / name), "x");
}

TEST(AtomicFileTest, FailuresNameTheFile) {
  const TemporaryDirectory directory;
  const auto fails = [](const fs::path& path, const std::string& with) {
    try {
      write_file(path, "x");
      ADD_FAILURE() << path << " was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
      EXPECT_NE(error.message().find(with), std::string::npos) << error.message();
    }
  };
  fails(directory / "nowhere" / "out.bin", "directory exist");
  fs::create_directory(directory / "folder");
  fails(directory / "folder", "folder");
  fails(directory.path().string() + "/", "names no file");
  EXPECT_EQ(count_entries(directory.path()), 1) << "a temporary file was left";
}

TEST(AtomicFileTest, WhatIsSkippedReadsAsZeros) {
  const TemporaryDirectory directory;
  AtomicFile file(directory / "out.bin");
  file.skip(3);
  file.write("ab");
  file.skip(2);
  EXPECT_EQ(file.written(), 7U);
  file.commit();
  EXPECT_EQ(get_file(directory / "out.bin"), std::string("\0\0\0ab\0\0", 7));
}

TEST(AtomicFileTest, KilledWhileWritingTheOldFileIsWhole) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "out.bin";
  const std::string old(1 << 16, 'o');
  put_file(path, old);
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::string next(1 << 16, static_cast<char>('a' + round));
      for (;;) write_file(path, next);
    }
    ::usleep(static_cast<useconds_t>(1000 + 700 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string now = get_file(path);
    ASSERT_EQ(now.size(), old.size());
    ASSERT_TRUE(std::ranges::all_of(now, [&](char c) { return c == now[0]; }));
  }
  // Files of dead processes are removed; those of live processes, and other files, stay.
  const std::string lives = ".out.bin." + std::to_string(::getpid()) + "-1.tmp";
  for (const std::string& name : {lives, std::string(".other.999999999-1.tmp")})
    put_file(directory / name, "half");
  put_file(directory / ".out.bin.999999999-7.tmp", "half");
  delete_stale_temporaries(path);
  EXPECT_EQ(count_entries(directory.path()), 3);
  EXPECT_TRUE(fs::exists(directory / lives));
}

TEST(StaleFiles, NamesOfTemporaryFilesHaveAProcessAndACount) {
  EXPECT_EQ(process_of_temporary(".out.bin.17-3.tmp"), 17);
  EXPECT_EQ(process_of_temporary("..hidden.17-3.tmp"), 17);
  for (const char* name :
       {".out.tmp", ".17-3.tmp", "out.17-3.tmp", ".out.17.tmp", ".out.17-.tmp", ".out.-17-3.tmp",
        ".out.0-3.tmp", ".out.17-3x.tmp", ".out.17-3.old", ".tmp", ""})
    EXPECT_EQ(process_of_temporary(name), 0) << name;
}

}  // namespace
}  // namespace pipetrain
