#include "data/files/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "data/files/file_bytes.h"
#include "data/rows/column_source.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

class MappedFiles : public DataFiles {
 protected:
  const std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::string content_ = std::string(4 * page_ + 100, 'x');

  FileBytes open() { return FileBytes::open(write("file", content_)); }
  void cut(std::size_t size) {
    ASSERT_EQ(::truncate(path("file").c_str(), static_cast<off_t>(size)), 0);
  }
  std::string damage(std::size_t size) {
    return "file\" shrank from " + std::to_string(content_.size()) + " to " + std::to_string(size) +
           " bytes";
  }
};

TEST_F(MappedFiles, WhatIsCutOffReadsAsZerosAndIsAnError) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, page_, 2 * page_ + 7, content_.size() - 1}) {
    const FileBytes file = open();
    file.check();
    cut(size);
    const std::string read(file.text());
    std::string expected = content_;
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(size), expected.end(), '\0');
    EXPECT_TRUE(read == expected) << size;
    expect_contains(data_error([&] { file.check(); }), damage(size));
    expect_contains(data_error([&] { file.slice(0, 1).check(); }), damage(size));
    expect_contains(data_error(check_mapped_files), damage(size));
  }
  check_mapped_files();
}

TEST_F(MappedFiles, ThatWasCutAndIsWholeAgainIsAnErrorIfSomethingWasRead) {
  const FileBytes file = open();
  cut(0);
  EXPECT_EQ(file.text().back(), '\0');
  write("file", content_);
  expect_contains(data_error([&] { file.check(); }), "not all of the");
}

TEST_F(MappedFiles, ThatAreReplacedDeletedOrLongerAreReadAsTheyWere) {
  const FileBytes file = open();
  cut(content_.size() + 10);
  file.check();
  write("other", "short");
  std::filesystem::rename(path("other"), path("file"));
  EXPECT_TRUE(file.text() == content_);
  file.check();
  std::filesystem::remove(path("file"));
  EXPECT_TRUE(file.text() == content_);
  file.check();
}

TEST_F(MappedFiles, SeveralThreadsReadWhatIsLost) {
  const FileBytes file = open();
  cut(page_);
  std::vector<std::size_t> found(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t& count : found) {
      threads.emplace_back(
          [&] { count = static_cast<std::size_t>(std::ranges::count(file.text(), 'x')); });
    }
  }
  EXPECT_EQ(found, std::vector<std::size_t>(4, page_));
  expect_contains(data_error([&] { file.check(); }), damage(page_));
}

TEST_F(MappedFiles, ThatNobodyCheckedBeforeTheyWereClosedAreAnErrorOnce) {
  {
    const FileBytes file = open();
    cut(10);
  }
  expect_contains(data_error(check_mapped_files), damage(10));
  check_mapped_files();
}

TEST_F(MappedFiles, AShorterFileIsTheErrorWhateverElseCameOfIt) {
  const auto read = [&]() -> int {
    const FileBytes file = open();
    cut(10);
    PT_CHECK(file.text().back() == 'x', kUsage, "a consequence");
    return 0;
  };
  expect_contains(data_error([&] { read_and_check(read, check_mapped_files); }), damage(10));
  const auto fail = []() -> int { PT_FAIL(kUsage, "another reason"); };
  expect_contains(data_error([&] { read_and_check(fail, check_mapped_files); }, ErrorKind::kUsage),
                  "another reason");
  EXPECT_EQ(read_and_check([] { return 7; }, check_mapped_files), 7);
}

TEST_F(MappedFiles, TokensOfAFileThatWasCutAreAnError) {
  const FileBytes file = open();
  const auto shards = std::make_shared<const std::vector<TokenShard>>(
      std::vector<TokenShard>{{path("file"), file, DType::kUint8, 0}});
  const TokenSource source(shards, 10, 0, 0);
  const HostTensor out(TensorType{DType::kInt64, {1, 10}});
  const std::size_t first = 0;
  source.gather({&first, 1}, out.view());
  EXPECT_EQ(out.span<std::int64_t>()[0], 'x');
  cut(content_.size() - 1);  // not among those that are read
  expect_contains(data_error([&] {
                    source.gather({&first, 1}, out.view());
                  }),
                  damage(content_.size() - 1));
}

using MappedFilesDeathTest = MappedFiles;

TEST_F(MappedFilesDeathTest, OtherBusErrorsEndTheProgram) {
  const FileBytes file = open();  // the handler is there
  EXPECT_DEATH(std::raise(SIGBUS), "");
  const auto read_lost_page = [&] {
    std::FILE* other = std::tmpfile();
    void* page = ::mmap(nullptr, page_, PROT_READ, MAP_PRIVATE, ::fileno(other), 0);
    std::exit(static_cast<const volatile char*>(page)[0]);
  };
  EXPECT_DEATH(read_lost_page(), "");
}

}  // namespace
}  // namespace pipetrain
