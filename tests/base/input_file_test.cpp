#include "base/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "base/output_file.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

template <class Action>
std::string message_of(ErrorKind kind, const Action& action) {
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    message = error.message();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << message;
  return message;
}

void expect(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

TEST(InputFile, ReadsFilesAndTheirParts) {
  const TemporaryDirectory directory;
  put_file(directory / "f", "0123456789");
  EXPECT_EQ(read_file(directory / "f", ErrorKind::kData, 10), "0123456789");
  EXPECT_EQ(begin_of_file(directory / "f", 4), "0123");
  EXPECT_EQ(begin_of_file(directory / "f", 40), "0123456789");
  EXPECT_EQ(end_of_file(directory / "f", 4), "6789");
  EXPECT_EQ(end_of_file(directory / "f", 40), "0123456789");
  expect(message_of(ErrorKind::kUsage, [&] { read_file(directory / "f", ErrorKind::kUsage, 9); }),
         "is larger than 9 B");
  EXPECT_EQ(read_if_file(directory / "f", 9), std::nullopt);
  EXPECT_EQ(begin_of_file(directory / "none", 4), std::nullopt);
  EXPECT_EQ(end_of_file(directory / "none", 4), "");
}

TEST(InputFile, WaitsForNothingThatIsNoFile) {
  const TemporaryDirectory directory;
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, fs::path("/dev/zero"), fs::path("/dev/null")}) {
    const std::string text =
        message_of(ErrorKind::kData, [&] { read_file(path, ErrorKind::kData, 1000); });
    expect(text, "\"" + path.string() + "\": it is a pipe or a device, not a file");
    EXPECT_EQ(read_if_file(path, 1000), std::nullopt);
    EXPECT_EQ(begin_of_file(path, 4), std::nullopt);
    EXPECT_EQ(end_of_file(path, 4), "");
  }
  expect(message_of(ErrorKind::kData, [&] { read_file(directory.path(), ErrorKind::kData, 1000); }),
         "is a directory, not a file");
  expect(message_of(ErrorKind::kData,
                    [&] { InputFile(pipe, ErrorKind::kData, InputFile::Takes::kPipesToo); }),
         "is a pipe that nothing writes to");
  expect(message_of(
             ErrorKind::kUsage,
             [] {
               InputFile("/dev/zero", ErrorKind::kUsage, InputFile::Takes::kPipesToo).read(1 << 20);
             }),
         "\"/dev/zero\" is larger than 1.00 MiB");
}

TEST(OutputFile, ReplacesAppendsAndMakesNewOnes) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "f";
  write_text(path, OutputMode::kNew, "one");
  write_text(path, OutputMode::kAppend, " two");
  EXPECT_EQ(get_file(path), "one two");
  write_text(path, OutputMode::kReplace, "3");
  EXPECT_EQ(get_file(path), "3");
  expect(message_of(ErrorKind::kResource,
                    [&] { write_text(path, OutputMode::kNew, "four", "--log: "); }),
         "--log: cannot write \"" + path.string() + "\": File exists");
  EXPECT_EQ(get_file(path), "3");
  const int descriptor = open_output_or_none(path.c_str());
  EXPECT_GE(descriptor, 0);
  ::close(descriptor);
  EXPECT_EQ(get_file(path), "");
}

TEST(OutputFile, WaitsForNothingThatIsNoFile) {
  const TemporaryDirectory directory;
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const OutputMode mode : {OutputMode::kReplace, OutputMode::kAppend}) {
    for (const fs::path& path : {pipe, fs::path("/dev/null")}) {
      expect(message_of(ErrorKind::kResource, [&] { write_text(path, mode, "x"); }),
             "it is a pipe or a device, not a file");
      EXPECT_EQ(open_output_or_none(path.c_str()), -1);
    }
    expect(
        message_of(ErrorKind::kResource, [&] { open_output(pipe, mode, OutputTakes::kPipesToo); }),
        "it is a pipe that nothing reads from");
  }
  const int descriptor = open_output("/dev/null", OutputMode::kReplace, OutputTakes::kPipesToo);
  EXPECT_EQ(::write(descriptor, "x", 1), 1);
  ::close(descriptor);
}

TEST(OutputFile, APipeThatIsReadTakesWhatIsWritten) {
  const TemporaryDirectory directory;
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  const int writer = open_output(pipe, OutputMode::kAppend, OutputTakes::kPipesToo);
  EXPECT_EQ(::fcntl(writer, F_GETFL) & O_NONBLOCK, 0) << "a full pipe is waited for";
  EXPECT_EQ(::write(writer, "line", 4), 4);
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, 8), 4);
  EXPECT_STREQ(text, "line");
  ::close(writer);
  ::close(reader);
}

}  // namespace
}  // namespace pipetrain
