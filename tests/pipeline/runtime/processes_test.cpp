// Several processes, as threads of the test that only exchange messages, give the same bits as one.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "passes/linearise.h"
#include "pipeline/program/check.h"
#include "pipeline/runtime/runtime.h"
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
  SharedRun(const std::string& schedule, int stages, bool clip, std::vector<int> replicas = {})
      : model(test::difficult_network(/*tied=*/true)) {
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
    options.micro_batches = 3;
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
  const SharedRun streams("pipedream", 2, false);
  test::MemoryWorld world(2, 13);
  const auto errors = in_processes(world, 2, [&](ProcessGroup& group) {
    Runtime runtime(streams.variants, {&streams.program}, streams.of_process(group, 2));
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
  EXPECT_NE(error_with({{"TF_CONFIG", cluster}}).find("mpirun -n 3 -H a,b,c"),
            std::string::npos);
  EXPECT_NE(error_with({{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}).find("mpirun -n 2 "),
            std::string::npos);
  // One process, and what is no cluster.
  EXPECT_EQ(error_with({{"WORLD_SIZE", "1"}, {"RANK", "0"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}})"}}), "");
  EXPECT_EQ(error_with({{"TF_CONFIG", "not JSON"}, {"DMLC_ROLE", "worker"}}), "");
}

}  // namespace
}  // namespace pipetrain
