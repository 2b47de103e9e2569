// What GPUs run of these networks as one kernel gives the bits of the nodes alone.
#include <gtest/gtest.h>

#include "support/zoo_chains.h"

namespace pipetrain::test {
namespace {

TEST(FusedChains, OfAllNetworksGiveTheBitsOfTheirNodes) {
  std::vector<FusedChain> chains;
  for (auto& [source, chain] : all_chains(/*samples=*/1)) {
    EXPECT_NE(source, "") << chain.node.attributes.text("program", "");
    chains.push_back(std::move(chain));
  }
  EXPECT_GE(chains.size(), 10U);
  EXPECT_EQ(check_fused_chains(chains), static_cast<int>(chains.size()));
}

}  // namespace
}  // namespace pipetrain::test
