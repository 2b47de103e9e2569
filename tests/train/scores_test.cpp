#include "train/scores.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

// Expected values are scikit-learn's roc_auc_score of the same numbers.
TEST(AreaUnderCurve, CountsEqualScoresHalf) {
  const std::vector<float> scores = {0.1F, 0.4F, 0.35F, 0.8F};
  EXPECT_EQ(area_under_curve(scores, {false, false, true, true}), 0.75);
  EXPECT_EQ(area_under_curve(scores, {true, true, false, false}), 0.25);
  const std::vector<float> equal = {0.5F, 0.5F, 0.5F, 0.2F};
  EXPECT_EQ(area_under_curve(equal, {true, false, true, false}), 0.75);
}

TEST(AreaUnderCurve, NeedsBothKinds) {
  const std::vector<float> scores = {1, 2};
  EXPECT_EQ(area_under_curve(scores, {true, true}), std::nullopt);
  EXPECT_EQ(area_under_curve(scores, {false, false}), std::nullopt);
}

TEST(Scores, TasksHaveTheirMetrics) {
  Loss loss;
  loss.kind = LossKind::kSquaredError;
  for (const char* metric : {"loss", "r2", "mae"}) EXPECT_TRUE(offers(loss, metric)) << metric;
  for (const char* metric : {"accuracy", "f1", "auc", "miou", "perplexity", "top5"})
    EXPECT_FALSE(offers(loss, metric)) << metric;
  loss.kind = LossKind::kBinaryCrossEntropy;
  for (const char* metric : {"f1", "auc", "miou"}) EXPECT_TRUE(offers(loss, metric)) << metric;
  for (const char* metric : {"r2", "mae"}) EXPECT_FALSE(offers(loss, metric)) << metric;
  loss.kind = LossKind::kCrossEntropy;
  loss.classes = 50257;
  loss.correct = {0};
  EXPECT_TRUE(offers(loss, "top5"));
  for (const char* metric : {"f1", "auc", "miou"}) EXPECT_FALSE(offers(loss, metric)) << metric;
  loss.classes = 1000;
  for (const char* metric : {"f1", "auc", "miou"}) EXPECT_TRUE(offers(loss, metric)) << metric;
}

}  // namespace
}  // namespace pipetrain
