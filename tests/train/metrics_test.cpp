#include "train/metrics.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace pipetrain {
namespace {

TEST(Metrics, KnowWhetherMoreIsBetter) {
  for (const char* name : {"accuracy", "r2", "top5"}) EXPECT_TRUE(grows(name)) << name;
  for (const char* name : {"loss", "perplexity"}) EXPECT_FALSE(grows(name)) << name;
}

TEST(Metrics, HaveNames) {
  EXPECT_EQ(metric_named("val_loss"), "loss");
  EXPECT_EQ(metric_named("val-top5"), "top5");
  EXPECT_EQ(top_of("top12"), 12);
  for (const char* name : {"loss", "top", "top0", "top-3", "top5x"}) EXPECT_EQ(top_of(name), 0);
  EXPECT_THROW(metric_named("acuracy"), Error);
  EXPECT_THROW(metric_named("top-k"), Error);
  EvaluationReport report;
  report.top_k = 0.75;
  report.k = 5;
  EXPECT_EQ(metric_of(report, "top5"), 0.75);
  EXPECT_EQ(metric_of(report, "top3"), std::nullopt);
}

TEST(Spread, OfBatchesIsThatOfAllTargets) {
  // Two columns; the batches have different means and sizes.
  const std::vector<std::vector<float>> batches = {
      {1, 10, 2, 20, 4, 10}, {100, -5, 104, -7}, {50, 3}};
  Spread spread;
  std::vector<std::vector<double>> columns(2);
  for (const std::vector<float>& batch : batches) {
    const HostTensor targets =
        HostTensor::of<float>(Shape{static_cast<std::int64_t>(batch.size() / 2), 2}, batch);
    spread.add(targets.view());
    for (std::size_t i = 0; i < batch.size(); ++i) columns[i % 2].push_back(batch[i]);
  }
  double expected = 0;
  for (const std::vector<double>& column : columns) {
    double mean = 0;
    for (const double value : column) mean += value / static_cast<double>(column.size());
    for (const double value : column) expected += (value - mean) * (value - mean);
  }
  EXPECT_NEAR(spread.total(), expected, 1e-9 * expected);
}

}  // namespace
}  // namespace pipetrain
