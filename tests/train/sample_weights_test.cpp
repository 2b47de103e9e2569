#include "train/sample_weights.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/atomic_file.h"
#include "base/error.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

/// Samples that have a label only.
class Labels final : public Dataset {
 public:
  explicit Labels(std::vector<std::int64_t> labels) : labels_(std::move(labels)) {}
  std::size_t size() const override { return labels_.size(); }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t> indices, std::size_t, Tensor out) const override {
    for (std::size_t i = 0; i < indices.size(); ++i)
      out.span<std::int64_t>()[i] = labels_[indices[i]];
  }

 private:
  std::vector<std::int64_t> labels_;
  std::vector<Column> columns_ = {{"label", DType::kInt64, {}}};
};

TEST(SampleWeights, BalancedClassesComeEquallyOften) {
  // Three samples of class 0, one of class 2, none of class 1; what is ignored is never drawn.
  const Labels data({0, 0, -100, 2, 0});
  const std::vector<double> weights = sample_weights("balanced", data, data.size(), 3, -100);
  EXPECT_EQ(weights, (std::vector<double>{1. / 3, 1. / 3, 0, 1, 1. / 3}));
  EXPECT_THROW(sample_weights("balanced", data, data.size(), 0, -100), Error);
  EXPECT_THROW(sample_weights("balanced", Labels({-100, -100}), 2, 3, -100), Error);
}

TEST(SampleWeights, AnIgnoredNumberInTheRangeIsNoClass) {
  const Labels data({0, 0, 2, 1, 2});
  EXPECT_EQ(sample_weights("balanced", data, data.size(), 3, 2),
            (std::vector<double>{0.5, 0.5, 0, 1, 0}));
  EXPECT_EQ(balanced_class_weights(data, 3, 2), (std::vector<double>{0.75, 1.5, 0}));
}

TEST(SampleWeights, AFileHasOneForEachRowOfTheData) {
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "w.txt").string();
  write_file(path, "10\n11\n12\n13\n14\n");
  const auto whole = std::make_shared<const Labels>(std::vector<std::int64_t>{0, 1, 2, 3, 4});
  const DatasetSplit parts = split_dataset(whole, 2, /*seed=*/1);
  const std::vector<double> weights = sample_weights(path, *parts.train, 5, 5, -100);
  ASSERT_EQ(weights.size(), 3u);
  ASSERT_NE(parts.train->place_of(2), 2u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(weights[i], 10 + static_cast<double>(parts.train->place_of(i)));
  // Rows that nobody knows to be held out.
  write_file(path, "10\n11\n12\n");
  EXPECT_THROW(sample_weights(path, *parts.train, 5, 5, -100), Error);
  // The first ones.
  EXPECT_EQ(sample_weights(path, *first_samples(whole, 3), 5, 5, -100),
            (std::vector<double>{10, 11, 12}));
  EXPECT_THROW(sample_weights(path, *whole, 5, 5, -100), Error);
}

}  // namespace
}  // namespace pipetrain
