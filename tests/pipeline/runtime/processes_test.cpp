// Several processes, as threads of the test that only exchange messages, give the same bits as one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/index.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/oracle.h"
#include "pipeline/runtime/runtime.h"
#include "pipeline/runtime/runtime_setup.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "processes/process_group.h"
#include "support/memory_processes.h"
#include "support/recorded_devices.h"
#include "support/small_networks.h"

namespace pipetrain {
namespace {

const std::vector<std::int64_t> kMicroBatchSizes = {4, 2};
constexpr std::int64_t kSamples = 10, kSamplesPerMicroBatch = 4;

/// A network cut into stages, and a program for them.
struct SharedRun {
  SharedRun(const std::string& schedule, int stages, bool clip, std::vector<int> replicas = {},
            bool tied = true, int micro_batches = 3)
      : model(test::difficult_network(tied)) {
    for (const std::int64_t size : kMicroBatchSizes)
      graphs.push_back(test::training_graph(model, size));
    const Chain chain = linearise(*graphs[0]);
    std::vector<int> starts;
    for (int s = 0; s < stages; ++s)
      starts.push_back(static_cast<int>(chain.order.size()) * s / stages);
    const std::vector<int> stage_of = stages_of_chain(*graphs[0], chain, starts);
    for (const auto& graph : graphs)
      variants.push_back({graph.get(), carry_stages(*graphs[0], stage_of, *graph)});
    const Slices slices = slice_stages(*graphs[0], stage_of, stages);
    std::vector<Edge> edges;
    for (const ValueEdge& edge : slices.edges)
      edges.push_back({edge.from, edge.to, static_cast<std::int64_t>(edge.bytes), edge.gradient});
    ScheduleOptions options;
    options.name = schedule;
    options.stages = stages;
    options.micro_batches = micro_batches;
    if (schedule == "pipedream-2bw") options.micro_batches_per_update = 4;
    options.replicas = std::move(replicas);
    options.gradient_sync = slices.has_tied_stages || clip;
    program = lower(generate(options), edges);
    check(program);
    runtime.backend = Backend::kReference;
    runtime.optimizer = default_settings(OptimizerKind::kAdamW);
    runtime.clip_norm = clip ? 0.5 : 0;
    runtime.timeout_seconds = 20;
    runtime.pin = false;
  }
  RuntimeOptions of_process(ProcessGroup& group, int processes) const {
    RuntimeOptions options = runtime;
    options.processes = &group;
    for (int device = 0; device < program.devices; ++device)
      options.process_of_device.push_back(device * processes / program.devices);
    return options;
  }

  OnnxModel model;
  std::vector<std::unique_ptr<TrainingGraph>> graphs;
  std::vector<RuntimeVariant> variants;
  Program program;
  RuntimeOptions runtime;
};

struct SharedOutcome {
  std::map<std::string, std::string> values;  // what the stages remember, as bytes
  std::vector<double> losses, norms;
};

void add_values(const std::vector<StageContent>& contents, SharedOutcome& outcome) {
  const auto add = [&](const std::string& kind, const auto& tensors) {
    for (const auto& [name, value] : tensors)
      outcome.values[kind + name].assign(static_cast<const char*>(value.view().data),
                                         value.type().bytes());
  };
  for (const StageContent& content : contents) {
    add("", content.weights);
    add("state 0 ", content.states[0]);
    add("state 1 ", content.states[1]);
    add("average ", content.averages);
  }
}

SharedOutcome four_steps(const SharedRun& run, const RuntimeOptions& options) {
  Runtime runtime(run.variants, {&run.program}, options);
  test::FixedData data(4 * kSamples, 5);
  SharedOutcome outcome;
  for (std::int64_t step = 0; step < 4; ++step) {
    data.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
    const RoundResult result = runtime.run(run.program, data);
    double loss = 0;
    for (const MicroBatch& micro_batch : data.micro_batches())
      loss += micro_batch.loss_sum * micro_batch.loss_scale;
    outcome.losses.push_back(loss);
    outcome.norms.push_back(result.gradient_norm);
    for (std::size_t d = 0; d < result.events.size(); ++d)
      EXPECT_EQ(result.events[d].size(), run.program.device[d].size());
    for (const double seconds : result.busy_seconds) EXPECT_GT(seconds, 0);
  }
  EXPECT_GT(runtime.memory(runtime.stages() - 1).parameters, 0U);
  add_values(runtime.contents(), outcome);
  return outcome;
}

/// Runs `body` in every process of a world, each a thread, and returns what each said or threw.
template <class Body>
std::vector<std::string> in_processes(test::MemoryWorld& world, int count, const Body& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<ProcessGroup>& group = groups[static_cast<std::size_t>(rank)];
      try {
        group = std::make_unique<ProcessGroup>(world.process(rank));
        body(*group);
        group->leave();
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] =
            fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
        group->say_failed(error);
        group->wait_for_failures(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Processes, GiveTheBitsOfOne) {
  std::uint64_t seed = 0;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const bool clip : {false, true}) {
      const SharedRun run(schedule, 4, clip);
      const SharedOutcome expected = four_steps(run, run.runtime);
      EXPECT_LT(expected.losses.back(), expected.losses.front());
      for (const int processes : {2, 3, 4}) {
        test::MemoryWorld world(processes, ++seed);
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

/// Everything that two steps of so many micro-batches change, and their losses.
template <class Runner>
std::string after_two_steps(const SharedRun& run, Runner& runner, int micro_batches) {
  const std::int64_t samples = micro_batches * kSamplesPerMicroBatch - 2;
  test::FixedData data(3 * samples, 9);
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
            test::MemoryWorld world(processes, ++seed);
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
      test::MemoryWorld world(processes, ++seed);
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
        test::MemoryWorld world(processes, ++seed);
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
    test::MemoryWorld world(2, 9);
    const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
      const std::uint64_t before = group.leads() ? world.bytes() : 0;
      test::FixedData data(4 * kSamples, 5);
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
      test::MemoryWorld world(3, 77);
      const auto errors = in_processes(world, 3, [&](ProcessGroup& group) {
        Runtime runtime(run.variants, {&run.program}, run.of_process(group, 3));
        const std::int64_t begin = shares == first ? 0 : 2;
        for (int s = 0; begin > 0 && s < runtime.stages(); ++s)
          runtime.restore(s, half[static_cast<std::size_t>(s)]);
        test::FixedData data(4 * kSamples, 5);
        for (std::int64_t step = begin; step < begin + 2; ++step) {
          data.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step,
                              kMicroBatchSizes);
          runtime.run(run.program, data);
        }
        std::vector<StageContent> contents = runtime.contents();
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

/// Stages on devices that are recorded, each process some of them: communicators join them.
TEST(Processes, ExchangeBetweenDevices) {
  std::uint64_t seed = 200;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const SharedRun run(schedule, 4, true);
    RuntimeOptions cpu = run.runtime;
    cpu.backend = Backend::kCpu;
    const SharedOutcome expected = four_steps(run, cpu);
    for (const int processes : {2, 4}) {
      test::RecordedMachine machine(4, ++seed);
      test::MemoryWorld world(processes, seed);
      SharedOutcome outcome;
      const auto errors = in_processes(world, processes, [&](ProcessGroup& group) {
        RuntimeOptions options = run.of_process(group, processes);
        options.backend = Backend::kCpu;
        options.collectives = &machine.collectives();
        for (int device = 0; device < 4; ++device) {
          const bool here =
              options.process_of_device[static_cast<std::size_t>(device)] == group.rank();
          options.devices.push_back(here ? &machine.device(device) : nullptr);
          options.device_numbers.push_back(device % (4 / processes));
        }
        SharedOutcome mine = four_steps(run, options);
        if (group.leads()) outcome = std::move(mine);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      for (const std::string& problem : machine.problems()) ADD_FAILURE() << problem;
      EXPECT_GT(machine.exchanged(), 0U);
      EXPECT_TRUE(outcome.values == expected.values) << schedule << " on " << processes;
    }
  }
}

TEST(Processes, TakeUpWhatOthersHadAndEvaluate) {
  const SharedRun run("1f1b", 4, true);
  const SharedOutcome expected = four_steps(run, run.runtime);
  std::vector<StageContent> half;
  test::FixedData data(4 * kSamples, 5);
  const auto two_steps = [&](Runtime& runtime, test::FixedData& from, std::int64_t first) {
    for (std::int64_t step = first; step < first + 2; ++step) {
      from.set_mini_batch(step * kSamples, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, from);
    }
  };
  test::MemoryWorld world(2, 7), other(4, 8);
  auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    test::FixedData own(4 * kSamples, 5);
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
    test::FixedData own(4 * kSamples, 5);
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
  test::FixedData data(2 * kStreamed * kSamplesPerMicroBatch, 5);
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
      test::MemoryWorld world(processes, ++seed);
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

/// Fails when a stage asks for a micro-batch.
class SometimesFailingData final : public MicroBatchSource {
 public:
  SometimesFailingData(test::FixedData& data, bool fails) : data_(data), fails_(fails) {}
  MicroBatch& acquire(int micro_batch) override {
    PT_CHECK(!fails_ || ++asked_ < 20, kData, "sample {} is damaged", micro_batch);
    return data_.acquire(micro_batch);
  }
  void release(int) override {}
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }

 private:
  test::FixedData& data_;
  bool fails_;
  std::atomic<int> asked_{0};
};

TEST(Processes, TheFirstFailureEndsAllWithItsSentence) {
  for (const int failing : {0, 1}) {
    const SharedRun run("1f1b", 4, false);
    test::MemoryWorld world(2, 11);
    const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
      test::FixedData data(4 * kSamples, 5);
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
  test::MemoryWorld world(2, 13);
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
  FailingAtRelease(test::FixedData& data, bool fails) : data_(data), fails_(fails) {}
  MicroBatch& acquire(int micro_batch) override { return data_.acquire(micro_batch); }
  void release(int micro_batch) override {
    PT_CHECK(!fails_ || ++released_ < 4, kData, "sample {} is damaged", micro_batch);
  }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }

 private:
  test::FixedData& data_;
  bool fails_;
  std::atomic<int> released_{0};
};

/// Each stage is in a process of its own, so that the stage and the process have one number.
TEST(Processes, AFailureNamesTheProcessAndTheStageThatFailed) {
  constexpr int kProcesses = 4;
  for (int failing = 0; failing < kProcesses; ++failing) {
    const SharedRun run("1f1b", kProcesses, false);
    test::MemoryWorld world(kProcesses, 31 + static_cast<std::uint64_t>(failing));
    const auto errors = in_processes(world, kProcesses, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, kProcesses));
      test::FixedData data(4 * kSamples, 5);
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
  run.runtime.timeout_seconds = 0.5;
  for (const int silent : {1, 2, 3}) {
    test::MemoryWorld world(4, 20 + static_cast<std::uint64_t>(silent));
    const auto errors = in_processes(world, 4, [&](ProcessGroup& group) {
      Runtime runtime(run.variants, {&run.program}, run.of_process(group, 4));
      test::FixedData data(4 * kSamples, 5);
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

TEST(Processes, SilenceIsNoticedAndNamed) {
  SharedRun run("1f1b", 4, false);
  run.runtime.timeout_seconds = 0.5;
  test::MemoryWorld world(2, 12);
  const double start = steady_seconds();
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(run.variants, {&run.program}, run.of_process(group, 2));
    test::FixedData data(4 * kSamples, 5);
    for (int step = 0; step < 1000; ++step) {
      if (step == 3 && group.rank() == 1) world.mute(1);
      data.set_mini_batch(0, kSamples, kSamplesPerMicroBatch, step, kMicroBatchSizes);
      runtime.run(run.program, data);
    }
  });
  EXPECT_LT(steady_seconds() - start, 20);
  EXPECT_NE(errors[0].find("process 1 on here has been silent"), std::string::npos) << errors[0];
}

TEST(Processes, RefuseWhatTheyCannotDo) {
  const SharedRun streams("pipedream", 2, false, {}, /*tied=*/false);
  test::RecordedMachine machine(2, 13);
  test::MemoryWorld world(2, 13);
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

TEST(Launch, IsReadFromTheEnvironment) {
  const auto with = [](const std::map<std::string, std::string>& variables, const auto& look) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    look();
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
  };
  EXPECT_EQ(launch_of_environment().size, 1);
  with({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}}, [] {
    EXPECT_EQ(launch_of_environment().size, 4);
    EXPECT_EQ(launch_of_environment().rank, 3);
  });
  with({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_RANK", "1"}, {"SLURM_PROCID", "1"}}, [] {
    EXPECT_EQ(launch_of_environment().size, 2);
    EXPECT_EQ(launch_of_environment().launcher, "srun");
  });
  with({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}},
       [] { EXPECT_THROW(launch_of_environment(), Error); });
  // A batch script that was given several tasks is one process.
  with({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}},
       [] { EXPECT_EQ(launch_of_environment().size, 1); });
}

/// torchrun's, TensorFlow's and DMLC's variables, as their documentation gives them.
TEST(Launch, ProcessesThatMpiDoesNotConnectAreRefused) {
  const auto error_with = [](const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    std::string text;
    try {
      refuse_unconnected_launchers();
    } catch (const Error& error) {
      text = fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
    }
    for (const auto& [name, value] : variables) unsetenv(name.c_str());
    return text;
  };
  EXPECT_EQ(error_with({{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}})
                .rfind("2 WORLD_SIZE says that torchrun started 4 processes, but only MPI connects "
                       "them; start them with: mpirun -n 4 ",
                       0),
            0U);
  EXPECT_NE(error_with({{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}})
                .find("mpirun -n 4 -hostfile HOSTS"),
            std::string::npos);
  const std::string cluster =
      R"({"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]},)"
      R"( "task": {"type": "worker", "index": 0}})";
  EXPECT_NE(error_with({{"TF_CONFIG", cluster}}).find("mpirun -n 3 -H a,b,c"), std::string::npos);
  EXPECT_NE(error_with({{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}).find("mpirun -n 2 "),
            std::string::npos);
  // One process, and what is no cluster.
  EXPECT_EQ(error_with({{"WORLD_SIZE", "1"}, {"RANK", "0"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}})"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", "not JSON"}, {"DMLC_ROLE", "worker"}}), "");
}

}  // namespace
}  // namespace pipetrain
