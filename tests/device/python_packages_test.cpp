#include "device/python_packages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

namespace fs = std::filesystem;

/// A folder with a `python3` that prints its folder's name and leaves a file behind.
fs::path make_python(const fs::path& folder, const std::string& prints) {
  fs::create_directories(folder);
  std::ofstream(folder / "python3")
      << "#!/bin/sh\ntouch '" << (folder / "started").string() << "'\necho '" << prints << "'\n";
  fs::permissions(folder / "python3", fs::perms::owner_all);
  return folder / "python3";
}

class PythonPackagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("VIRTUAL_ENV");
    unsetenv("PYTHONPATH");
    unsetenv("PYTHONHOME");
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    SetUp();
    fs::current_path(start_);
  }

  TemporaryDirectory directory_;
  const fs::path folder_ = directory_.path();
  const std::string path_ = std::getenv("PATH");
  const fs::path start_ = fs::current_path();
};

TEST_F(PythonPackagesTest, TheEnvironmentsComesBeforeTheFirstOnPath) {
  const fs::path first = make_python(folder_ / "env/bin", "/env/packages");
  const fs::path second = make_python(folder_ / "path", "/path/packages");
  make_python(folder_ / "later", "/later/packages");
  setenv("VIRTUAL_ENV", (folder_ / "env").c_str(), 1);
  setenv("PATH", fmt::format("/nowhere:{0}/path:{0}/later:/bin:/usr/bin", folder_.string()).c_str(),
         1);
  const std::vector<PythonPackages> found = python_packages();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].program, first);
  EXPECT_EQ(found[0].folders, std::vector<fs::path>{"/env/packages"});
  EXPECT_EQ(found[1].program, second);
  EXPECT_EQ(found[1].folders, std::vector<fs::path>{"/path/packages"});
}

TEST_F(PythonPackagesTest, NothingOfTheCurrentFolderIsStartedOrTaken) {
  make_python(folder_, "nvidia\n./nvidia");
  make_python(folder_ / "bin", "/planted");
  make_python(folder_ / "fair", "relative/packages");
  fs::current_path(folder_);
  setenv("VIRTUAL_ENV", ".", 1);
  setenv("PATH", fmt::format(".::bin:./bin:{}:/bin:/usr/bin", (folder_ / "fair").string()).c_str(),
         1);
  const std::vector<PythonPackages> found = python_packages();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].program, folder_ / "fair/python3");
  EXPECT_TRUE(found[0].folders.empty());
  EXPECT_FALSE(fs::exists(folder_ / "started"));
  EXPECT_FALSE(fs::exists(folder_ / "bin/started"));
}

TEST_F(PythonPackagesTest, ARealOneTellsItsPackagesAndRunsNothingOfTheCurrentFolder) {
  const std::string make = fmt::format("python3 -m venv --without-pip '{}/env'", folder_.string());
  if (std::system((make + " > /dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << "no python3 with venv";
  for (const char* name : {"os.py", "site.py", "sitecustomize.py", "usercustomize.py"})
    std::ofstream(folder_ / name) << "open('" << (folder_ / "planted").string() << "', 'w')\n";
  fs::current_path(folder_);
  setenv("VIRTUAL_ENV", (folder_ / "env").c_str(), 1);
  setenv("PYTHONPATH", fmt::format(".::{}/more", folder_.string()).c_str(), 1);
  setenv("PATH", "/nowhere", 1);
  const std::vector<PythonPackages> found = python_packages();
  ASSERT_EQ(found.size(), 1u);
  const std::vector<fs::path>& folders = found[0].folders;
  ASSERT_FALSE(folders.empty());
  EXPECT_EQ(folders[0], folder_ / "more");
  EXPECT_TRUE(std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    return folder.filename() == "site-packages" && folder.string().starts_with(folder_.string());
  }));
  EXPECT_EQ(std::count(folders.begin(), folders.end(), folder_), 0);
  EXPECT_FALSE(fs::exists(folder_ / "planted"));
}

TEST_F(PythonPackagesTest, OneThatFailsHasNoPackages) {
  fs::create_directories(folder_ / "bin");
  std::ofstream(folder_ / "bin/python3") << "#!/bin/sh\necho /packages\nexit 1\n";
  fs::permissions(folder_ / "bin/python3", fs::perms::owner_all);
  setenv("PATH", (folder_ / "bin").c_str(), 1);
  ASSERT_EQ(python_packages().size(), 1u);
  EXPECT_TRUE(python_packages()[0].folders.empty());
}

}  // namespace
}  // namespace pipetrain
