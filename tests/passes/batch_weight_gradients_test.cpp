#include "passes/batch_weight_gradients.h"

#include <gtest/gtest.h>

#include "support/small_networks.h"

namespace pipetrain {
namespace {

const Node* batch_gradient(const TrainingGraph& training, const std::string& weight) {
  for (std::size_t i = 0; i < training.parameters.size(); ++i) {
    if (training.parameters[i].name != weight) continue;
    for (const Accumulation& use : training.accumulations) {
      const Node& node = training.graph[training.graph[use.contribution].producer];
      if (training.graph[use.contribution].type.shape ==
              training.graph[training.parameters[i].value].type.shape &&
          node.part == Part::kBatchGradient)
        return &node;
    }
  }
  return nullptr;
}

// A gradient goes over several micro-batches where their samples are few beside the weights.
TEST(BatchWeightGradients, WhereTheOperandsAreSmall) {
  const OnnxModel model = test::wide_network();
  const auto few = test::training_graph(model, 8);
  EXPECT_EQ(batch_weight_gradients(*few, 8), 2);  // 72 → 512, 512 → 512; 512 → 5 has more samples
  ASSERT_EQ(few->batched_values.size(), 4U);
  const Node* node = batch_gradient(*few, "layer2.weight");
  ASSERT_TRUE(node);
  for (const ValueId id : node->inputs) {
    EXPECT_EQ(few->graph[id].role, Role::kBatched);
    EXPECT_EQ(few->graph[id].type.shape, Shape({32, 512}));
  }
  const auto many = test::training_graph(model, 1024);
  EXPECT_EQ(batch_weight_gradients(*many, 8), 0);
  EXPECT_EQ(batch_weight_gradients(*test::training_graph(model, 8), 1), 0);  // nothing to gather
  EXPECT_TRUE(many->batched_values.empty());
}

TEST(BatchWeightGradients, SmallerMicroBatchesFollow) {
  const OnnxModel model = test::wide_network();
  const auto full = test::training_graph(model, 8), rest = test::training_graph(model, 1);
  batch_weight_gradients(*full, 8);
  batch_weight_gradients_like(*full, *rest);
  ASSERT_EQ(rest->batched_values.size(), full->batched_values.size());
  for (std::size_t i = 0; i < full->batched_values.size(); ++i) {
    EXPECT_EQ(rest->graph[rest->batched_values[i].batched].type,
              full->graph[full->batched_values[i].batched].type);
    EXPECT_EQ(rest->graph[rest->batched_values[i].value].type.shape[0], 1);
  }
}

}  // namespace
}  // namespace pipetrain
