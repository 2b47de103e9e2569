// Micro-batches of one size hand a value past a stage, those of another do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "passes/linearise.h"
#include "pipeline/stage/slice.h"
#include "support/cut_graphs.h"
#include "support/placed_runtime.h"

namespace pipetrain::test {
namespace {

/// The forward node that computes this node of the model, alone or with others.
int node_of(const TrainingGraph& training, const std::string& name) {
  const std::vector<Node>& nodes = training.graph.nodes;
  const auto computes = [&](const Node& node) {
    const std::string members = "\n" + node.attributes.text("members", node.name) + "\n";
    return node.part == Part::kForward && members.find("\n" + name + "\n") != std::string::npos;
  };
  return static_cast<int>(std::ranges::find_if(nodes, computes) - nodes.begin());
}

int place_of(const TrainingGraph& training, const std::string& name) {
  const std::vector<NodeId> order = linearise(training).order;
  return static_cast<int>(std::ranges::find(order, NodeId{node_of(training, name)}) -
                          order.begin());
}

/// Three stages. For micro-batches of this variant the sum behind the second stage is in it; for
/// the others in the third one, which thus reads a result of the first.
Pipeline with_sum_moved(std::size_t variant) {
  Pipeline pipeline(/*tied=*/false, 3, kSizes);
  const TrainingGraph& first = *pipeline.graphs[0];
  pipeline.variants =
      cut_graphs(pipeline.graphs, {0, place_of(first, "conv2"), place_of(first, "skip")}).variants;
  RuntimeVariant& moved = pipeline.variants[variant];
  moved.stage_of_forward[static_cast<std::size_t>(node_of(*moved.training, "skip"))] = 1;
  pipeline.edges.clear();
  std::vector<std::size_t> counts;
  for (const RuntimeVariant& one : pipeline.variants) {
    const Slices slices = slice_stages(*one.training, one.stage_of_forward, 3);
    counts.push_back(slices.edges.size());
    for (const ValueEdge& edge : slices.edges) {
      const bool known = std::ranges::any_of(pipeline.edges, [&](const Edge& other) {
        return other.from_stage == edge.from && other.to_stage == edge.to &&
               other.gradient == edge.gradient;
      });
      if (!known) pipeline.edges.push_back({edge.from, edge.to, 0, edge.gradient});
    }
  }
  EXPECT_LT(counts[variant], counts[1 - variant]);
  return pipeline;
}

std::string trained(const Pipeline& pipeline, const std::string& schedule, Place place) {
  const Program program = pipeline.program(schedule, 3);
  PlacedRuntime runtime(pipeline, program, place);
  FixedData data(3 * kBatch, 5);
  for (std::int64_t step = 0; step < 3; ++step) {
    data.set_mini_batch(step * kBatch, kBatch, kMicroBatch, step, kSizes);
    runtime.run(program, data);
  }
  return fingerprint(pipeline, runtime);
}

// Also where devices exchange values, each of which has two ends.
TEST(UnevenEdges, GiveTheBitsOfOneStage) {
  const Pipeline whole(/*tied=*/false, 1, kSizes);
  const std::string expected = trained(whole, "1f1b", Place::kCpu);
  for (const std::size_t variant : {std::size_t{0}, std::size_t{1}}) {
    const Pipeline pipeline = with_sum_moved(variant);
    for (const std::string schedule : {"1f1b", "zb-h1"}) {
      for (const Place place : {Place::kCpu, Place::kManyDevices, Place::kExchanging})
        EXPECT_TRUE(trained(pipeline, schedule, place) == expected) << variant << " " << schedule;
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
