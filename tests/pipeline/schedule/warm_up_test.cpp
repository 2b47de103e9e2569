#include "pipeline/schedule/warm_up.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

/// Seconds between two micro-batches in the steady state, by simulation.
double simulated_micro_batch_seconds(const WarmUpCosts& costs, const std::vector<int>& warm,
                                     int micro_batches = 60) {
  const auto makespan = [&](int micro_batches) {
    ScheduleOptions options =
        options_for("1f1b", static_cast<int>(costs.forward_seconds.size()), micro_batches);
    options.warm = warm;
    options.replicas = costs.replicas;
    const Program program = generate(options);
    Costs simulated = uniform_costs(program, {});
    for (std::size_t s = 0; s < simulated.stage.size(); ++s) {
      simulated.stage[s].forward = costs.forward_seconds[s];
      simulated.stage[s].backward = costs.backward_seconds[s];
    }
    for (const Edge& edge : program.edges) {
      const int cut = std::min(edge.from_stage, edge.to_stage);
      simulated.edge_link.push_back({costs.hop_seconds[static_cast<std::size_t>(cut)]});
    }
    double end = 0;
    for (const auto& list : time_round(program, simulated)) {
      for (const Event& event : list) end = std::max(end, event.end);
    }
    return end;
  };
  return (makespan(2 * micro_batches) - makespan(micro_batches)) / micro_batches;
}

double uniform(std::mt19937& random, double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(random);
}

WarmUpCosts random_costs(int stages, double spread, double hop, std::mt19937& random) {
  WarmUpCosts costs;
  for (int s = 0; s < stages; ++s) {
    costs.forward_seconds.push_back(uniform(random, 1 - spread, 1 + spread));
    costs.backward_seconds.push_back(2 * uniform(random, 1 - spread, 1 + spread));
    if (s > 0) costs.hop_seconds.push_back(uniform(random, 0, hop));
  }
  costs.tolerance = 0;
  return costs;
}

double slowest(const WarmUpCosts& costs) {
  double seconds = 0;
  for (std::size_t s = 0; s < costs.forward_seconds.size(); ++s) {
    seconds = std::max(seconds, costs.forward_seconds[s] + costs.backward_seconds[s]);
  }
  return seconds;
}

TEST(WarmUp, StandardCountsTheWorkersThatAreLeft) {
  EXPECT_EQ(standard_warm_up(4), (std::vector<int>{3, 2, 1, 0}));
  // PipeDream's plans 3-1 and 15-1, and others by ceil(sum of r_j, j >= s, over r_s) - 1.
  EXPECT_EQ(standard_warm_up(std::vector<int>{3, 1}), (std::vector<int>{1, 0}));
  EXPECT_EQ(standard_warm_up(std::vector<int>{15, 1}), (std::vector<int>{1, 0}));
  EXPECT_EQ(standard_warm_up(std::vector<int>{1, 3}), (std::vector<int>{3, 0}));
  EXPECT_EQ(standard_warm_up(std::vector<int>{2, 4, 3, 3, 3, 1}),
            (std::vector<int>{7, 3, 3, 2, 1, 0}));
  EXPECT_EQ(eager_warm_up({1, 1, 1}), (std::vector<int>{4, 2, 0}));
  EXPECT_EQ(zero_bubble_warm_up(4, 4), (std::vector<int>{3, 2, 1, 0}));
  EXPECT_EQ(zero_bubble_warm_up(4, 7), (std::vector<int>{6, 4, 2, 0}));
  EXPECT_EQ(zero_bubble_warm_up(1, 5), (std::vector<int>{0}));
}

TEST(WarmUp, HomogeneousStagesNeedTheKnownWarmUps) {
  for (int p = 1; p <= 9; ++p) {
    WarmUpCosts costs;
    costs.forward_seconds.assign(static_cast<std::size_t>(p), 0.1);
    costs.backward_seconds.assign(static_cast<std::size_t>(p), 0.2);
    costs.hop_seconds.assign(static_cast<std::size_t>(p - 1), 0);
    costs.tolerance = 0;
    EXPECT_EQ(balanced_warm_up(costs), standard_warm_up(p));
    for (const double hop : {0.001, 0.07, 0.15}) {  // up to half of forward and backward
      costs.hop_seconds.assign(static_cast<std::size_t>(p - 1), hop);
      EXPECT_EQ(balanced_warm_up(costs),
                eager_warm_up(std::vector<int>(static_cast<std::size_t>(p), 1)));
    }
  }
}

TEST(WarmUp, RandomPipelinesRunAtTheSlowestStage) {
  std::mt19937 random(11);
  double worst = 0;
  double plain = 0;
  int lowered_count = 0;
  constexpr int kPipelines = 500;
  for (int n = 0; n < kPipelines; ++n) {
    const int p = 2 + static_cast<int>(random() % 7);
    const WarmUpCosts costs = random_costs(p, 0.8, 1.5, random);
    const std::vector<int> warm = balanced_warm_up(costs);
    EXPECT_DOUBLE_EQ(micro_batch_seconds(costs, warm), slowest(costs));
    const double ratio = simulated_micro_batch_seconds(costs, warm) / slowest(costs);
    worst = std::max(worst, ratio);
    // The first micro-batches may be slower, so that the later ones catch up; never the other way
    // round.
    EXPECT_LE(ratio, 1 + 1e-9) << "pipeline " << n;
    EXPECT_GE(ratio, 0.97) << "pipeline " << n;
    plain +=
        simulated_micro_batch_seconds(costs, standard_warm_up(p)) / slowest(costs) / kPipelines;

    // One micro-batch less on the first stages is always slower, and as slow as predicted.
    std::vector<int> less = warm;
    const std::size_t prefix = 1 + random() % static_cast<std::size_t>(p - 1);
    for (std::size_t s = 0; s < prefix; ++s) --less[s];
    if (less[prefix - 1] < less[prefix]) continue;
    ++lowered_count;
    const double predicted = micro_batch_seconds(costs, less) / slowest(costs);
    EXPECT_GT(predicted, 1 + 1e-9) << n;
    // A small loss shows late, once what the first micro-batches lost has been caught up.
    const int micro_batches = predicted < 1.02 ? 600 : 60;
    EXPECT_GT(simulated_micro_batch_seconds(costs, less, micro_batches),
              slowest(costs) * (1 + 1e-9))
        << n;
  }
  EXPECT_GT(lowered_count, 350);
  std::printf("balanced warm-up: worst %.6f of the slowest stage, standard %.3f; %d lowered\n",
              worst, plain, lowered_count);
}

TEST(WarmUp, ToleranceBoundsTheLossAndSavesMemory) {
  std::mt19937 random(12);
  int exact = 0;
  int tolerant = 0;
  for (int n = 0; n < 150; ++n) {
    WarmUpCosts costs = random_costs(2 + static_cast<int>(random() % 7), 0.05, 0.09, random);
    for (const int ahead : balanced_warm_up(costs)) exact += ahead;
    costs.tolerance = 0.02;
    const std::vector<int> warm = balanced_warm_up(costs);
    for (const int ahead : warm) tolerant += ahead;
    EXPECT_LE(micro_batch_seconds(costs, warm), slowest(costs) * 1.02 * (1 + 1e-9));
    EXPECT_LE(simulated_micro_batch_seconds(costs, warm), slowest(costs) * 1.02 * (1 + 1e-6));
  }
  EXPECT_LT(tolerant, exact);
}

TEST(WarmUp, PredictsTheLossOfAnyWarmUp) {
  std::mt19937 random(13);
  for (int n = 0; n < 100; ++n) {
    const int p = 2 + static_cast<int>(random() % 4);
    const WarmUpCosts costs = random_costs(p, 0.8, 1.0, random);
    const std::vector<int> warm = standard_warm_up(p);
    EXPECT_NEAR(simulated_micro_batch_seconds(costs, warm) / micro_batch_seconds(costs, warm), 1,
                0.02)
        << n;
  }
}

TEST(WarmUp, MemoryLimitsIt) {
  WarmUpCosts costs;
  costs.forward_seconds.assign(4, 1);
  costs.backward_seconds.assign(4, 2);
  costs.hop_seconds.assign(3, 1);
  costs.tolerance = 0;
  EXPECT_EQ(balanced_warm_up(costs), (std::vector<int>{6, 4, 2, 0}));
  costs.most_micro_batches = {5, 9, 2, 9};
  const std::vector<int> warm = balanced_warm_up(costs);
  // With two micro-batches stage 2 takes 4 s for each, half of the 8 s of the way to stage 3 and
  // back. Stage 1 would hold a fourth ahead for nothing.
  EXPECT_EQ(warm, (std::vector<int>{4, 3, 1, 0}));
  for (std::size_t s = 0; s < warm.size(); ++s) {
    EXPECT_LT(warm[s], costs.most_micro_batches[s]);
    EXPECT_LE(warm[s], warm[s > 0 ? s - 1 : 0]);
  }
  EXPECT_DOUBLE_EQ(micro_batch_seconds(costs, warm), 4);
  costs.most_micro_batches = {1, 1, 1, 1};
  EXPECT_EQ(balanced_warm_up(costs), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(limited_warm_up({6, 4, 2, 0}, {1, 1, 1, 1}, 4), (std::vector<int>{3, 3, 2, 0}));
  EXPECT_EQ(limited_warm_up({7, 3, 3}, {1, 2, 2}, 4), (std::vector<int>{3, 1, 1}));
}

// Hidden latencies would take more micro-batches than there can be.
TEST(WarmUp, HasABoundForAnyLink) {
  for (const double hop : {10.0, 1e6, 1e15, 1e300}) {
    WarmUpCosts costs;
    costs.forward_seconds = costs.backward_seconds = {1e-6, 1e-6};
    costs.hop_seconds = {hop};
    const std::vector<int> warm = balanced_warm_up(costs);
    EXPECT_GT(warm[0], kMostWarmUp / 2) << hop;
    EXPECT_LE(warm[0], kMostWarmUp) << hop;
    EXPECT_EQ(warm[1], 0) << hop;
  }
}

TEST(WarmUp, ReplicasShareTheWork) {
  // A stage of three times the work on three devices keeps up with one of one.
  WarmUpCosts costs;
  costs.forward_seconds = {3, 1};
  costs.backward_seconds = {6, 2};
  costs.hop_seconds = {0};
  costs.replicas = {3, 1};
  costs.tolerance = 0;
  EXPECT_EQ(balanced_warm_up(costs), standard_warm_up(costs.replicas));
  EXPECT_NEAR(simulated_micro_batch_seconds(costs, balanced_warm_up(costs)), 3, 1e-9);
  std::mt19937 random(14);
  for (int n = 0; n < 60; ++n) {
    costs = random_costs(3, 0.5, 0.5, random);
    costs.replicas.clear();
    double seconds = 0;
    for (std::size_t s = 0; s < 3; ++s) {
      costs.replicas.push_back(1 + static_cast<int>(random() % 3));
      const double work = costs.forward_seconds[s] + costs.backward_seconds[s];
      seconds = std::max(seconds, work / costs.replicas[s]);
    }
    const std::vector<int> warm = balanced_warm_up(costs);
    EXPECT_NEAR(simulated_micro_batch_seconds(costs, warm) / seconds, 1, 0.01) << n;
  }
}

TEST(WarmUp, RefusesCostsThatDoNotFit) {
  WarmUpCosts costs;
  EXPECT_THROW(balanced_warm_up(costs), Error);
  costs.forward_seconds = {1, 1};
  costs.backward_seconds = {1, 1};
  EXPECT_THROW(balanced_warm_up(costs), Error);
  costs.hop_seconds = {0};
  EXPECT_EQ(balanced_warm_up(costs), (std::vector<int>{1, 0}));
  EXPECT_THROW(micro_batch_seconds(costs, {1}), Error);
}

}  // namespace
}  // namespace pipetrain
