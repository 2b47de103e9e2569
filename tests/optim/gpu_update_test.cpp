// The GPU's optimizer steps under the emulator, against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optim/optimizer.h"
#include "optim/update.h"
#include "support/emulated_kernels.h"

namespace pipetrain {
namespace {

std::vector<float> numbers(std::size_t count, int salt) {
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(std::sin(static_cast<double>(i * 7 + 3) + salt)));
  return out;
}

TEST(GpuUpdate, IsTheCpusUpToRounding) {
  std::vector<OptimizerSettings> all;
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kRmsProp,
        OptimizerKind::kAdagrad, OptimizerKind::kLion}) {
    OptimizerSettings settings = default_settings(kind);
    settings.weight_decay = 0.01;
    all.push_back(settings);
    settings.momentum = 0;
    all.push_back(settings);
    settings.momentum = 0.9;
    settings.nesterov = kind == OptimizerKind::kSgd;
    all.push_back(settings);
  }
  all.push_back(default_settings(OptimizerKind::kRmsProp));
  all.back().centered = true;
  constexpr std::size_t kCount = 3001;
  for (const OptimizerSettings& settings : all) {
    SCOPED_TRACE(name_of(settings.kind));
    std::vector<float> here = numbers(kCount, 0), there = here;
    const auto slots = static_cast<std::size_t>(state_slots(settings));
    std::vector<float> state[2], other[2];
    for (std::size_t s = 0; s < slots; ++s) state[s] = other[s] = std::vector<float>(kCount, 0.0F);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::vector<float> gradient = numbers(kCount, static_cast<int>(step));
      update(settings, 0.01, step, 0.5, std::span<float>(here), std::span<const float>(gradient),
             std::span<float>(state[0]), std::span<float>(state[1]));
      ASSERT_TRUE(
          test::emulated_update(settings, 0.01, step, 0.5, there, gradient, other[0], other[1]));
    }
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(there[i], here[i], 1e-5 * (1 + std::fabs(here[i]))) << i;
    for (std::size_t s = 0; s < slots; ++s) {
      for (std::size_t i = 0; i < kCount; ++i)
        ASSERT_NEAR(other[s][i], state[s][i], 1e-5 * (1 + std::fabs(state[s][i]))) << s << " " << i;
    }
  }
}

TEST(GpuUpdate, NormsAreTheCpus) {
  for (const std::size_t count : {0, 1, 255, 3001, 100000}) {
    const std::vector<float> values = numbers(count, 9);
    const double expected = sum_of_squares(std::span<const float>(values));
    EXPECT_NEAR(test::emulated_sum_of_squares(values), expected, 1e-12 * (1 + expected)) << count;
  }
}

TEST(GpuUpdate, WhatLooksAtNormsIsLeftToTheHost) {
  std::vector<float> one(1, 1.0F);
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars})
    EXPECT_FALSE(test::emulated_update(default_settings(kind), 0.1, 1, 1, one, one, one, one));
}

TEST(Emulator, SeesBarriersThatNotAllThreadsReach) {
  EXPECT_EQ(test::emulated_divergence(),
            "__syncthreads is reached by 29 of 32 threads; a warp exchanges values, but 3 of its "
            "threads have returned; threads of a block wait at different places");
  EXPECT_TRUE(test::emulated_order_shows_a_missing_barrier());
}

}  // namespace
}  // namespace pipetrain
