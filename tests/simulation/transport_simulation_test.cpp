// What moves between the threads of a runtime, under simulated threads and alone: many seeds in
// little time.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "pipeline/transport/channel.h"
#include "pipeline/transport/replica_group.h"
#include "pipeline/transport/shared_work.h"
#include "simulation/seeds.h"

namespace pipetrain::simulation {
namespace {

/// A sender with few buffers, and a receiver that reads what it was sent until it releases it.
TEST(TransportSimulation, ChannelsHandOverEachMicroBatchOnce) {
  under_seeds(2'000, [](std::uint64_t seed) {
    const int buffers = 1 + static_cast<int>(seed % 3),
              micro_batches = 2 + static_cast<int>(seed % 5);
    return simulate(seed, {.switches_per_stop = 100}, [&] {
      Channel channel(seed % 7 == 0 ? 1e-3 : 0);
      for (int round = 0; round < 2; ++round) {
        channel.reset(micro_batches);
        std::vector<int> memory(static_cast<std::size_t>(buffers));
        std::thread receiver([&] {
          for (int k = 0; k < micro_batches; ++k) {
            const auto* value = reinterpret_cast<const int*>(channel.receive(k));
            for (int reading = 0; reading < 3; ++reading) {
              EXPECT_EQ(*value, 100 * round + k);
              switch_point();
            }
            channel.release(k);
          }
        });
        for (int k = 0; k < micro_batches; ++k) {
          if (k >= buffers) channel.wait_released(k - buffers);
          int& place = memory[static_cast<std::size_t>(k % buffers)];
          place = 100 * round + k;
          channel.send(k, reinterpret_cast<const std::byte*>(&place));
          switch_point();
        }
        receiver.join();
      }
    });
  });
}

TEST(TransportSimulation, AnAbortWakesEveryWait) {
  under_seeds(1'000, [](std::uint64_t seed) {
    int aborted = 0;
    const Outcome outcome = simulate(seed, {.switches_per_stop = 50}, [&] {
      Channel channel;
      Barrier barrier(3);
      ReplicaGroup group(2, {4});
      channel.reset(2);
      const std::vector<std::function<void()>> waits = {
          [&] { channel.receive(0); }, [&] { channel.wait_released(1); },
          [&] { barrier.arrive_and_wait(); }, [&] { group.reduce(0, true); }};
      std::vector<float> gradient(4);
      group.bind(0, {gradient});
      group.bind(1, {gradient});
      std::vector<std::thread> threads;
      for (const auto& wait : waits) {
        threads.emplace_back([&aborted, &wait] {
          try {
            wait();
          } catch (const ChannelAborted&) {
            ++aborted;
          }
        });
      }
      channel.abort();
      barrier.abort();
      group.abort();
      for (std::thread& thread : threads) thread.join();
    });
    EXPECT_EQ(aborted, 4);
    return outcome;
  });
}

TEST(TransportSimulation, ReplicasAllGetTheSumInTheirOrder) {
  under_seeds(1'000, [](std::uint64_t seed) {
    const int replicas = 2 + static_cast<int>(seed % 3);
    const std::vector<std::size_t> sizes = {5, 3, 7};
    return simulate(seed, {.switches_per_stop = 100}, [&] {
      ReplicaGroup group(replicas, sizes, {.first = 4, .others = 4});
      std::vector<std::vector<std::vector<float>>> gradients(static_cast<std::size_t>(replicas));
      for (int r = 0; r < replicas; ++r) {
        auto& mine = gradients[static_cast<std::size_t>(r)];
        for (const std::size_t size : sizes) mine.emplace_back(size);
        group.bind(r, {mine.begin(), mine.end()});
      }
      const auto value = [](int round, int replica, std::size_t gradient, std::size_t i) {
        return 1.0F + 0.1F * static_cast<float>(replica * 7 + round) +
               1e-3F * static_cast<float>(gradient * 10 + i);
      };
      std::vector<std::thread> threads;
      for (int r = 0; r < replicas; ++r) {
        threads.emplace_back([&, r] {
          auto& mine = gradients[static_cast<std::size_t>(r)];
          for (int round = 0; round < 3; ++round) {
            // In a step of few micro-batches the last replica has none.
            const auto has_any = [&](int replica) { return round != 1 || replica + 1 < replicas; };
            for (std::size_t g = 0; g < sizes.size(); ++g) {
              for (std::size_t i = 0; i < sizes[g]; ++i) mine[g][i] = value(round, r, g, i);
              if (has_any(r)) group.complete(r, g);
            }
            group.reduce(r, has_any(r));
            for (std::size_t g = 0; g < sizes.size(); ++g) {
              for (std::size_t i = 0; i < sizes[g]; ++i) {
                float sum = value(round, 0, g, i);
                for (int other = 1; other < replicas; ++other) {
                  if (has_any(other)) sum += value(round, other, g, i);
                }
                EXPECT_EQ(mine[g][i], sum) << "round " << round << " replica " << r;
              }
            }
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  });
}

/// Tasks that count their runs; one may fail. Workspaces show when two tasks use one at a time.
class CountedTasks final : public SharedTasks {
 public:
  CountedTasks(std::size_t count, int failing) : runs(count), failing_(failing) {}
  std::size_t count() const override { return runs.size(); }
  double seconds(std::size_t task) const override { return 1e-3 * static_cast<double>(1 + task); }
  std::size_t workspace_bytes(std::size_t) const override { return sizeof(int); }
  void run(std::size_t task, std::byte* workspace) override {
    ++runs[task];
    int& user = *reinterpret_cast<int*>(workspace);
    EXPECT_EQ(std::exchange(user, 1), 0);
    for (int i = 0; i < 3; ++i) switch_point();
    user = 0;
    if (static_cast<int>(task) == failing_) throw std::runtime_error("a task failed");
  }
  std::vector<int> runs;

 private:
  int failing_;
};

TEST(TransportSimulation, SharedTasksRunOnceAndFailuresReachTheirDevice) {
  under_seeds(2'000, [](std::uint64_t seed) {
    const int devices = 2 + static_cast<int>(seed % 3);
    return simulate(seed, {.switches_per_stop = 100}, [&] {
      SharedWork work(devices);
      std::vector<int> workspaces(static_cast<std::size_t>(devices));
      std::vector<SharedWork::Job> jobs(static_cast<std::size_t>(devices));
      for (int round = 0; round < 2; ++round) {
        work.reset();
        std::vector<std::thread> threads;
        for (int d = 0; d < devices; ++d) {
          threads.emplace_back([&, d] {
            auto* memory = reinterpret_cast<std::byte*>(&workspaces[static_cast<std::size_t>(d)]);
            const Workspace workspace{memory, sizeof(int)};
            SharedWork::Job& job = jobs[static_cast<std::size_t>(d)];
            for (int turn = 0; turn < 3; ++turn) {
              const bool fails = draw(4) == 0;
              CountedTasks tasks(1 + draw(4), fails ? 0 : -1);
              std::string error;
              try {
                if (draw(2) == 0) {
                  work.run(job, d, tasks, memory);
                } else {
                  work.post(job, d, tasks);
                  std::uint64_t left = draw(5);
                  work.wait(d, workspace, [&] { return left == 0 || --left == 0; });
                  EXPECT_TRUE(work.complete(job, memory));
                }
                EXPECT_FALSE(work.complete(job, memory));
              } catch (const std::runtime_error& thrown) {
                error = thrown.what();
              }
              EXPECT_EQ(error, fails ? "a task failed" : "");
              for (const int runs : tasks.runs) EXPECT_LE(runs, 1);
              if (!fails) {
                for (const int runs : tasks.runs) EXPECT_EQ(runs, 1);
              }
            }
            work.finish(d, workspace);
          });
        }
        // Waits are looked at again when something changes.
        bool done = false;
        std::thread changes([&] {
          while (!done) {
            for (int d = 0; d < devices; ++d) work.notify(d);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        });
        for (std::thread& thread : threads) thread.join();
        done = true;
        changes.join();
      }
    });
  });
}

// Tasks of a round that failed are neither run nor heard of in the next one.
TEST(TransportSimulation, SharedTasksOfAnAbortedRoundAreForgotten) {
  under_seeds(2'000, [](std::uint64_t seed) {
    constexpr int kDevices = 3;
    return simulate(seed, {.switches_per_stop = 100}, [&] {
      SharedWork work(kDevices);
      std::vector<int> workspaces(kDevices);
      std::vector<SharedWork::Job> jobs(kDevices);
      for (const bool aborts : {true, false}) {
        work.reset();
        std::vector<std::unique_ptr<CountedTasks>> tasks;
        for (int d = 0; d < kDevices; ++d)
          tasks.push_back(
              std::make_unique<CountedTasks>(3, aborts ? static_cast<int>(draw(3)) : -1));
        std::vector<std::thread> threads;
        for (int d = 0; d < kDevices; ++d) {
          threads.emplace_back([&, d] {
            auto* memory = reinterpret_cast<std::byte*>(&workspaces[static_cast<std::size_t>(d)]);
            SharedWork::Job& job = jobs[static_cast<std::size_t>(d)];
            CountedTasks& mine = *tasks[static_cast<std::size_t>(d)];
            work.post(job, d, mine);
            if (aborts && d == 0) {
              for (std::uint64_t i = draw(30); i > 0; --i) switch_point();
              work.abort();
            } else if (aborts) {
              work.wait(d, {memory, sizeof(int)}, [] { return false; });
            } else {
              EXPECT_TRUE(work.complete(job, memory));
              for (const int runs : mine.runs) EXPECT_EQ(runs, 1);
              work.finish(d, {memory, sizeof(int)});
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
      }
    });
  });
}

}  // namespace
}  // namespace pipetrain::simulation
