// Several processes, as threads of the test that only exchange messages, give the same bits as one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "pipeline/runtime/oracle.h"
#include "support/process_runs.h"
#include "support/recorded_devices.h"

namespace pipetrain::test {
namespace {

TEST(Processes, GiveTheBitsOfOne) {
  std::uint64_t seed = 0;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const bool clip : {false, true}) {
      const SharedRun run(schedule, 4, clip);
      const SharedOutcome expected = four_steps(run, run.runtime);
      EXPECT_LT(expected.losses.back(), expected.losses.front());
      for (const int processes : {2, 3, 4}) {
        MemoryWorld world(processes, ++seed);
        std::vector<SharedOutcome> outcomes(static_cast<std::size_t>(processes));
        const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
          outcomes[static_cast<std::size_t>(group.rank())] =
              four_steps(run, run.of_process(group, processes));
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
        EXPECT_TRUE(outcomes[0].values == expected.values) << schedule << " on " << processes;
        for (const SharedOutcome& outcome : outcomes) {
          EXPECT_EQ(outcome.losses, expected.losses);
          EXPECT_EQ(outcome.norms, expected.norms);
        }
        EXPECT_GT(world.messages(), 0U);
      }
    }
  }
}

/// gpipe sends all micro-batches of a step before it takes the first one back, and each replica
/// receives its own in an order of its own.
TEST(Processes, TellThousandsOfMicroBatchesInFlightApart) {
  constexpr int kMicroBatches = 1'030;
  constexpr std::int64_t kSize = 2;
  const SharedRun run("gpipe", 2, /*clip=*/false, {3, 3}, /*tied=*/false, kMicroBatches);
  const auto step = [&](const RuntimeOptions& options) {
    Runtime runtime(run.variants, {&run.program}, options);
    FixedData data(kMicroBatches * kSize, 5);
    data.set_mini_batch(0, kMicroBatches * kSize, kSize, 0, kMicroBatchSizes);
    runtime.run(run.program, data);
    SharedOutcome outcome;
    for (const MicroBatch& one : data.micro_batches()) outcome.losses.push_back(one.loss_sum);
    add_values(runtime.contents(), outcome);
    return outcome;
  };
  const SharedOutcome expected = step(run.runtime);
  MemoryWorld world(2, 400);
  std::vector<SharedOutcome> outcomes(2);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    outcomes[static_cast<std::size_t>(group.rank())] = step(run.of_process(group, 2));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(outcomes[1].losses, expected.losses);  // the second stage is there
  EXPECT_TRUE(outcomes[0].values == expected.values);
}

/// The options of a process whose devices are recorded, and joined by communicators.
RuntimeOptions recorded_devices_of(RuntimeOptions options, RecordedMachine& machine, int rank,
                                   int processes) {
  options.backend = Backend::kCpu;
  options.collectives = &machine.collectives();
  for (int device = 0; device < 4; ++device) {
    const bool here = options.process_of_device[static_cast<std::size_t>(device)] == rank;
    options.devices.push_back(here ? &machine.device(device) : nullptr);
    options.device_numbers.push_back(device % (4 / processes));
  }
  return options;
}

/// Stages on devices of several processes.
TEST(Processes, ExchangeBetweenDevices) {
  std::uint64_t seed = 200;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const SharedRun run(schedule, 4, true);
    RuntimeOptions cpu = run.runtime;
    cpu.backend = Backend::kCpu;
    const SharedOutcome expected = four_steps(run, cpu);
    for (const int processes : {2, 4}) {
      RecordedMachine machine(4, ++seed);
      MemoryWorld world(processes, seed);
      SharedOutcome outcome;
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        SharedOutcome mine = four_steps(run, recorded_devices_of(run.of_process(group, processes),
                                                                 machine, group.rank(), processes));
        if (group.leads()) outcome = std::move(mine);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
      EXPECT_GT(machine.exchanged(), 0U);
      EXPECT_TRUE(outcome.values == expected.values) << schedule << " on " << processes;
    }
  }
}

/// Saving to a slow disk, for example, is no reason to give up.
TEST(Processes, ExchangeBetweenDevicesWaitsForABusyProcess) {
  SharedRun run("1f1b", 4, false);
  run.runtime.timeout_seconds = 1;
  RecordedMachine machine(4, 77);
  MemoryWorld world(2, 77);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program},
                    recorded_devices_of(run.of_process(group, 2), machine, group.rank(), 2));
    FixedData data(4 * kSamples, 5);
    for (int step = 0; step < 2; ++step) {
      if (group.leads() && step == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
      data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, data);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Processes, TakeUpWhatOthersHadAndEvaluate) {
  const SharedRun run("1f1b", 4, true);
  const SharedOutcome expected = four_steps(run, run.runtime);
  std::vector<StageContent> half;
  FixedData data(4 * kSamples, 5);
  const auto two_steps = [&](Runtime& runtime, FixedData& from, std::int64_t first) {
    for (std::int64_t step = first; step < first + 2; ++step) {
      from.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, from);
    }
  };
  MemoryWorld world(2, 7), other(4, 8);
  auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    FixedData own(4 * kSamples, 5);
    two_steps(runtime, own, 0);
    const std::vector<StageContent> contents = runtime.contents();
    EXPECT_EQ(contents.empty(), !group.leads());
    if (group.leads()) half = contents;
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  SharedOutcome outcome;
  errors = in_processes(other, 4, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 4));
    for (int s = 0; s < runtime.stages(); ++s)
      runtime.restore(s, half[static_cast<std::size_t>(s)]);
    FixedData own(4 * kSamples, 5);
    two_steps(runtime, own, 2);
    const std::vector<StageContent> contents = runtime.contents();
    if (group.leads()) add_values(contents, outcome);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
  EXPECT_TRUE(outcome.values == expected.values);
}

constexpr int kStreamed = 12;  // micro-batches of a round

/// Two asynchronous rounds: what the stages remember, and the losses of the micro-batches whose
/// loss is computed here.
template <class Runner>
void stream(const SharedRun& run, Runner& runner, std::map<int, double>& losses) {
  FixedData data(2 * kStreamed * kSamplesPerMicroBatch, 5);
  for (int round = 0; round < 2; ++round) {
    data.set_stream(kStreamed, kSamplesPerMicroBatch, round * kStreamed);
    runner.run(run.program, data);
    for (int unit = 0; unit < kStreamed; ++unit) {
      const MicroBatch& one = data.micro_batches()[static_cast<std::size_t>(unit)];
      if (one.loss_sum != 0) losses[round * kStreamed + unit] = one.loss_sum;
    }
  }
}

TEST(Processes, StreamTheBitsOfTheOracle) {
  std::uint64_t seed = 300;
  for (const auto& [schedule, replicas] :
       std::vector<std::pair<std::string, std::vector<int>>>{{"pipedream", {1, 1, 1, 1}},
                                                             {"pipedream-vertical", {1, 1, 1, 1}},
                                                             {"pipedream-2bw", {1, 1, 1, 1}},
                                                             {"pipedream", {2, 1}},
                                                             {"pipedream", {1, 2}},
                                                             {"pipedream", {3, 1}},
                                                             {"pipedream", {2}},
                                                             {"pipedream-2bw", {2, 2}}}) {
    const int stages = static_cast<int>(replicas.size());
    const bool alone = *std::max_element(replicas.begin(), replicas.end()) == 1;
    const SharedRun run(schedule, stages, false, alone ? std::vector<int>() : replicas,
                        /*tied=*/false, kStreamed);
    Oracle oracle(run.variants, stages, run.runtime);
    std::map<int, double> expected;
    stream(run, oracle, expected);
    ASSERT_EQ(expected.size(), 2U * kStreamed);
    for (int processes = 2; processes <= run.program.devices; ++processes) {
      MemoryWorld world(processes, ++seed);
      std::map<int, double> losses;
      std::mutex guard;
      SharedOutcome outcome;
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        Runtime runtime(run.variants, {&run.program}, run.of_process(group, processes));
        std::map<int, double> mine;
        stream(run, runtime, mine);
        const std::vector<StageContent> contents = runtime.contents();
        const std::lock_guard lock(guard);
        losses.insert(mine.begin(), mine.end());
        if (group.leads()) add_values(contents, outcome);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      EXPECT_EQ(losses, expected) << schedule << " on " << processes;
      for (const Value& value : run.graphs[0]->graph.values) {
        if (value.role != Role::kParameter && value.role != Role::kState) continue;
        const HostTensor bits = oracle.read(value.name);
        const std::string_view wanted(static_cast<const char*>(bits.view().data),
                                      bits.type().bytes());
        EXPECT_TRUE(outcome.values[value.name] == wanted)
            << schedule << " on " << processes << ": " << value.name;
      }
    }
  }
}

TEST(Processes, RefuseWhatTheyCannotDo) {
  const SharedRun streams("pipedream", 2, false, {}, /*tied=*/false);
  RecordedMachine machine(2, 13);
  MemoryWorld world(2, 13);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    RuntimeOptions options = streams.of_process(group, 2);
    options.backend = Backend::kCpu;
    options.collectives = &machine.collectives();
    for (int device = 0; device < 2; ++device) {
      options.devices.push_back(device == group.rank() ? &machine.device(device) : nullptr);
      options.device_numbers.push_back(0);
    }
    Runtime runtime(streams.variants, {&streams.program}, options);
  });
  for (const std::string& error : errors) EXPECT_EQ(error.rfind("2 pipedream updates", 0), 0U);
}

}  // namespace
}  // namespace pipetrain::test
