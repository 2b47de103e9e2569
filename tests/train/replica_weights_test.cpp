#include "train/replica_weights.h"

#include <gtest/gtest.h>

#include <array>
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
// the moments of both.
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
  std::vector<PartGradient*> parts = {&first, &second};
  weights.update(parts, /*learning_rate=*/0.1, /*number=*/1);
  // 0.75 of the old value and the mean of what the parts add.
  EXPECT_EQ(weights.content().weights.at("mean").to_doubles(), (std::vector<double>{1.75, 0}));
  EXPECT_EQ(weights.content().weights.at("variance").to_doubles(), (std::vector<double>{5, 7}));
}

}  // namespace
}  // namespace pipetrain
