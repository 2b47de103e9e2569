#include "train/replica_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "passes/training_graph.h"
#include "tensor/tensor.h"

namespace pipetrain {
namespace {

HostTensor vector_of(float first, float second) {
  const std::array<float, 2> values = {first, second};
  return HostTensor::of<float>(Shape{2}, values);
}

// A layer that is called twice has two nodes, which name the same statistics. Each part has merged
// the moments of both, and counts by its samples.
TEST(ReplicaWeights, StatisticsThatNodesShareAreUpdatedOnce) {
  TrainingGraph graph;
  for (const char* name : {"mean", "variance"}) {
    Value value;
    value.name = name;
    value.type = {DType::kFloat32, Shape{2}};
    value.role = Role::kState;
    graph.graph.values.push_back(value);
  }
  RunningStatistic statistic;
  statistic.state_mean = ValueId{0};
  statistic.state_variance = ValueId{1};
  statistic.momentum = 0.75;
  graph.statistics = {statistic, statistic};

  StageContent start;
  start.weights = {{"mean", vector_of(1, -2)}, {"variance", vector_of(4, 8)}};
  const OptimizationConfig settings;
  ReplicaWeights weights(graph, settings, start);
  PartGradient first, second;
  first.statistics = {{"mean", vector_of(0.5, 1)}, {"variance", vector_of(1, 2)}};
  second.statistics = {{"mean", vector_of(1.5, 2)}, {"variance", vector_of(3, 0)}};
  first.samples = 3;
  second.samples = 1;
  std::vector<PartGradient*> parts = {&first, &second};
  weights.update(parts, /*learning_rate=*/0.1, /*number=*/1);
  // 0.75 of the old value, and three quarters and a quarter of what the parts add.
  EXPECT_EQ(weights.content().weights.at("mean").to_doubles(), (std::vector<double>{1.5, -0.25}));
  EXPECT_EQ(weights.content().weights.at("variance").to_doubles(), (std::vector<double>{4.5, 7.5}));
}

// The last part of an epoch may have fewer samples, and texts have different numbers of labels.
TEST(ReplicaWeights, PartsCountByTheirWeights) {
  TrainingGraph graph;
  for (int i = 0; i < 2; ++i) {
    Value value;
    value.name = i == 0 ? "w" : "gradient";
    value.type = {DType::kFloat32, Shape{2}};
    value.role = i == 0 ? Role::kParameter : Role::kGradient;
    graph.graph.values.push_back(value);
  }
  graph.parameters = {{"w", ValueId{0}, ValueId{1}}};
  StageContent start;
  start.weights = {{"w", vector_of(1, 2)}};
  OptimizationConfig settings;
  settings.optimizer = default_settings(OptimizerKind::kSgd);
  settings.optimizer.momentum = 0;
  settings.clip_norm = 100;
  ReplicaWeights weights(graph, settings, start);
  PartGradient large, small;
  large.weight = 6;
  large.gradients = {{"w", vector_of(1, 2)}};
  small.weight = 2;
  small.gradients = {{"w", vector_of(5, -2)}};
  std::vector<PartGradient*> parts = {&large, &small};
  EXPECT_EQ(relative_weights(parts), (std::vector<double>{1.5, 0.5}));
  // (6 · 1 + 2 · 5) / 8 = 2 and (6 · 2 - 2 · 2) / 8 = 1.
  EXPECT_NEAR(weights.update(parts, /*learning_rate=*/0.5, /*number=*/1), std::sqrt(5.0), 1e-12);
  EXPECT_EQ(weights.content().weights.at("w").to_doubles(), (std::vector<double>{0, 1.5}));
}

TEST(ReplicaWeights, PartsThatAreAlikeAreNotScaled) {
  PartGradient one, other, third;
  std::vector<PartGradient*> parts = {&one, &other, &third};
  for (const double weight : {0.0, 0.1}) {  // 0: no label counts
    one.weight = other.weight = third.weight = weight;
    EXPECT_EQ(relative_weights(parts), std::vector<double>(3, 1));
  }
}

}  // namespace
}  // namespace pipetrain
