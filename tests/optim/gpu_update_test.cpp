// The GPU's optimizer steps, under the emulator or on a GPU, against the CPU's.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "optim/optimizer_table.h"
#include "optim/update.h"
#include "support/device_kernel.h"
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
  for (const OptimizerRow& row : kOptimizerRows) {
    OptimizerSettings settings = default_settings(row.kind);
    if (!test::is_emulated_update(settings)) continue;
    settings.weight_decay = 0.01;
    all.push_back(settings);
    settings.momentum = 0;
    all.push_back(settings);
    settings.momentum = 0.9;
    settings.nesterov = row.reads_nesterov;
    all.push_back(settings);
  }
  all.push_back(default_settings(OptimizerKind::kRmsProp));
  all.back().centered = true;
  all.push_back(default_settings(OptimizerKind::kSgd));
  all.back().dampening = 0.3;
  // Many tensors at once: more than fit one kernel, of one element, of one chunk and more, with and
  // without a moving average.
  struct Tensor {
    const OptimizerSettings* settings;
    std::vector<float> here, there, gradient, state[2], other[2], average, other_average;
  };
  const std::size_t counts[] = {1, 77, 4096, 9001};
  std::vector<Tensor> tensors;
  for (int i = 0; i < 300; ++i) {
    Tensor tensor;
    tensor.settings = &all[static_cast<std::size_t>(i) % all.size()];
    const std::size_t count = i < 40 ? counts[i % 4] : 5;
    tensor.here = tensor.there = numbers(count, i);
    const auto slots = static_cast<std::size_t>(state_slots(*tensor.settings));
    for (std::size_t s = 0; s < slots; ++s)
      tensor.state[s] = tensor.other[s] = std::vector<float>(count, 0.0F);
    if (i % 3 != 1) tensor.average = tensor.other_average = numbers(count, 1);
    tensors.push_back(std::move(tensor));
  }
  for (std::int64_t step = 1; step <= 3; ++step) {
    std::vector<DeviceUpdate> updates;
    for (Tensor& tensor : tensors) {
      tensor.gradient = numbers(tensor.here.size(), static_cast<int>(step));
      update(*tensor.settings, 0.01, step, 0.5, std::span<float>(tensor.here),
             std::span<const float>(tensor.gradient), std::span<float>(tensor.state[0]),
             std::span<float>(tensor.state[1]));
      if (!tensor.average.empty()) {
        if (step == 1) tensor.average = tensor.here;
        update_average(0.9, tensor.average, tensor.here);
      }
      updates.push_back({tensor.settings, 0.01, tensor.there, tensor.gradient, tensor.other[0],
                         tensor.other[1], tensor.other_average});
    }
    test::update_on_gpu(step, 0.5, 0.9, updates);
  }
  for (const Tensor& tensor : tensors) {
    SCOPED_TRACE(name_of(tensor.settings->kind));
    for (const auto& [actual, expected] :
         {std::pair(&tensor.there, &tensor.here), std::pair(&tensor.other[0], &tensor.state[0]),
          std::pair(&tensor.other[1], &tensor.state[1]),
          std::pair(&tensor.other_average, &tensor.average)}) {
      for (std::size_t i = 0; i < expected->size(); ++i)
        ASSERT_NEAR((*actual)[i], (*expected)[i], 1e-5 * (1 + std::fabs((*expected)[i]))) << i;
    }
  }
}

TEST(GpuUpdate, NormsAreTheCpus) {
  std::vector<std::vector<float>> tensors;
  for (const std::size_t count : {0, 1, 255, 3001, 100000}) tensors.push_back(numbers(count, 9));
  const std::vector<std::span<const float>> spans(tensors.begin(), tensors.end());
  const std::vector<double> sums = test::sums_of_squares_on_gpu(spans);
  for (std::size_t k = 0; k < spans.size(); ++k) {
    const double expected = sum_of_squares(spans[k]);
    EXPECT_NEAR(sums[k], expected, 1e-12 * (1 + expected)) << spans[k].size();
  }
}

// Gradients are finite if and only if their norms are.
TEST(GpuUpdate, NormsAreFiniteExactlyIfAllNumbersAre) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<std::vector<float>> tensors;
  std::vector<bool> finite;
  for (const std::size_t count : {1, 255, 3001, 70000}) {
    for (const float odd : {kInfinity, -kInfinity, std::nanf(""), kLargest, 1e-45F}) {
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        tensors.push_back(numbers(count, 3));
        tensors.back()[place] = odd;
        finite.push_back(std::isfinite(odd));
      }
    }
    tensors.emplace_back(count, kLargest);
    finite.push_back(true);
  }
  const std::vector<std::span<const float>> spans(tensors.begin(), tensors.end());
  const std::vector<double> sums = test::sums_of_squares_on_gpu(spans);
  for (std::size_t k = 0; k < spans.size(); ++k)
    EXPECT_EQ(std::isfinite(sums[k]), finite[k]) << k << " of " << spans[k].size();
}

// Of a gradient with fewer values than replicas, some replicas sum nothing.
TEST(GpuUpdate, AddsAsManyValuesAsThereAre) {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 4096U}) {
    alignas(64) std::array<float, 4096> to{}, from{};
    to.fill(1);
    from.fill(2);
    test::emulated_add(std::span(to).first(count), from);
    for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], i < count ? 3 : 1) << i;
  }
}

// Scaling gradients by a power of two is exact.
TEST(GpuUpdate, TakesALossScaleBack) {
  const OptimizerSettings settings = default_settings(OptimizerKind::kAdamW);
  constexpr std::size_t kCount = 5000;
  std::vector<float> weights[2], states[2][2];
  for (const bool scaled : {false, true}) {
    const float scale = scaled ? 65536 : 1;
    weights[scaled] = numbers(kCount, 1);
    for (std::vector<float>& state : states[scaled]) state.assign(kCount, 0);
    for (std::int64_t step = 1; step <= 3; ++step) {
      std::vector<float> gradient = numbers(kCount, static_cast<int>(step));
      for (float& x : gradient) x *= scale;
      const std::vector<DeviceUpdate> updates = {
          {&settings, 0.01, weights[scaled], gradient, states[scaled][0], states[scaled][1], {}}};
      test::update_on_gpu(step, 0.25 / static_cast<double>(scale), 0, updates);
    }
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(states[0][1], states[1][1]);
  EXPECT_NE(weights[0], numbers(kCount, 1));
}

TEST(GpuUpdate, WhatLooksAtNormsIsLeftToTheHost) {
  for (const OptimizerKind kind : {OptimizerKind::kLamb, OptimizerKind::kLars})
    EXPECT_FALSE(test::is_emulated_update(default_settings(kind)));
}

TEST(Emulator, SeesBarriersThatNotAllThreadsReach) {
  EXPECT_EQ(test::emulated_divergence(),
            "__syncthreads is reached by 29 of 32 threads; a warp exchanges values, but 3 of its "
            "threads have returned; threads of a block wait at different places");
  EXPECT_TRUE(test::emulated_order_shows_a_missing_barrier());
}

}  // namespace
}  // namespace pipetrain
