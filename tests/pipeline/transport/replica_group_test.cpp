#include "pipeline/transport/replica_group.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace pipetrain {
namespace {

TEST(ReplicaGroup, SumsInTheOrderOfTheReplicasAndAllGetTheSum) {
  constexpr int kReplicas = 3, kSteps = 20;
  const std::vector<std::size_t> sizes = {5, 1, 700, 0, 33};
  ReplicaGroup group(kReplicas, sizes, BucketFloats{40, 40});
  std::vector<std::vector<std::vector<float>>> gradients(kReplicas);
  for (int r = 0; r < kReplicas; ++r) {
    std::vector<std::span<float>> spans;
    for (const std::size_t size : sizes) gradients[static_cast<std::size_t>(r)].emplace_back(size);
    for (auto& gradient : gradients[static_cast<std::size_t>(r)]) spans.emplace_back(gradient);
    group.bind(r, spans);
  }
  const auto value = [](int step, int replica, std::size_t gradient, std::size_t i) {
    std::mt19937 random(static_cast<unsigned>(((step * 7 + replica) * 11) + gradient * 1009 + i));
    return std::uniform_real_distribution<float>(-1e3F, 1e3F)(random);
  };
  // Every third step one replica has no micro-batch.
  const auto takes_part = [](int step, int replica) {
    return step % 3 != 0 || replica != step % 2;
  };
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < kReplicas; ++r) {
    threads.emplace_back([&, r] {
      auto& mine = gradients[static_cast<std::size_t>(r)];
      for (int step = 0; step < kSteps; ++step) {
        if (takes_part(step, r)) {
          for (std::size_t g = 0; g < mine.size(); ++g) {
            for (std::size_t i = 0; i < mine[g].size(); ++i) mine[g][i] = value(step, r, g, i);
            group.complete(r, g);
          }
        }
        group.reduce(r, takes_part(step, r));
        for (std::size_t g = 0; g < mine.size(); ++g) {
          for (std::size_t i = 0; i < mine[g].size(); ++i) {
            float sum = 0;
            bool first = true;
            for (int other = 0; other < kReplicas; ++other) {
              if (!takes_part(step, other)) continue;
              sum = first ? value(step, other, g, i) : sum + value(step, other, g, i);
              first = false;
            }
            if (mine[g][i] != sum) ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ReplicaGroup, AbortWakesWhoWaits) {
  ReplicaGroup group(2, {4});
  std::vector<float> gradient(4);
  group.bind(0, {gradient});
  group.bind(1, {gradient});
  std::thread aborter([&] { group.abort(); });
  EXPECT_THROW(group.reduce(0, false), ChannelAborted);
  aborter.join();
}

}  // namespace
}  // namespace pipetrain
