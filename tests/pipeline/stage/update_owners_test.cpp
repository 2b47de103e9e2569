#include "pipeline/stage/update_owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "passes/linearise.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

/// Elements that each replica owns, and those of parameters that all update (under -1).
std::map<int, std::int64_t> owned_elements(const TrainingGraph& training, const StageSlice& slice,
                                           int replicas) {
  const UpdateOwners owners = update_owners(training, slice, replicas);
  EXPECT_EQ(owners.of_parameter.size(), slice.parameters.size());
  std::map<int, std::int64_t> elements;
  for (std::size_t k = 0; k < slice.parameters.size(); ++k) {
    const Parameter& parameter = training.parameters[static_cast<std::size_t>(slice.parameters[k])];
    EXPECT_LT(owners.of_parameter[k], replicas);
    elements[owners.of_parameter[k]] += training.graph[parameter.value].type.count();
  }
  return elements;
}

TEST(UpdateOwners, HaveEveryParameterOnceAndAboutTheSameShare) {
  const auto training = test::training_graph(test::wide_network(), 4);
  const Chain chain = linearise(*training);
  const Slices slices = slice_stages(*training, stages_of_chain(*training, chain, {0}), 1);
  const std::map<int, std::int64_t> one = owned_elements(*training, slices.stages[0], 1);
  ASSERT_EQ(one.size(), 1U);  // all update everything
  const std::int64_t all = one.at(kEveryReplica);
  for (const int replicas : {2, 3}) {
    const auto elements = owned_elements(*training, slices.stages[0], replicas);
    EXPECT_FALSE(elements.contains(kEveryReplica));
    std::int64_t sum = 0, most = 0, largest = 0;
    for (const auto& [replica, count] : elements) {
      sum += count;
      most = std::max(most, count);
    }
    for (const Parameter& parameter : training->parameters)
      largest = std::max(largest, training->graph[parameter.value].type.count());
    EXPECT_EQ(sum, all);
    EXPECT_LE(most, all / replicas + largest);
    EXPECT_EQ(elements.at(largest_share(*training, slices.stages[0], replicas)), most);
  }
}

/// That all replicas update the weights that several stages hold, and one of them any other.
void expect_all_update_what_is_tied(const TrainingGraph& training, const Slices& slices) {
  for (const StageSlice& slice : slices.stages) {
    const UpdateOwners owners = update_owners(training, slice, 2);
    for (std::size_t k = 0; k < slice.parameters.size(); ++k) {
      const auto holders =
          std::count_if(slices.stages.begin(), slices.stages.end(), [&](const StageSlice& other) {
            return std::count(other.parameters.begin(), other.parameters.end(),
                              slice.parameters[k]) > 0;
          });
      EXPECT_EQ(owners.of_parameter[k] == kEveryReplica, holders > 1);
    }
  }
}

TEST(UpdateOwners, AllUpdateWhatIsTiedToAnotherStage) {
  const auto training = test::training_graph(test::difficult_network(/*tied=*/true), 4);
  const Chain chain = linearise(*training);
  const int count = static_cast<int>(chain.order.size());
  const Slices slices = slice_stages(
      *training, stages_of_chain(*training, chain, {0, count / 4, count / 2, 3 * count / 4}), 4);
  ASSERT_TRUE(slices.has_tied_stages);
  expect_all_update_what_is_tied(*training, slices);
}

/// Only the second stage computes the gradient, but the first one makes the same update with it.
TEST(UpdateOwners, AllUpdateWhatAnotherStageReadsWithoutAGradient) {
  const auto training = test::training_graph(test::codebook_network(), 4);
  const Chain chain = linearise(*training);
  int tied = 0;
  for (int cut = 1; cut < static_cast<int>(chain.order.size()); ++cut) {
    const Slices slices = slice_stages(*training, stages_of_chain(*training, chain, {0, cut}), 2);
    tied += slices.has_tied_stages ? 1 : 0;
    expect_all_update_what_is_tied(*training, slices);
  }
  EXPECT_GT(tied, 0);
}

}  // namespace
}  // namespace pipetrain
