#include "base/output_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

/// Files of this process cannot grow over so many bytes, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(OutputFileTest, NoPartOfATextStaysWhereItDoesNotFit) {
  for (const OutputMode mode : {OutputMode::kReplace, OutputMode::kAppend}) {
    const TemporaryDirectory directory;
    const auto path = directory / "records";
    const int descriptor = open_output(path, mode);
    {
      const FileLimit limit(10);
      EXPECT_TRUE(write_all_or_nothing(descriptor, "one two\n"));
      EXPECT_FALSE(write_all_or_nothing(descriptor, "three\n"));
      EXPECT_EQ(errno, EFBIG);
      EXPECT_TRUE(write_all_or_nothing(descriptor, "4\n"));
    }
    EXPECT_TRUE(write_all_or_nothing(descriptor, "five\n"));
    ::close(descriptor);
    EXPECT_EQ(get_file(path), "one two\n4\nfive\n");
  }
}

}  // namespace
}  // namespace pipetrain
