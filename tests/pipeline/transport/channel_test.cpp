#include "pipeline/transport/channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Channel, HandsMicroBatchesOverAndReusesMemoryAfterRelease) {
  constexpr int kMicroBatches = 200, kBuffers = 3;
  Channel channel;
  channel.reset(kMicroBatches);
  std::byte buffers[kBuffers];
  std::thread sender([&] {
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      if (micro_batch >= kBuffers) channel.wait_released(micro_batch - kBuffers);
      buffers[micro_batch % kBuffers] = static_cast<std::byte>(micro_batch);
      channel.send(micro_batch, &buffers[micro_batch % kBuffers]);
    }
  });
  for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
    EXPECT_EQ(*channel.receive(micro_batch), static_cast<std::byte>(micro_batch));
    channel.release(micro_batch);
  }
  sender.join();
}

/// Runs `wait` in a thread and `wake` once it has had time to fall asleep; says whether it has
/// woken up. Where it has not, abort() ends it.
template <class Wait, class Wake>
bool wakes(Channel& channel, const Wait& wait, const Wake& wake) {
  std::promise<void> woken;
  std::thread waiting([&] {
    try {
      wait();
      woken.set_value();
    } catch (const ChannelAborted&) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  wake();
  const bool in_time =
      woken.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  if (!in_time) channel.abort();
  waiting.join();
  return in_time;
}

TEST(Channel, SendAndReleaseWakeWhoWaits) {
  Channel channel;
  channel.reset(2);
  std::byte byte{1};
  EXPECT_TRUE(wakes(
      channel, [&] { channel.receive(0); }, [&] { channel.send(0, &byte); }));
  EXPECT_TRUE(wakes(
      channel, [&] { channel.wait_released(0); }, [&] { channel.release(0); }));
}

TEST(Channel, TwoSendersMayCrossEachOther) {
  constexpr int kMicroBatches = 100;
  Channel channel;
  channel.reset(kMicroBatches);
  std::byte buffers[kMicroBatches];
  const auto send_every_second = [&](int first) {
    for (int micro_batch = first; micro_batch < kMicroBatches; micro_batch += 2)
      channel.send(micro_batch, &buffers[micro_batch]);
  };
  std::thread even([&] { send_every_second(0); }), odd([&] { send_every_second(1); });
  for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch)
    EXPECT_EQ(channel.receive(micro_batch), &buffers[micro_batch]);
  even.join();
  odd.join();
}

TEST(Channel, AbortWakesBothEnds) {
  Channel channel;
  channel.reset(4);
  std::thread aborter([&] { channel.abort(); });
  EXPECT_THROW(channel.receive(0), ChannelAborted);
  EXPECT_THROW(channel.wait_released(1), ChannelAborted);
  aborter.join();
  channel.reset(4);
  std::byte byte{7};
  channel.send(0, &byte);
  EXPECT_EQ(channel.receive(0), &byte);
}

TEST(Channel, RefusesAMicroBatchTwice) {
  Channel channel;
  channel.reset(4);
  channel.send(1, nullptr);
  EXPECT_THROW(channel.send(1, nullptr), Error);
}

TEST(Channel, WithALatencyMicroBatchesAreThereLater) {
  constexpr double kLatency = 0.02;
  Channel channel(kLatency);
  channel.reset(2);
  std::byte byte{3};
  const double start = steady_seconds();
  channel.send(0, &byte);
  channel.send(1, &byte);
  const double sent = steady_seconds();
  double there_at = 0;
  EXPECT_EQ(channel.receive(0, &there_at), &byte);
  EXPECT_GE(steady_seconds(), there_at);
  EXPECT_GE(there_at, start + kLatency);
  // Both were on their way at the same time.
  channel.receive(1, &there_at);
  EXPECT_GE(there_at, start + kLatency);
  EXPECT_LE(there_at, sent + kLatency);
}

TEST(Barrier, LetsNobodyThroughEarlyAndWorksAgain) {
  constexpr int kThreads = 4, kRounds = 100;
  Barrier barrier(kThreads);
  std::atomic<int> arrived{0};
  std::vector<std::thread> threads;
  std::atomic<bool> wrong{false};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        ++arrived;
        barrier.arrive_and_wait();
        if (arrived < kThreads * (round + 1)) wrong = true;
        barrier.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wrong);
}

TEST(Barrier, AbortWakesWhoWaits) {
  Barrier barrier(2);
  std::thread aborter([&] { barrier.abort(); });
  EXPECT_THROW(barrier.arrive_and_wait(), ChannelAborted);
  aborter.join();
}

}  // namespace
}  // namespace pipetrain
