#include "onnx_io/builder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "onnx_io/reader.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

HostTensor floats(const std::vector<float>& values) {
  return HostTensor::of<float>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

// y = x + a + b, reshaped; `a` and `b` are made when they are written.
class Builder : public ::testing::Test {
 protected:
  Builder() {
    builder_.input("x", DType::kFloat32, {{"", 3}});
    builder_.output("y", DType::kFloat32, {{"", 3}});
    builder_.initializer("a", {DType::kFloat32, {3}}, [this] { return made({1, 2, 3}); });
    builder_.initializer("shape", HostTensor::of<std::int64_t>({1}, std::vector<std::int64_t>{3}));
    builder_.initializer("b", {DType::kFloat32, {3}}, [this] { return made({4, 5, 6}); });
    builder_.initializer("c", floats({7, 8, 9}));
    builder_.node("Add", {"x", "a"}, {"xa"});
    builder_.node("Add", {"xa", "b"}, {"xab"});
    builder_.node("Add", {"xab", "c"}, {"xabc"});
    builder_.node("Reshape", {"xabc", "shape"}, {"y"});
  }

  HostTensor made(const std::vector<float>& values) {
    ++made_;
    return floats(values);
  }

  static std::vector<double> value(const OnnxModel& model, const char* name) {
    return model.find_initializer(name)->value.to_doubles();
  }

  TemporaryDirectory directory_;
  OnnxBuilder builder_{"net"};
  int made_ = 0;
};

TEST_F(Builder, MakesTensorsWhenTheyAreWritten) {
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(builder_.tensor_bytes(), 3 * 12U + 8U);
  builder_.write(directory_ / "inside.onnx");
  EXPECT_EQ(made_, 2);
  builder_.write(directory_ / "outside.onnx", /*external_above=*/10);
  EXPECT_EQ(made_, 4);
  for (const char* name : {"inside.onnx", "outside.onnx"}) {
    const OnnxModel model = read_onnx(directory_ / name);
    EXPECT_EQ(value(model, "a"), (std::vector<double>{1, 2, 3}));
    EXPECT_EQ(value(model, "b"), (std::vector<double>{4, 5, 6}));
    EXPECT_EQ(value(model, "c"), (std::vector<double>{7, 8, 9}));
    EXPECT_TRUE(model.warnings.empty());
  }
}

TEST_F(Builder, KeepsIntegersInsideTheModel) {
  builder_.write(directory_ / "net.onnx", /*external_above=*/10);
  const OnnxModel model = read_onnx(directory_ / "net.onnx");
  EXPECT_FALSE(model.find_initializer("shape")->external);
  EXPECT_TRUE(model.find_initializer("c")->external);
}

TEST_F(Builder, AHollowModelHasRoomForWhatIsNotMade) {
  const std::uint64_t hole = builder_.write_hollow(directory_ / "net.onnx");
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(hole, 64U + 12U);  // b begins at the next multiple of 64
  struct stat status {};
  ASSERT_EQ(::stat((directory_ / "net.onnx.data").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 76);
  // Some file systems count blocks for a file that holds nothing.
  const int file = ::open((directory_ / "net.onnx.data").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const bool hollow = status.st_blocks == 0 || (::lseek(file, 0, SEEK_DATA) == -1 && errno == ENXIO);
  ::close(file);
  EXPECT_TRUE(hollow);
  const OnnxModel model = read_onnx(directory_ / "net.onnx");
  for (const char* name : {"a", "b"}) {
    const OnnxInitializer* tensor = model.find_initializer(name);
    EXPECT_FALSE(tensor->value) << name;
    EXPECT_TRUE(tensor->unusable.empty()) << name;
    EXPECT_EQ(tensor->file_dtype, DType::kFloat32);
    EXPECT_EQ(tensor->shape, (Shape{3}));
  }
  EXPECT_EQ(value(model, "c"), (std::vector<double>{7, 8, 9}));
  ASSERT_EQ(model.warnings.size(), 1U);
  EXPECT_NE(model.warnings[0].find("24 B"), std::string::npos) << model.warnings[0];
}

// A copy that keeps some holes is an ordinary model whose tensors hold zeros there.
TEST_F(Builder, ADataFileThatHasAnythingIsRead) {
  builder_.write_hollow(directory_ / "net.onnx");
  std::string data(76, '\0');
  data[67] = '\x40';  // b[0] = 2
  put_file(directory_ / "net.onnx.data", data);
  const OnnxModel model = read_onnx(directory_ / "net.onnx");
  EXPECT_TRUE(model.warnings.empty());
  EXPECT_EQ(value(model, "a"), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(value(model, "b"), (std::vector<double>{2, 0, 0}));
}

}  // namespace
}  // namespace pipetrain
