// The seconds from one micro-batch to the next, once the pipeline is full.
#include <gtest/gtest.h>

#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

/// With stages that all take 3 s for a micro-batch, as many at once as they have replicas.
double period_of(const std::vector<int>& replicas, int micro_batches) {
  ScheduleOptions options =
      options_for("pipedream", static_cast<int>(replicas.size()), micro_batches);
  options.replicas = replicas;
  const Program program = generate(options);
  Costs costs = uniform_costs(program, {});
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    costs.stage[s].forward = replicas[s];
    costs.stage[s].backward = 2 * replicas[s];
  }
  return simulate(program, costs).micro_batch_period;
}

// Replicas start together and wait for each other's gradients: R micro-batches every 3 R seconds.
TEST(MicroBatchPeriod, OfReplicasIsThatOfWholeTurns) {
  for (const int replicas : {2, 3, 4, 8}) {
    EXPECT_DOUBLE_EQ(period_of({replicas}, 4 * replicas), 3) << replicas;
    EXPECT_DOUBLE_EQ(period_of({replicas, 1}, 5 * replicas + 4), 3) << replicas;
  }
  EXPECT_DOUBLE_EQ(period_of({3, 3}, 24), 3);
  EXPECT_EQ(turns_of_replicas({4, 1, 6}), 12);
  EXPECT_EQ(turns_of_replicas({}), 1);
  // With the third stage there would be 2^14 * 3 micro-batches.
  EXPECT_EQ(turns_of_replicas({1 << 14, 2, 3}), 1 << 14);
}

// Stage 0 starts 8 micro-batches one after the other before its first backward, 1 s apart, which
// says nothing of the 3 s that each takes.
TEST(MicroBatchPeriod, IsNotThatOfAPipelineThatFills) {
  const std::vector<int> stages(8, 1);
  EXPECT_EQ(period_of(stages, 8), 0);
  EXPECT_EQ(period_of(stages, 12), 0);
  EXPECT_DOUBLE_EQ(period_of(stages, 16), 3);
  // Fewer than two turns.
  EXPECT_EQ(period_of({8, 1}, 8), 0);
}

}  // namespace
}  // namespace pipetrain
