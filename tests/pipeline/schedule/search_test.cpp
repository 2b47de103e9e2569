#include "pipeline/schedule/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "partition/random_chain.h"

namespace pipetrain::test {
namespace {

/// Two replicas of one stage, for links of so many bytes per second.
Candidate replicas_with(const ChainCosts& chain, double bytes_per_second, double all_reduce) {
  SearchRequest request;
  request.batch = 8;
  request.devices = 2;
  request.micro_batches = {2};
  request.costs = [&](int) -> const ChainCosts& { return chain; };
  request.schedules = {"1f1b"};
  request.recompute = Recompute::kNone;
  request.topology.levels = {{"processes of a host", 2, bytes_per_second, 0, all_reduce}};
  const std::vector<Candidate> found = search(request);
  const auto replicas = std::ranges::find(found, 2, &Candidate::replicas);
  EXPECT_NE(replicas, found.end());
  return replicas == found.end() ? Candidate() : *replicas;
}

TEST(Search, SumsOfReplicasHaveARateOfTheirOwn) {
  std::mt19937 random(7);
  const ChainCosts chain = random_chain(random, 4);
  const Candidate free = replicas_with(chain, 1, 1e12);
  ASSERT_EQ(free.plan.stages.size(), 1U);
  const auto bytes = static_cast<double>(free.plan.stages[0].parameter_bytes);
  ASSERT_GT(bytes, 0);
  const auto sum_with = [&](double bytes_per_second, double all_reduce) {
    return replicas_with(chain, bytes_per_second, all_reduce).step_seconds - free.step_seconds;
  };
  // Of two replicas each sends half of the bytes, and half of the sums.
  EXPECT_NEAR(sum_with(1e12, 0), 0, 1e-6);
  EXPECT_NEAR(sum_with(1, 0), bytes, 1e-6);
  EXPECT_NEAR(sum_with(1, 4), bytes / 4, 1e-6);
}

ChainCosts equal_elements(int count) {
  ChainCosts chain;
  for (int i = 0; i < count; ++i) {
    ChainCost& element = chain.elements.emplace_back();
    element.forward_seconds = 1;
    element.input_gradient_seconds = element.weight_gradient_seconds = 0.5;
  }
  chain.forward_bytes.assign(static_cast<std::size_t>(count) + 1, 2);
  chain.backward_bytes = chain.forward_bytes;
  return chain;
}

/// Two stages with a parameter of 10 bytes that both use, joined by a link of 5 bytes per second.
SearchRequest request_of_tied(const ChainCosts& chain, const char* schedule) {
  SearchRequest request;
  request.batch = 4;
  request.devices = 2;
  request.fewer_devices = false;
  request.micro_batches = {4};
  request.costs = [all = &chain](int) -> const ChainCosts& { return *all; };
  request.schedules = {schedule};
  request.recompute = Recompute::kNone;
  request.topology.levels = {{"network", 2, 5, 0.25}};
  return request;
}

TEST(Search, GradientsOfTiedParametersAreSent) {
  ChainCosts chain = equal_elements(2);
  chain.tied = {{0, 10, {0, 1}}, {1, 10, {0, 1}}};
  SearchRequest request = request_of_tied(chain, "1f1b");
  const std::vector<Candidate> read = search(request);
  request.sends_tied_gradients = true;
  const std::vector<Candidate> sent = search(request);
  ASSERT_EQ(read.size(), 1U);
  ASSERT_EQ(sent.size(), 1U);
  ASSERT_EQ(sent[0].plan.stages.size(), 2U);
  // Each stage sends its own to the other, one after the other.
  EXPECT_NEAR(sent[0].step_seconds - read[0].step_seconds, 2 * (0.25 + 10.0 / 5), 1e-9);
}

TEST(Search, StagesWithTiedParametersAreUpdatedTogether) {
  ChainCosts chain = equal_elements(2);
  EXPECT_EQ(search(request_of_tied(chain, "pipedream-2bw")).size(), 1U);
  chain.tied = {{0, 10, {0, 1}}, {1, 10, {0, 1}}};
  EXPECT_TRUE(search(request_of_tied(chain, "pipedream-2bw")).empty());
}

TEST(Search, SlowDevicesGetLessOrTakeLonger) {
  const ChainCosts chain = equal_elements(12);
  const auto found_with = [&](const char* schedule, const std::vector<double>& speeds) {
    SearchRequest request = request_of_tied(chain, schedule);
    request.topology.levels = {{"link", 2, 1e12, 0}};
    request.topology.device_speed = speeds;
    const std::vector<Candidate> found = search(request);
    EXPECT_EQ(found.size(), 1U) << schedule;
    return found.empty() ? Candidate() : found[0];
  };
  for (const char* schedule : {"1f1b", "interleaved-1f1b"}) {
    const double full = found_with(schedule, {}).step_seconds;
    EXPECT_NEAR(found_with(schedule, {0.5, 0.5}).step_seconds, 2 * full, 1e-6) << schedule;
    EXPECT_GT(found_with(schedule, {1, 0.5}).step_seconds, 1.05 * full) << schedule;
  }
  // Stages of 8 and 4 elements take equally long, 8 s forward and 8 s backward: a step takes 80 s.
  // With 9 and 3 elements it takes 9 (forward) and 9 (backward), and 6 and 6:
  // F0 0-9, F1 9-18, B0 21-30, F2 30-39, B1 39-48, F3 48-57, B2 57-66, B3 69-78.
  const Candidate found = found_with("1f1b", {1, 0.5});
  EXPECT_EQ(found.plan.cuts(), (std::vector<int>{9}));
  EXPECT_NEAR(found.step_seconds, 78, 1e-6);
}

TEST(Search, AnyNumberOfStagesOfADevice) {
  const ChainCosts chain = equal_elements(64);
  SearchRequest request;
  request.batch = 8;
  request.devices = 4;
  request.fewer_devices = false;
  request.micro_batches = {8};
  request.costs = [&](int) -> const ChainCosts& { return chain; };
  request.schedules = {"1f1b", "interleaved-1f1b"};
  request.recompute = Recompute::kNone;
  request.chunks = 9;
  const std::vector<Candidate> found = search(request);
  EXPECT_NE(std::ranges::find(found, "interleaved-1f1b", &Candidate::schedule), found.end());
}

TEST(Search, BalancedWarmUpHidesSlowLinks) {
  const ChainCosts chain = equal_elements(4);
  SearchRequest request;
  request.batch = 32;
  request.devices = 4;
  request.fewer_devices = false;
  request.micro_batches = {32};
  request.costs = [&](int) -> const ChainCosts& { return chain; };
  request.schedules = {"1f1b", "1f1b-auto"};
  request.recompute = Recompute::kNone;
  request.topology.levels = {{"network", 4, 1, 0}};  // a hop takes as long as both passes
  const std::vector<Candidate> found = search(request);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].schedule, "1f1b-auto");
  EXPECT_LT(found[0].step_seconds, 0.8 * found[1].step_seconds);
}

// As above, with memory for five micro-batches of a stage, where the whole warm-up takes ten.
TEST(Search, BalancedWarmUpStaysWithinMemory) {
  ChainCosts chain = equal_elements(4);
  for (ChainCost& element : chain.elements) element.saved_bytes = 1;
  SearchRequest request;
  request.batch = 32;
  request.devices = 4;
  request.fewer_devices = false;
  request.micro_batches = {32};
  request.costs = [&](int) -> const ChainCosts& { return chain; };
  request.schedules = {"1f1b", "1f1b-auto"};
  request.recompute = Recompute::kNone;
  request.topology.levels = {{"network", 4, 1, 0}};
  request.memory_limit_bytes = 5;
  const std::vector<Candidate> found = search(request);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].schedule, "1f1b-auto");
  EXPECT_TRUE(found[0].fits);
  std::vector<int> held;
  for (const StagePlan& stage : found[0].plan.stages) held.push_back(stage.in_flight);
  // The way through all stages and back takes 4 x 2 + 3 x 2 x 2 = 20 s: 4 s for each of five
  // micro-batches, and 5 s for each of the four that 1f1b holds.
  EXPECT_EQ(held, (std::vector<int>{5, 4, 2, 1}));
  EXPECT_LT(found[0].step_seconds, 0.9 * found[1].step_seconds);
}

TEST(Search, LimitsTheMicroBatchesThatADeviceHolds) {
  const ChainCosts chain = equal_elements(8);
  SearchRequest request;
  request.batch = 8;
  request.devices = 4;
  request.fewer_devices = false;
  request.micro_batches = {8};
  request.costs = [&](int) -> const ChainCosts& { return chain; };
  request.schedules = {"gpipe", "1f1b", "interleaved-1f1b"};
  request.recompute = Recompute::kNone;
  for (const int units : {1, 2}) {
    request.memory_units = units;
    const std::vector<Candidate> found = search(request);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].schedule, "1f1b");
    for (const StagePlan& stage : found[0].plan.stages) EXPECT_LE(stage.in_flight, units);
    // Alone in the pipeline, each of the 8 takes 2 s for each of the 8 elements.
    if (units == 1) {
      EXPECT_NEAR(found[0].step_seconds, 8 * 8 * 2, 1e-9);
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
