// Several processes under simulated threads, with late messages, failures and processes that die.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <vector>

#include "processes/process_group.h"
#include "simulation/pipelines.h"
#include "simulation/seeds.h"
#include "support/memory_processes.h"

namespace pipetrain::simulation {
namespace {

constexpr double kTimeout = 1;  // seconds, after which a silent process is one that has died

std::vector<PipelineCase> cases() {
  std::vector<PipelineCase> out;
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
    for (const bool clip : {false, true}) {
      out.push_back({.schedule = schedule, .stages = 2, .tied = clip, .clip = clip});
      out.push_back({.schedule = schedule, .stages = 3, .clip = clip});
      out.push_back({.schedule = schedule, .stages = 4, .tied = !clip, .clip = clip});
    }
  }
  out.push_back({.stages = 1, .replicas = {2}});
  out.push_back({.stages = 1, .replicas = {3}});
  out.push_back({.tied = true, .clip = true, .replicas = {2, 2}, .micro_batches = 4});
  out.push_back({.difficult = true, .replicas = {2, 1}});
  out.push_back({.stages = 1, .replicas = {3}, .shares_updates = true});
  out.push_back(
      {.tied = true, .clip = true, .replicas = {2, 2}, .micro_batches = 4, .shares_updates = true});
  return out;
}

/// `micro_batches`: of a round.
std::vector<PipelineCase> streams(int micro_batches, bool difficult) {
  std::vector<PipelineCase> out;
  for (const char* schedule : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    for (const int stages : {2, 3, 4})
      out.push_back({.schedule = schedule,
                     .stages = stages,
                     .difficult = difficult,
                     .micro_batches = micro_batches});
  }
  for (const std::vector<int>& replicas : {std::vector{2}, {2, 1}, {1, 2}, {2, 2}})
    out.push_back({.schedule = "pipedream",
                   .stages = static_cast<int>(replicas.size()),
                   .difficult = difficult,
                   .replicas = replicas,
                   .micro_batches = micro_batches});
  return out;
}

/// The weights of all stages by name, as process 0 gathers them.
struct Gathered {
  const HostTensor& read(const std::string& name) const {
    static const HostTensor none;
    for (const StageContent& content : contents) {
      const auto found = content.weights.find(name);
      if (found != content.weights.end()) return found->second;
    }
    return none;
  }
  std::vector<StageContent> contents;
};

struct Ending {
  Outcome outcome;
  std::vector<std::string> errors;  // [process]; empty: none
  std::string bits;
};

/// Data of which a round takes only the first micro-batches.
class EndingEarly final : public MicroBatchSource {
 public:
  EndingEarly(MicroBatchSource& data, int end) : data_(data), end_(end) {}
  MicroBatch& acquire(int micro_batch) override { return data_.acquire(micro_batch); }
  void release(int micro_batch) override { data_.release(micro_batch); }
  double learning_rate(int micro_batch) const override { return data_.learning_rate(micro_batch); }
  std::int64_t updates_before() const override { return data_.updates_before(); }
  int end_before(int micro_batch) override {
    switch_point();
    return end_ <= micro_batch ? end_ : std::numeric_limits<int>::max();
  }

 private:
  MicroBatchSource& data_;
  int end_;
};

/// What happens to the processes of a run beside late messages.
struct Trouble {
  bool data_fails = false, process_pauses = false, process_dies = false;
  int process = 0;
  int end = std::numeric_limits<int>::max();  // of asynchronous rounds, in micro-batches
};

Ending run_processes(const SimulatedPipeline& pipeline, int processes, std::uint64_t seed,
                     int steps, Trouble trouble) {
  Ending ending;
  ending.errors.resize(static_cast<std::size_t>(processes));
  Gathered gathered;
  std::vector<std::vector<MicroBatch>> results(static_cast<std::size_t>(steps));
  test::MemoryWorld world(processes, seed);
  if (seed % 3 == 0) world.delay_messages(static_cast<int>(seed % 30));
  int started = 0;
  const auto body = [&](ProcessGroup& group) {
    RuntimeOptions options = pipeline.options();
    options.processes = &group;
    options.timeout_seconds = kTimeout;
    const int devices = pipeline.program().devices;
    for (int device = 0; device < devices; ++device)
      options.process_of_device.push_back(device * processes / devices);
    Runtime runtime(pipeline.variants(), {&pipeline.program()}, options);
    ++started;
    test::FixedData data = pipeline.data();
    const bool fails = trouble.data_fails && group.rank() == trouble.process;
    FailingOnce failing(data, fails ? static_cast<int>(draw(20)) : -1, draw(2) == 0);
    EndingEarly source(failing, trouble.end);
    for (int step = 0; step < steps; ++step) {
      pipeline.set_step(data, step % SimulatedPipeline::kMostSteps);
      runtime.run(pipeline.program(), source);
      std::vector<MicroBatch>& losses = results.at(static_cast<std::size_t>(step));
      losses.resize(data.micro_batches().size());
      for (std::size_t u = 0; u < losses.size(); ++u) {
        if (data.micro_batches()[u].has_loss) losses[u] = data.micro_batches()[u];
      }
    }
    std::vector<StageContent> contents = runtime.contents();
    if (group.leads()) gathered.contents = std::move(contents);
  };
  ending.outcome = simulate(seed, {.switches_per_stop = 1'000}, [&] {
    std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<std::size_t>(processes));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < processes; ++rank) {
      threads.emplace_back([&, rank] {
        become_process(rank);
        std::unique_ptr<ProcessGroup>& group = groups[static_cast<std::size_t>(rank)];
        try {
          group = std::make_unique<ProcessGroup>(world.process(rank));
          group->find_readable_processes();
          body(*group);
          group->leave();
        } catch (const Error& error) {
          ending.errors[static_cast<std::size_t>(rank)] = error.what();
          if (group) {
            group->say_failed(error);
            group->wait_for_failures(1);
          }
        }
      });
    }
    if (trouble.process_dies || trouble.process_pauses) {
      become_process(processes);
      // While they begin, processes wait for each other however long it takes.
      while (started < processes) std::this_thread::sleep_for(std::chrono::microseconds(100));
      std::this_thread::sleep_for(std::chrono::microseconds(draw(draw(2) == 0 ? 100'000 : 2'000)));
      if (trouble.process_pauses) stop_process(trouble.process, 0.4 * kTimeout);
      // What is dead to the others comes back when they have gone, so that its memory is freed.
      if (trouble.process_dies) {
        world.mute(trouble.process);
        stop_process(trouble.process, 10 * kTimeout);
      }
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::vector<double> losses;
  for (const auto& of_step : results) {
    double sum = 0;
    for (int u = 0; u < std::min(static_cast<int>(of_step.size()), trouble.end); ++u)
      sum += of_step[static_cast<std::size_t>(u)].loss_sum *
             of_step[static_cast<std::size_t>(u)].loss_scale;
    losses.push_back(sum);
  }
  ending.bits = pipeline.bits(gathered, losses);
  return ending;
}

int count_processes(const SimulatedPipeline& pipeline, std::uint64_t seed) {
  const int most = std::min(pipeline.program().devices, 4);
  return 2 + static_cast<int>(seed / 7 % static_cast<std::uint64_t>(most - 1));
}

TEST(Simulation, ProcessesHaveTheBitsOfTheOracle) {
  Pipelines pipelines(cases());
  under_seeds(300, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = pipelines.of(seed);
    const Ending ending = run_processes(pipeline, count_processes(pipeline, seed), seed, 2,
                                        {.process_pauses = seed % 2 == 0});
    for (const std::string& error : ending.errors) EXPECT_EQ(error, "") << pipeline.describe();
    EXPECT_TRUE(ending.bits == pipeline.expected(2))
        << "other bits than the oracle's: " << pipeline.describe();
    return ending.outcome;
  });
}

TEST(Simulation, ProcessesStreamTheBitsOfTheOracle) {
  Pipelines pipelines(streams(8, /*difficult=*/true));
  under_seeds(200, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = pipelines.of(seed);
    const Ending ending = run_processes(pipeline, count_processes(pipeline, seed), seed, 2,
                                        {.process_pauses = seed % 2 == 0});
    for (const std::string& error : ending.errors) EXPECT_EQ(error, "") << pipeline.describe();
    EXPECT_TRUE(ending.bits == pipeline.expected(2))
        << "other bits than the oracle's: " << pipeline.describe();
    return ending.outcome;
  });
}

// Without running statistics a round that ends early is a round of fewer micro-batches.
TEST(Simulation, StreamsThatEndEarlyHaveTheBitsOfShorterOnes) {
  constexpr int kEnd = 12;  // a multiple of the replicas and of the groups of updates
  // With one micro-batch more, some replicas have nothing behind the end.
  Pipelines longer(streams(18, /*difficult=*/false)), by_one(streams(kEnd + 1, false));
  Pipelines shorter(streams(kEnd, false));
  under_seeds(200, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = (seed / 13 % 2 == 0 ? longer : by_one).of(seed);
    const Ending ending =
        run_processes(pipeline, count_processes(pipeline, seed), seed, 1, {.end = kEnd});
    for (const std::string& error : ending.errors) EXPECT_EQ(error, "") << pipeline.describe();
    EXPECT_TRUE(ending.bits == shorter.of(seed).expected(1))
        << "other bits than the oracle's: " << pipeline.describe();
    return ending.outcome;
  });
}

TEST(Simulation, AFailureEndsAllProcessesWithItsSentence) {
  Pipelines pipelines(cases());
  under_seeds(1'000, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = pipelines.of(seed);
    const int processes = count_processes(pipeline, seed);
    const int failing = static_cast<int>(seed / 11) % processes;
    const Ending ending =
        run_processes(pipeline, processes, seed, 20, {.data_fails = true, .process = failing});
    for (int rank = 0; rank < processes; ++rank) {
      const std::string& error = ending.errors[static_cast<std::size_t>(rank)];
      EXPECT_EQ(error.rfind("a sample is damaged", 0), 0U)
          << rank << " " << error << " " << pipeline.describe();
      const bool names =
          error.find(fmt::format("in process {} on here", failing)) != std::string::npos;
      EXPECT_EQ(names, rank != failing) << rank << " " << error;
    }
    return ending.outcome;
  });
}

TEST(Simulation, AProcessThatDiesIsNamed) {
  Pipelines pipelines(cases());
  under_seeds(50, [&](std::uint64_t seed) {
    const SimulatedPipeline& pipeline = pipelines.of(seed);
    const int processes = count_processes(pipeline, seed);
    const int dead = static_cast<int>(seed / 11) % processes;
    const Ending ending =
        run_processes(pipeline, processes, seed, 1'000, {.process_dies = true, .process = dead});
    for (int rank = 0; rank < processes; ++rank) {
      if (rank == dead) continue;
      const std::string& error = ending.errors[static_cast<std::size_t>(rank)];
      EXPECT_NE(error.find(fmt::format("process {} on here has been silent", dead)),
                std::string::npos)
          << rank << " " << error << " " << pipeline.describe();
    }
    return ending.outcome;
  });
}

}  // namespace
}  // namespace pipetrain::simulation
