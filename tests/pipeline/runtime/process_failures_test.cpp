// What the other processes say and do when one of them fails, falls silent or is interrupted.
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "pipeline/transport/message_thread.h"
#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

/// Fails when a stage asks for a micro-batch.
class SometimesFailingData final : public MicroBatchSource {
 public:
  SometimesFailingData(FixedData& data, bool fails) : data_(data), fails_(fails) {}
  MicroBatch& acquire(int micro_batch) override {
    PT_CHECK(!fails_ || ++asked_ < 20, kData, "sample {} is damaged", micro_batch);
    return data_.acquire(micro_batch);
  }
  void release(int) override {}
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }

 private:
  FixedData& data_;
  bool fails_;
  std::atomic<int> asked_{0};
};

TEST(Processes, TheFirstFailureEndsAllWithItsSentence) {
  for (const int failing : {0, 1}) {
    const SharedRun run("1f1b", 4, false);
    MemoryWorld world(2, 11);
    const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
      FixedData data(4 * kSamples, 5);
      SometimesFailingData source(data, group.rank() == failing);
      for (int step = 0; step < 100; ++step) {
        data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
        runtime.run(run.program, source);
      }
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(errors[rank].rfind("4 sample ", 0), 0U) << errors[rank];
      EXPECT_EQ(errors[rank].find("in process") != std::string::npos,
                static_cast<int>(rank) != failing)
          << errors[rank];
    }
  }
}

TEST(Processes, AnInterruptionNamesTheFailureThatCausedIt) {
  MemoryWorld world(2, 13);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    group.all_gather("");  // both are there
    PT_CHECK(group.leads(), kData, "sample 7 is damaged");
    while (!group.failure()) group.listen();
    group.interrupt();
    group.receive(1);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("sample 7 is damaged"), std::string::npos) << error;
  }
}

/// Fails when a stage is done with its fourth micro-batch.
class FailingAtRelease final : public MicroBatchSource {
 public:
  FailingAtRelease(FixedData& data, bool fails) : data_(data), fails_(fails) {}
  MicroBatch& acquire(int micro_batch) override { return data_.acquire(micro_batch); }
  void release(int micro_batch) override {
    PT_CHECK(!fails_ || ++released_ < 4, kData, "sample {} is damaged", micro_batch);
  }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }

 private:
  FixedData& data_;
  bool fails_;
  std::atomic<int> released_{0};
};

/// Each stage is in a process of its own, so that the stage and the process have one number.
TEST(Processes, AFailureNamesTheProcessAndTheStageThatFailed) {
  constexpr int kProcesses = 4;
  for (int failing = 0; failing < kProcesses; ++failing) {
    const SharedRun run("1f1b", kProcesses, false);
    MemoryWorld world(kProcesses, 31 + static_cast<std::uint64_t>(failing));
    const auto errors = in_processes(world, kProcesses, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, kProcesses));
      FixedData data(4 * kSamples, 5);
      FailingAtRelease source(data, group.rank() == failing);
      for (int step = 0; step < 100; ++step) {
        data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
        runtime.run(run.program, source);
      }
    });
    const std::string stage = fmt::format("while stage {} ran {}B0", failing, failing);
    for (int rank = 0; rank < kProcesses; ++rank) {
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_EQ(error.rfind("4 sample ", 0), 0U) << error;
      EXPECT_NE(error.find(stage), std::string::npos) << error;
      // Whoever has not failed says first of all which process has; the way to it may follow.
      const std::size_t process = error.find("in process ");
      EXPECT_EQ(process == std::string::npos, rank == failing) << error;
      if (process == std::string::npos) continue;
      EXPECT_EQ(error.find(fmt::format("in process {} on here", failing)), process) << error;
    }
  }
}

TEST(Processes, TheSilentOneOfSeveralIsNamed) {
  SharedRun run("1f1b", 4, false);
  run.runtime.timeout_seconds = 3;
  for (const int silent : {1, 2, 3}) {
    MemoryWorld world(4, 20 + static_cast<std::uint64_t>(silent));
    const auto errors = in_processes(world, 4, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 4));
      FixedData data(4 * kSamples, 5);
      for (int step = 0; step < 1000; ++step) {
        if (step == 3 && group.rank() == silent) world.mute(silent);
        data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
        runtime.run(run.program, data);
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == silent) continue;  // hears all others
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_NE(error.find(fmt::format("process {} on here has been silent", silent)),
                std::string::npos)
          << error;
    }
  }
}

// A process that has been stopped has said nothing, and cannot end the others.
TEST(Processes, NobodyWaitsForTheReportOfALostProcess) {
  MemoryWorld world(2, 14);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    group.all_gather("");  // both are there
    if (group.leads()) return world.mute(0);
    group.expect_signs_of_life(0.2);
    EXPECT_THROW(group.receive(0), Error);
    const double start = steady_seconds();
    EXPECT_FALSE(group.wait_for_failures(30));
    EXPECT_LT(steady_seconds() - start, 10);
    PT_FAIL(kDevice, "process 0 has been silent");
  });
  EXPECT_NE(errors[1].find("silent"), std::string::npos) << errors[1];
}

TEST(Processes, ASilentReceiverEndsTheWaitForSends) {
  MemoryWorld world(2, 15);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    group.all_gather("");  // both are there
    if (!group.leads()) return world.mute(1);
    std::exception_ptr error;
    MessageThread* thread = nullptr;
    MessageThread messages(
        group,
        [&](std::exception_ptr failure) {
          error = std::move(failure);
          thread->abort();
        },
        [] { return std::pair(std::string("it computes"), std::uint64_t{0}); },
        [] { return false; }, /*timeout_seconds=*/0.2);
    thread = &messages;
    messages.expect_signs_of_life();
    messages.start_round({});
    Channel channel;
    channel.reset(1);
    static std::vector<std::byte> values(1 << 20);  // a pending send still reads it
    channel.send(0, values.data());
    messages.send(0, 0, 1, channel, {{values.data(), values.size()}});
    EXPECT_THROW(messages.finish_round(), ChannelAborted);
    // Whoever communicates next hears the reason, too.
    try {
      group.receive(1);
    } catch (const Error& next) {
      EXPECT_NE(std::string(next.what()).find("process 1 on here has been silent"),
                std::string::npos)
          << next.what();
    }
    std::rethrow_exception(error);
  });
  EXPECT_NE(errors[0].find("process 1 on here has been silent"), std::string::npos) << errors[0];
}

/// Sums of replicas of which messages arrive so many times.
class MovingSums final : public MessageTask {
 public:
  explicit MovingSums(int times) : left_(times) {}
  bool go_on() override { return left_ > 0 && left_-- > 0; }
  bool is_open() const override { return left_ > 0; }

 private:
  int left_;
};

// A device that waits for them is not stuck.
TEST(Processes, MovingSumsAreProgress) {
  MemoryWorld world(2, 16);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    std::atomic<int> progress{0};
    MovingSums sums(3);
    {
      MessageThread messages(
          group, [](const std::exception_ptr&) {},
          [] { return std::pair(std::string(), std::uint64_t{0}); }, [] { return false; },
          /*timeout_seconds=*/60, [&] { ++progress; });
      messages.add(sums);
      const double start = steady_seconds();
      while (progress < 3 && steady_seconds() - start < 10) std::this_thread::yield();
    }
    EXPECT_EQ(progress.load(), 3);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(Processes, SilenceIsNoticedAndNamed) {
  SharedRun run("1f1b", 4, false);
  run.runtime.timeout_seconds = 0.5;
  MemoryWorld world(2, 12);
  const double start = steady_seconds();
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    FixedData data(4 * kSamples, 5);
    for (int step = 0; step < 1000; ++step) {
      if (step == 3 && group.rank() == 1) world.mute(1);
      data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, data);
    }
  });
  EXPECT_LT(steady_seconds() - start, 20);
  EXPECT_NE(errors[0].find("process 1 on here has been silent"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace pipetrain::test
