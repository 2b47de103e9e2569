#include "data/loading/shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "support/data_files.h"

namespace pipetrain {
namespace {

/// Sample i is the number first + i.
class ShardNumbers final : public Dataset {
 public:
  ShardNumbers(float first, std::size_t samples) : first_(first), samples_(samples) {}
  std::size_t size() const override { return samples_; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t, Tensor out) const override {
    auto* to = static_cast<float*>(out.data);
    for (const std::size_t index : indices) *to++ = first_ + static_cast<float>(index);
  }

 private:
  float first_;
  std::size_t samples_;
  std::vector<Column> columns_ = {{"x", DType::kFloat32, Shape{1}}};
};

using Shards = DataFiles;

TEST_F(Shards, EveryReplicaGetsEveryNthFile) {
  for (const char* name : {"part-2.csv", "part-0.csv", "part-1.csv", "part-10.csv", "other.csv"})
    write(name, "1,2\n");
  const auto files = divide_files(path("part-*.csv"), 2);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0], (std::vector{path("part-0.csv"), path("part-10.csv")}));
  EXPECT_EQ(files[1], (std::vector{path("part-1.csv"), path("part-2.csv")}));
  EXPECT_THROW(divide_files(path("part-*.csv"), 5), Error);
  EXPECT_THROW(divide_files(path("part-0.csv"), 1), Error);
  EXPECT_THROW(divide_files("synthetic", 1), Error);
}

TEST_F(Shards, FilesOfOtherPartsAreNotDealtOut) {
  for (const char* name : {"train-0.csv", "train-1.csv", "val-0.csv", "val-1.csv"})
    write(name, "1,2\n");
  EXPECT_EQ(divide_files(path("train-*.csv"), 2).size(), 2u);
  EXPECT_EQ(divide_files(path("val-*.csv"), 2).size(), 2u);
  try {
    divide_files(path("*.csv"), 2);
    FAIL() << "validation files would be trained on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("val-0.csv would be trained on"), std::string::npos)
        << error.message();
  }
}

TEST_F(Shards, SamplesOfOtherProcessesAreZeros) {
  const ShardedDataset data(
      {{{std::make_shared<ShardNumbers>(100.F, 2), std::make_shared<ShardNumbers>(200.F, 3)}, 5},
       {{}, 4},
       {{std::make_shared<ShardNumbers>(300.F, 2)}, 2}});
  ASSERT_EQ(data.size(), 11u);
  const std::vector<std::size_t> indices = {1, 0, 2, 4, 5, 8, 9, 10, 3};
  HostTensor out(data.columns()[0].batch_type(indices.size()));
  std::memset(out.view().data, 0x55, out.view().bytes());
  data.gather(indices, 0, out.view());
  EXPECT_EQ(out.to_doubles(), (std::vector<double>{101, 100, 200, 202, 0, 0, 300, 301, 201}));
}

}  // namespace
}  // namespace pipetrain
