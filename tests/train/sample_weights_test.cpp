#include "train/sample_weights.h"

#include <gtest/gtest.h>

#include "base/error.h"

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
  const std::vector<double> weights = sample_weights("balanced", data, 3, -100);
  EXPECT_EQ(weights, (std::vector<double>{1. / 3, 1. / 3, 0, 1, 1. / 3}));
  EXPECT_THROW(sample_weights("balanced", data, 0, -100), Error);
  EXPECT_THROW(sample_weights("balanced", Labels({-100, -100}), 3, -100), Error);
}

TEST(SampleWeights, AnIgnoredNumberInTheRangeIsNoClass) {
  const Labels data({0, 0, 2, 1, 2});
  EXPECT_EQ(sample_weights("balanced", data, 3, 2), (std::vector<double>{0.5, 0.5, 0, 1, 0}));
  EXPECT_EQ(balanced_class_weights(data, 3, 2), (std::vector<double>{0.75, 1.5, 0}));
}

}  // namespace
}  // namespace pipetrain
