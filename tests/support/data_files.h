// Files that tests write, and errors that tests expect.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/rows/dataset.h"

namespace pipetrain {

/// A directory of its own that is gone after the test.
class DataFiles : public ::testing::Test {
 protected:
  DataFiles() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::temp_directory_path() /
                 (std::string("pipetrain_") + info->test_suite_name() + "_" + info->name() + "_" +
                  std::to_string(::getpid()));
    std::filesystem::create_directories(directory_);
  }
  ~DataFiles() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string directory() const { return directory_.string(); }
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((directory_ / name).parent_path());
    std::ofstream(directory_ / name, std::ios::binary) << content;
    return path(name);
  }

 private:
  std::filesystem::path directory_;
};

inline std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

inline std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(i < 8 ? value >> (8 * i) : 0);
  return out;
}

inline std::string big(std::uint64_t value, int bytes) {
  const std::string out = little(value, bytes);
  return {out.rbegin(), out.rend()};
}

/// Runs body and returns the message of the kData error that it must give.
template <class Body>
std::string data_error(Body&& body, ErrorKind kind = ErrorKind::kData) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return {};
}

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

inline std::vector<std::size_t> all_indices(const Dataset& dataset) {
  std::vector<std::size_t> out(dataset.size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// A column's values for some samples, all of them by default.
inline std::vector<double> values(const Dataset& dataset, std::size_t column,
                                  std::vector<std::size_t> indices) {
  const HostTensor out(dataset.columns()[column].batch_type(indices.size()));
  dataset.gather(indices, column, out.view());
  return out.to_doubles();
}
inline std::vector<double> values(const Dataset& dataset, std::size_t column) {
  return values(dataset, column, all_indices(dataset));
}

}  // namespace pipetrain
