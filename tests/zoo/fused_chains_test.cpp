// Fused chains of these networks on GPUs: same bits as the separate nodes, and little on the host.
#include <gtest/gtest.h>

#include <set>

#include "support/emulated_kernels.h"
#include "support/zoo_chains.h"

namespace pipetrain::test {
namespace {

const std::vector<TrainingGraph>& small_graphs() {
  static const std::vector<TrainingGraph> graphs = graphs_for_gpus(/*samples=*/1);
  return graphs;
}

TEST(FusedChains, OfAllNetworksGiveTheBitsOfTheirNodes) {
  std::vector<FusedChain> chains;
  for (auto& [source, chain] : chains_of(small_graphs())) {
    EXPECT_NE(source, "") << chain.node.attributes.text("program", "");
    chains.push_back(std::move(chain));
  }
  // BatchNorm nodes compute the residual sums and activations behind them themselves.
  EXPECT_GE(chains.size(), 8U);
  EXPECT_EQ(check_fused_chains(chains), static_cast<int>(chains.size()));
}

// In mixed precision feature maps are channels last from the first convolution to the last pooling.
TEST(GpuGraphs, RunThereAltogether) {
  const std::set<std::string_view> libraries = {"Conv",   "ConvInputGrad",    "ConvWeightGrad",
                                                "MatMul", "MatMulActivation", "MatMulSums"};
  std::set<std::string> on_host;
  int last = 0;
  for (const TrainingGraph& training : small_graphs()) {
    for (const Node& node : training.graph.nodes) {
      if ((node.op->flags & kView) || libraries.contains(node.op->name)) continue;
      const KernelRequest request{node, training.graph.input_types(node),
                                  training.graph.output_types(node)};
      if (!make_emulated_kernel(request)) on_host.insert(std::string(node.op->name));
      last += request.outputs[0].layout == Layout::kChannelsLast && node.op->name != "Reorder";
    }
  }
  EXPECT_EQ(on_host, std::set<std::string>());
  EXPECT_GT(last, 100);
}

}  // namespace
}  // namespace pipetrain::test
