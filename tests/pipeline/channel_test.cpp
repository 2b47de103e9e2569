#include "pipeline/channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"

namespace pipetrain {
namespace {

TEST(Channel, HandsUnitsOverInOrderAndReusesMemoryAfterRelease) {
  constexpr int kUnits = 200, kBuffers = 3;
  Channel channel(kUnits);
  std::byte buffers[kBuffers];
  std::thread sender([&] {
    for (int unit = 0; unit < kUnits; ++unit) {
      channel.wait_released(unit, kBuffers);
      buffers[unit % kBuffers] = static_cast<std::byte>(unit);
      channel.send(unit, &buffers[unit % kBuffers]);
    }
  });
  for (int unit = 0; unit < kUnits; ++unit) {
    EXPECT_EQ(*channel.receive(unit), static_cast<std::byte>(unit));
    channel.release(unit);
  }
  sender.join();
}

TEST(Channel, AbortWakesBothEnds) {
  Channel channel(4);
  std::thread aborter([&] { channel.abort(); });
  EXPECT_THROW(channel.receive(0), ChannelAborted);
  EXPECT_THROW(channel.wait_released(3, 2), ChannelAborted);
  aborter.join();
  channel.reset();
  std::byte byte{7};
  channel.send(0, &byte);
  EXPECT_EQ(channel.receive(0), &byte);
}

TEST(Channel, RefusesUnitsOutOfOrder) {
  Channel channel(4);
  EXPECT_THROW(channel.send(1, nullptr), Error);
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
