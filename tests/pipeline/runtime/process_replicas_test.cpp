// Replicas in several processes: the order of their sums, and updates that they share.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/index.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "support/cut_graphs.h"
#include "support/placed_runtime.h"
#include "support/process_runs.h"

namespace pipetrain::test {
namespace {

/// Process 0 has each weight itself or gets it from the process that has it, not both.
void expect_weights(Runtime& runtime, const std::vector<StageContent>& contents) {
  const std::map<std::string, HostTensor> of_others = runtime.weights_of_others();
  for (const StageContent& content : contents) {
    for (const auto& [name, value] : content.weights) {
      const HostTensor own = runtime.read(name);
      const auto other = of_others.find(name);
      ASSERT_NE(static_cast<bool>(own), other != of_others.end()) << name;
      EXPECT_EQ((own ? own : other->second).to_doubles(), value.to_doubles()) << name;
    }
  }
}

/// Everything that two steps of so many micro-batches change, and their losses.
template <class Runner>
std::string after_two_steps(const SharedRun& run, Runner& runner, int micro_batches) {
  const std::int64_t samples = micro_batches * kSamplesPerMicroBatch - 2;
  FixedData data(3 * samples, 9);
  std::string out;
  for (std::int64_t step = 0; step < 2; ++step) {
    data.set_mini_batch(step * samples, samples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
    runner.run(run.program, data);
    for (const MicroBatch& micro_batch : data.micro_batches())
      out += fmt::format("{} ", micro_batch.loss_sum);
  }
  for (const Value& value : run.graphs[0]->graph.values) {
    if (value.role != Role::kParameter && value.role != Role::kState) continue;
    const HostTensor content = runner.read(value.name);
    if (content) out.append(static_cast<const char*>(content.view().data), content.type().bytes());
  }
  return out;
}

/// Any number of replicas that divides the leaves, as threads or processes, gives the bits of the
/// oracle, which sums the leaves by the tree's definition, whoever has them.
TEST(Processes, ATreeOfSumsHasTheSameBitsForEveryNumberOfReplicas) {
  std::uint64_t seed = 900;
  for (const bool clip : {false, true}) {
    for (const int micro_batches : {16, 11, 3}) {
      for (const int leaves : {1, 4, 8}) {
        SharedRun one("1f1b", 2, clip, {}, /*tied=*/clip, micro_batches);
        one.runtime.accumulators = leaves;
        Oracle oracle(one.variants, 2, one.runtime);
        const std::string expected = after_two_steps(one, oracle, micro_batches);
        one.runtime.accumulators = 0;
        Oracle in_order(one.variants, 2, one.runtime);
        EXPECT_EQ(after_two_steps(one, in_order, micro_batches) == expected, leaves == 1);
        for (const std::vector<int>& replicas :
             {std::vector{1, 1}, {2, 2}, {4, 4}, {4, 1}, {2, 4}}) {
          if (leaves % std::ranges::max(replicas) != 0) continue;
          SharedRun run("1f1b", 2, clip, replicas, /*tied=*/clip, micro_batches);
          run.runtime.accumulators = leaves;
          Runtime runtime(run.variants, {&run.program}, run.runtime);
          EXPECT_TRUE(after_two_steps(run, runtime, micro_batches) == expected)
              << leaves << " leaves, replicas " << fmt::format("{}", fmt::join(replicas, " "))
              << ", " << micro_batches << " micro-batches";
          if (leaves != 4) continue;
          for (const int processes : {2, 3}) {
            if (processes > run.program.devices) continue;
            MemoryWorld world(processes, ++seed);
            std::vector<std::map<std::string, std::string>> values(at(processes));
            const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
              Runtime mine(run.variants, {&run.program}, run.of_process(group, processes));
              after_two_steps(run, mine, micro_batches);
              SharedOutcome outcome;
              add_values(mine.contents(), outcome);
              values[at(group.rank())] = outcome.values;
            });
            for (const std::string& error : errors) EXPECT_EQ(error, "");
            SharedOutcome alone;
            add_values(runtime.contents(), alone);
            EXPECT_TRUE(values[0] == alone.values) << processes << " processes";
          }
        }
      }
    }
  }
}

TEST(Processes, ATreeOfSumsMustDivideAmongReplicas) {
  SharedRun run("1f1b", 1, false, {3}, /*tied=*/false, 6);
  run.runtime.accumulators = 4;
  try {
    Runtime runtime(run.variants, {&run.program}, run.runtime);
    FAIL() << "three replicas have no equal shares of four leaves";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("4 cannot be divided among the 3 replicas of stage 0"),
              std::string::npos)
        << error.what();
  }
}

TEST(Processes, AddUpOverReplicasLikeOne) {
  std::uint64_t seed = 100;
  for (const auto& [replicas, counts] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
           {{2}, {2}}, {{3}, {2, 3}}, {{2, 2}, {2, 3, 4}}, {{4, 1}, {2, 5}}}) {
    const SharedRun run("1f1b", static_cast<int>(replicas.size()), true, replicas);
    const SharedOutcome expected = four_steps(run, run.runtime);
    for (const int processes : counts) {
      MemoryWorld world(processes, ++seed);
      SharedOutcome outcome;
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        SharedOutcome mine = four_steps(run, run.of_process(group, processes));
        if (group.leads()) outcome = std::move(mine);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      EXPECT_TRUE(outcome.values == expected.values)
          << replicas.size() << " stages on " << processes << " processes";
      EXPECT_EQ(outcome.losses, expected.losses);
    }
  }
}

TEST(Processes, SumBfloat16LikeOne) {
  SharedRun run("1f1b", 2, true, {2, 2});
  const SharedOutcome wide = four_steps(run, run.runtime);
  run.runtime.bfloat16_sums = true;
  for (const bool shares : {false, true}) {
    run.runtime.shard_optimizer = shares;
    const SharedOutcome expected = four_steps(run, run.runtime);
    EXPECT_FALSE(expected.values == wide.values);
    for (const int processes : {2, 3, 4}) {
      MemoryWorld world(processes, 900 + static_cast<std::uint64_t>(processes));
      SharedOutcome outcome;
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        SharedOutcome mine = four_steps(run, run.of_process(group, processes));
        if (group.leads()) outcome = std::move(mine);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      EXPECT_TRUE(outcome.values == expected.values) << processes << " processes";
      EXPECT_EQ(outcome.losses, expected.losses);
    }
  }
}

/// With one sample the gradient of a parameter is that of an activation, too, which nodes read when
/// it is already rounded or summed for the parameter.
TEST(Processes, SumGradientsThatNodesStillRead) {
  const Pipeline pipeline(position_network(), 1, {1});
  ScheduleOptions schedule;
  schedule.name = "gpipe";
  schedule.micro_batches = 2;
  schedule.replicas = {2};
  const Program program = pipeline.program(schedule);
  const auto train = [&](auto& runner) {
    FixedData data(8, 9);
    for (std::int64_t step = 0; step < 4; ++step) {
      data.set_mini_batch(2 * step, 2, 1, step, {1});
      runner.run(program, data);
    }
  };
  RuntimeOptions options = runtime_options(Place::kReference);
  for (const bool narrow : {false, true}) {
    options.bfloat16_sums = narrow;
    Oracle oracle(pipeline.variants, 1, options);
    train(oracle);
    const std::string expected = fingerprint(pipeline, oracle);
    Runtime threads(pipeline.variants, {&program}, options);
    train(threads);
    EXPECT_TRUE(fingerprint(pipeline, threads) == expected) << narrow;
    MemoryWorld world(2, 950);
    const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
      RuntimeOptions mine = options;
      mine.processes = &group;
      mine.process_of_device = {0, 1};
      Runtime runtime(pipeline.variants, {&program}, mine);
      train(runtime);
      if (group.leads()) EXPECT_TRUE(fingerprint(pipeline, runtime) == expected) << narrow;
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
  }
}

/// Replicas that share the updates, in one process and in several: the bits of those that make all
/// of them, and the optimizer's state of each parameter once.
TEST(Processes, ShareUpdatesOfReplicas) {
  std::uint64_t seed = 400;
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kLamb, OptimizerKind::kLars, OptimizerKind::kSgd}) {
    for (const std::vector<int>& replicas : {std::vector{2}, {3}, {2, 2}, {4, 1}}) {
      SharedRun run("1f1b", static_cast<int>(replicas.size()), kind != OptimizerKind::kSgd,
                    replicas);
      run.runtime.optimizer = default_settings(kind);
      run.runtime.optimizer.average_decay = 0.9;
      const SharedOutcome expected = four_steps(run, run.runtime);
      run.runtime.shard_optimizer = true;
      const auto same = [&](const SharedOutcome& outcome, int processes) {
        EXPECT_TRUE(outcome.values == expected.values)
            << name_of(kind) << ", " << replicas.size() << " stages on " << processes;
        EXPECT_EQ(outcome.losses, expected.losses);
        EXPECT_EQ(outcome.norms, expected.norms);
      };
      same(four_steps(run, run.runtime), 1);
      for (int processes = 2; processes <= run.program.devices; ++processes) {
        MemoryWorld world(processes, ++seed);
        // By messages, by reading memory, and by both: on two hosts.
        world.share_memory(kind != OptimizerKind::kAdamW);
        if (kind == OptimizerKind::kSgd) {
          std::vector<std::string> hosts(at(processes), "one");
          hosts.back() = "other";
          world.name_hosts(hosts);
        }
        SharedOutcome outcome;
        const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
          SharedOutcome mine = four_steps(run, run.of_process(group, processes));
          if (group.leads()) outcome = std::move(mine);
        });
        for (const std::string& error : errors) EXPECT_EQ(error, "");
        same(outcome, processes);
      }
    }
  }
}

/// The codebook that each stage has after two steps; in other processes than the first, nothing.
std::vector<std::vector<double>> codebooks(const SharedRun& run, const RuntimeOptions& options) {
  Runtime runtime(run.variants, {&run.program}, options);
  FixedData data(2 * kSamples, 5);
  for (std::int64_t step = 0; step < 2; ++step) {
    data.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
    runtime.run(run.program, data);
  }
  std::vector<std::vector<double>> out;
  for (const StageContent& content : runtime.contents())
    out.push_back(content.weights.at("codebook.weight").to_doubles());
  return out;
}

/// One of two stages takes no gradient of the weight that both have, but gets the whole sum of the
/// other's replicas.
TEST(Processes, ShareUpdatesOfAWeightThatAStageReadsWithoutAGradient) {
  SharedRun run("1f1b", 2, /*clip=*/false, {2, 2});
  run.model = codebook_network();
  run.graphs.clear();
  for (const std::int64_t size : kMicroBatchSizes)
    run.graphs.push_back(training_graph(run.model, size));
  const int nodes = static_cast<int>(linearise(*run.graphs[0]).order.size());
  int tied = 0;
  for (int start = 1; start < nodes; ++start) {
    CutGraphs cut = cut_graphs(run.graphs, {0, start});
    if (!cut.has_tied_stages) continue;
    ++tied;
    ScheduleOptions schedule;
    schedule.name = "1f1b";
    schedule.stages = 2;
    schedule.micro_batches = 3;
    schedule.replicas = {2, 2};
    schedule.gradient_sync = true;
    run.variants = std::move(cut.variants);
    run.program = lower(generate(schedule), cut.edges);
    run.runtime.shard_optimizer = false;
    const std::vector<std::vector<double>> expected = codebooks(run, run.runtime);
    ASSERT_EQ(expected.size(), 2U);
    EXPECT_EQ(expected[0], expected[1]);
    run.runtime.shard_optimizer = true;
    EXPECT_EQ(codebooks(run, run.runtime), expected) << start;
    for (const int processes : {2, 4}) {
      MemoryWorld world(processes, 500 + static_cast<std::uint64_t>(start));
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        const auto found = codebooks(run, run.of_process(group, processes));
        if (group.leads()) EXPECT_EQ(found, expected) << start << ", " << processes << " processes";
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
  EXPECT_GT(tied, 0);
}

TEST(Processes, ThatShareUpdatesDivideTheOptimizersMemory) {
  SharedRun run("1f1b", 1, false, {2}, /*tied=*/false);
  const Runtime whole(run.variants, {&run.program}, run.runtime);
  run.runtime.shard_optimizer = true;
  const Runtime shared(run.variants, {&run.program}, run.runtime);
  EXPECT_LE(shared.memory(0).optimizer, whole.memory(0).optimizer * 6 / 10);
  EXPECT_GE(shared.memory(0).optimizer, whole.memory(0).optimizer / 2);
  EXPECT_EQ(shared.memory(0).parameters, whole.memory(0).parameters);
}

/// A sum that is not handed back and weights that are handed on instead: as many bytes.
TEST(Processes, ThatShareUpdatesSendAsManyBytes) {
  std::uint64_t bytes[2] = {};
  for (const bool shares : {false, true}) {
    SharedRun run("1f1b", 1, false, {2}, /*tied=*/false);
    run.runtime.shard_optimizer = shares;
    MemoryWorld world(2, 9);
    world.share_memory(false);
    const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
      const std::uint64_t before = group.leads() ? world.bytes() : 0;
      FixedData data(4 * kSamples, 5);
      for (std::int64_t step = 0; step < 20; ++step) {
        data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
        runtime.run(run.program, data);
      }
      if (group.leads()) bytes[shares ? 1 : 0] = world.bytes() - before;
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]), static_cast<double>(bytes[0]),
              0.1 * static_cast<double>(bytes[0]));
}

/// State that was saved by replicas that share updates, and by others, goes on in either.
TEST(Processes, TakeUpSharedUpdatesAndLeaveThem) {
  SharedRun run("1f1b", 2, true, {2, 1});
  const SharedOutcome expected = four_steps(run, run.runtime);
  for (const bool first : {false, true}) {
    std::vector<StageContent> half;
    SharedOutcome outcome;
    for (const bool shares : {first, !first}) {
      run.runtime.shard_optimizer = shares;
      std::vector<StageContent> parts(2);  // all that the processes have
      std::mutex guard;
      MemoryWorld world(3, 77);
      const auto errors = in_processes(world, 3, [&](ProcessGroup& group) {
        Runtime runtime(run.variants, {&run.program}, run.of_process(group, 3));
        const std::int64_t begin = shares == first ? 0 : 2;
        for (int s = 0; begin > 0 && s < runtime.stages(); ++s)
          runtime.restore(s, half[static_cast<std::size_t>(s)]);
        FixedData data(4 * kSamples, 5);
        for (std::int64_t step = begin; step < begin + 2; ++step) {
          data.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step,
                              kMicroBatchSizes);
          runtime.run(run.program, data);
        }
        std::vector<StageContent> contents = runtime.contents();
        expect_weights(runtime, contents);
        std::vector<StageContent> own = runtime.own_contents();
        {
          const std::lock_guard lock(guard);
          for (std::size_t s = 0; s < own.size(); ++s) merge(std::move(own[s]), parts[s]);
        }
        group.all_gather("");  // the others have restored theirs
        if (!group.leads()) return;
        if (begin > 0) add_values(contents, outcome);
        half = std::move(contents);
      });
      EXPECT_EQ(errors, std::vector<std::string>(3));
      SharedOutcome gathered, together;
      add_values(half, gathered);
      add_values(parts, together);
      EXPECT_TRUE(together.values == gathered.values) << shares;
    }
    EXPECT_TRUE(outcome.values == expected.values) << first;
  }
}

TEST(Processes, SharedUpdatesNeedASynchronousScheduleAndCpus) {
  SharedRun run("pipedream", 1, false, {2}, /*tied=*/false);
  run.runtime.shard_optimizer = true;
  try {
    const Runtime runtime(run.variants, {&run.program}, run.runtime);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("needs a synchronous schedule"), std::string::npos);
  }
  try {
    check_shared_updates(UpdateRule::kSync, "1f1b", /*on_gpus=*/true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("needs stages on the CPU"), std::string::npos);
  }
}

// It has the sum of the others, but does not know of which step.
TEST(Processes, AReplicaWithoutMicroBatchesNamesNoStep) {
  SharedRun run("1f1b", 1, false, {2}, /*tied=*/false, /*micro_batches=*/1);
  run.runtime.finds_nonfinite = true;
  const Value& weight = run.graphs[0]->graph[run.graphs[0]->parameters.back().value];
  HostTensor broken(weight.type);
  for (float& x : broken.span<float>()) x = std::numeric_limits<float>::quiet_NaN();
  MemoryWorld world(2, 79);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    FixedData data(2 * kSamplesPerMicroBatch, 5);
    for (std::int64_t step = 0; step < 2; ++step) {
      if (step == 1) EXPECT_TRUE(runtime.write(weight.name, broken));
      data.set_mini_batch(step * kSamplesPerMicroBatch, kSamplesPerMicroBatch,
                          kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, data);
    }
    const std::optional<NonfiniteValue> first = runtime.first_nonfinite();
    ASSERT_TRUE(first && first->place);
    EXPECT_EQ(first->place->step, 1U) << to_text(*first);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

/// Process 0 has a replica of the second stage, but not its first one.
TEST(Processes, GatherTheWeightsOfFirstReplicas) {
  SharedRun run("1f1b", 2, false, {2, 2}, /*tied=*/false, /*micro_batches=*/4);
  const std::vector<int> number = {0, 2, 3, 1};  // of each device from now on
  const Program before = run.program;
  for (int d = 0; d < before.devices; ++d)
    run.program.device[at(number[at(d)])] = before.device[at(d)];
  for (std::vector<int>& devices : run.program.placement) {
    for (int& device : devices) device = number[at(device)];
  }
  for (Transfer& transfer : run.program.transfers) {
    transfer.from_device = number[at(transfer.from_device)];
    transfer.to_device = number[at(transfer.to_device)];
  }
  check(run.program);
  MemoryWorld world(2, 78);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    FixedData data(4 * kSamples, 5);
    data.set_mini_batch(0, 16, kSamplesPerMicroBatch, 0, kMicroBatchSizes);
    runtime.run(run.program, data);
    const std::vector<StageContent> contents = runtime.contents();
    EXPECT_NE(contents.empty(), group.leads());
    expect_weights(runtime, contents);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

}  // namespace
}  // namespace pipetrain::test
