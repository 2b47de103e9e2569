// Every hostile file is refused with one clear sentence, quickly, and never by a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "onnx_io/reader.h"
#include "support/hostile_models.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

// Generous, for sanitizers and busy machines; without them nothing takes a second.
constexpr double kMostSeconds = 30;

TEST(HostileTest, EveryHostileFileIsRefusedWithOneSentence) {
  const TemporaryDirectory directory;
  std::size_t refused = 0;
  for (const HostileModel& model : hostile_files(directory.path())) {
    if (!model.fails_to_read) continue;
    SCOPED_TRACE(model.name);
    const auto start = std::chrono::steady_clock::now();
    try {
      read_onnx(model.path);
      ADD_FAILURE() << "was read";
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      const std::string& text = error.message();
      EXPECT_NE(text.find(model.message), std::string::npos) << text;
      EXPECT_NE(text.find(model.path.filename().string()), std::string::npos) << text;
      EXPECT_LT(text.size(), 2000U);
      EXPECT_TRUE(std::ranges::all_of(text, [](char c) {
        return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
      })) << text;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), kMostSeconds);
  }
  EXPECT_GE(refused, 150U);
}

TEST(HostileTest, FilesForLaterPassesCanBeRead) {
  const TemporaryDirectory directory;
  std::size_t readable = 0;
  for (const HostileModel& model : hostile_files(directory.path())) {
    if (model.fails_to_read) continue;
    SCOPED_TRACE(model.name);
    EXPECT_NO_THROW(read_onnx(model.path));
    ++readable;
  }
  EXPECT_GE(readable, 50U);
}

TEST(HostileTest, EveryCutOfAGoodFileIsReadOrRefused) {
  const TemporaryDirectory directory;
  std::string bytes;
  for (const HostileModel& model : hostile_files(directory.path())) {
    if (model.name == "op_unknown") bytes = get_file(model.path);
  }
  ASSERT_FALSE(bytes.empty());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    try {
      read_onnx_bytes(std::as_bytes(std::span(bytes.data(), size)), {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel) << size;
    }
  }
}

TEST(HostileTest, EveryFlippedByteIsReadOrRefused) {
  const TemporaryDirectory directory;
  for (const HostileModel& model : hostile_files(directory.path())) {
    if (model.name != "function_attribute_mismatch" && model.name != "conv_group_0") continue;
    const std::string good = get_file(model.path);
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (const int bit : {0, 1, 3, 7}) {
        std::string bytes = good;
        bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
        try {
          read_onnx_bytes(std::as_bytes(std::span(bytes)), {});
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kModel) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain
