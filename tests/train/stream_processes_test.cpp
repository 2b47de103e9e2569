// Asynchronous runs in several processes, as threads of the test that only exchange messages: the
// bits of one process, also where they are stopped, taken up again or fail.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "data/loading/loader.h"
#include "onnx_io/builder.h"
#include "pipeline/transport/channel.h"
#include "processes/process_group.h"
#include "profile/profile.h"
#include "support/memory_processes.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/batch_source.h"
#include "train/resume.h"
#include "train/round_saves.h"
#include "train/trainer.h"

namespace pipetrain {
namespace {

HostTensor stream_weight(Shape shape) {
  HostTensor out(TensorType{DType::kFloat32, std::move(shape)});
  int next = 0;
  for (float& x : out.span<float>()) x = 0.7F * static_cast<float>((++next * 37) % 23 - 11) / 11;
  return out;
}

/// Six layers with a BatchNorm between them, for 6 inputs and 4 classes.
void write_stream_network(const std::filesystem::path& path) {
  OnnxBuilder builder("layers");
  builder.input("x", DType::kFloat32, {{"batch", -1}, {"", 6}});
  builder.output("logits", DType::kFloat32, {{"batch", -1}, {"", 4}});
  std::string in = "x";
  for (int i = 1; i <= 6; ++i) {
    const std::string name = "l" + std::to_string(i), out = i == 6 ? "logits" : "h" + name;
    builder.initializer(name, stream_weight({i == 1 ? 6 : 8, i == 6 ? 4 : 8}));
    builder.node("MatMul", {in, name}, {out}, {}, name);
    if (i == 6) break;
    in = "t" + name;
    if (i != 2) {
      builder.node("Tanh", {out}, {in}, {}, "act" + name);
      continue;
    }
    for (const auto& [of, value] :
         std::map<std::string, float>{{"scale", 1}, {"bias", 0}, {"mean", 0}, {"var", 1}}) {
      HostTensor values(TensorType{DType::kFloat32, Shape{8}});
      for (float& x : values.span<float>()) x = value;
      builder.initializer(of, values);
    }
    builder.node("BatchNormalization", {out, "scale", "bias", "mean", "var"}, {in}, {}, "norm");
  }
  builder.write(path);
}

/// What a process of a run is asked for, and what is reported there.
struct StreamObserver final : TrainingObserver {
  void on_step(const StepReport& report) override {
    losses[report.step] = report.loss;
    PT_CHECK(report.step != fail_at, kData, "sample {} is damaged", report.step);
  }
  void on_evaluation(const EvaluationReport& report) override {
    evaluations[report.step] = report.loss;
  }
  void on_checkpoint(const SaveOutcome& outcome) override {
    if (outcome.written) saved.push_back(outcome.written->path.filename().string());
  }
  RunRequests requests() override {
    ++asked;
    PT_CHECK(asked != fail_asked, kData, "the disk is damaged");
    return {asked == stop_asked, false};
  }
  std::int64_t fail_at = -1, fail_asked = -1, stop_asked = -1;
  std::atomic<std::int64_t> asked{0};
  std::map<std::int64_t, double> losses, evaluations;
  std::vector<std::string> saved;
};

struct StreamOutcome {
  std::map<std::int64_t, double> losses, evaluations;
  std::string bytes;  // of the model
  std::int64_t steps = 0;
  bool in_flight = false;  // went on inside a round
  std::vector<std::string> saved, errors;
};

class StreamProcesses : public testing::Test {
 protected:
  StreamProcesses() {
    write_stream_network(folder_ / "net.onnx");
    config_ = test::small_run(folder_ / "net.onnx");
  }

  void set_stream(const std::string& schedule, std::vector<int> replicas) {
    config_.pipeline.schedule = schedule;
    config_.pipeline.micro_batches = schedule == "pipedream-2bw" ? 4 : 0;
    const int stages = static_cast<int>(replicas.size());
    config_.pipeline.cuts.clear();
    for (int s = 1; s < stages; ++s) config_.pipeline.cuts.push_back(s * 11 / stages);
    config_.pipeline.devices = 0;
    bool alone = true;
    for (const int count : replicas) {
      config_.pipeline.devices += count;
      alone = alone && count == 1;
    }
    config_.pipeline.replicas = alone ? std::vector<int>() : std::move(replicas);
    config_.pipeline.profile_path.clear();
    PlannedNetwork network = plan_network(config_);
    write_profile(folder_ / "profile", network.profile(), network.graph(), "net.onnx");
    config_.pipeline.profile_path = (folder_ / "profile").string();
  }

  /// A run that is stopped has the weights that it has saved.
  static void expect_weights_of_newest(const PipelineRun& run,
                                       const std::filesystem::path& checkpoints) {
    const NamedTensors saved = newest_checkpoint(checkpoints)->checkpoint.weights;
    NamedTensors trained;
    for (StageContent& content : run.trained_contents()) trained.merge(content.weights);
    for (const auto& [name, value] : saved) {
      const std::string_view bytes(static_cast<const char*>(value.view().data),
                                   value.type().bytes());
      ASSERT_TRUE(trained.contains(name)) << name;
      EXPECT_EQ(bytes, std::string_view(static_cast<const char*>(trained.at(name).view().data),
                                        value.type().bytes()))
          << name;
    }
  }

  /// Trains, in one process if `group` is null, from the newest checkpoint in a folder.
  void train_here(ProcessGroup* group, const std::string& name, StreamObserver& observer,
                  StreamOutcome& out) {
    const std::filesystem::path checkpoints = folder_ / name;
    const auto found = newest_checkpoint(checkpoints);
    PlannedNetwork network = plan_network(config_, RunMode::kTrain, group);
    TrainingOptions options;
    std::optional<ProgramCut> cut;
    PipelineRun run(network, found ? first_round(network, found->checkpoint) : 0);
    if (found) {
      cut = restore(run, found->checkpoint);
      options.resumed = &found->checkpoint;
      options.cut = cut ? &*cut : nullptr;
    }
    const bool leads = !group || group->leads();
    if (group) group->all_gather("");  // the checkpoints have been read
    if (leads) {
      options.save.folder = checkpoints;
      options.save.every = every_;
      options.save.keep = 0;
      options.save.run = describe_run(network, {}, {});
    }
    const TrainingSummary summary = train(run, observer, options);
    run.collect_weights();
    if (!leads) return;
    if (summary.end == RunEnd::kStopped) expect_weights_of_newest(run, checkpoints);
    run.export_model((folder_ / (name + ".onnx")).string());
    out.steps = summary.steps;
    out.in_flight = cut.has_value();
    out.losses = observer.losses;
    out.evaluations = observer.evaluations;
    out.saved = observer.saved;
    out.bytes = get_file(folder_ / (name + ".onnx"));
  }

  StreamOutcome train_alone(const std::string& name, std::int64_t stop = -1) {
    StreamOutcome out;
    StreamObserver observer;
    observer.stop_asked = stop;
    train_here(nullptr, name, observer, out);
    return out;
  }

  /// `prepare(rank, observer)` says what happens in a process.
  template <class Prepare>
  StreamOutcome train_in(int processes, const std::string& name, const Prepare& prepare) {
    test::MemoryWorld world(processes, ++seed_);
    if (seed_ % 3 == 0) world.delay_messages(20);
    StreamOutcome out;
    out.errors.resize(static_cast<std::size_t>(processes));
    std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<std::size_t>(processes));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < processes; ++rank) {
      threads.emplace_back([&, rank] {
        auto& group = groups[static_cast<std::size_t>(rank)];
        StreamObserver observer;
        prepare(rank, observer);
        try {
          group = std::make_unique<ProcessGroup>(world.process(rank));
          group->find_readable_processes();
          train_here(group.get(), name, observer, out);
          group->leave();
        } catch (const Error& error) {
          out.errors[static_cast<std::size_t>(rank)] =
              fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
          group->say_failed(error);
          group->wait_for_failures(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return out;
  }
  StreamOutcome train_in(int processes, const std::string& name) {
    StreamOutcome out = train_in(processes, name, [](int, StreamObserver&) {});
    for (const std::string& error : out.errors) EXPECT_EQ(error, "");
    return out;
  }

  TemporaryDirectory folder_;
  RunConfig config_;
  SaveEvery every_;
  std::uint64_t seed_ = 0;
};

struct StreamShape {
  const char* schedule;
  std::vector<int> replicas;
  std::vector<int> processes;
};

const StreamShape kStreams[] = {{"pipedream", {1, 1, 1, 1}, {2, 3, 4}},
                                {"pipedream-vertical", {1, 1, 1, 1}, {2, 3, 4}},
                                {"pipedream-2bw", {1, 1, 1, 1}, {2, 3, 4}},
                                {"pipedream", {2, 1}, {2, 3}},
                                {"pipedream", {1, 2}, {2, 3}},
                                {"pipedream", {2}, {2}},
                                {"pipedream-2bw", {2, 2}, {2, 3, 4}}};

TEST_F(StreamProcesses, HaveTheBitsAndLossesOfOne) {
  config_.data.validation_split = 0.2;
  for (const StreamShape& shape : kStreams) {
    set_stream(shape.schedule, shape.replicas);
    const StreamOutcome alone = train_alone("alone");
    EXPECT_EQ(alone.losses.size(), 10U);
    EXPECT_EQ(alone.evaluations.size(), 2U);
    for (const int processes : shape.processes) {
      const StreamOutcome out = train_in(processes, "several");
      EXPECT_EQ(out.losses, alone.losses) << shape.schedule << " in " << processes;
      EXPECT_EQ(out.evaluations, alone.evaluations);
      EXPECT_TRUE(out.bytes == alone.bytes) << shape.schedule << " in " << processes;
    }
  }
}

TEST_F(StreamProcesses, SaveInsideARoundWhatOneProcessSaves) {
  every_ = SaveEvery::parse("2");
  for (const StreamShape& shape : kStreams) {
    set_stream(shape.schedule, shape.replicas);
    const std::string name = fmt::format("{}-{}", shape.schedule, fmt::join(shape.replicas, "-"));
    const StreamOutcome alone = train_alone("alone-" + name);
    EXPECT_GE(alone.saved.size(), 6U);
    const StreamOutcome out = train_in(shape.processes.back(), name);
    EXPECT_EQ(out.saved, alone.saved);
    for (const std::string& step : alone.saved) {
      for (const char* file :
           {"weights.safetensors", "optimizer.safetensors", "stashed.safetensors"}) {
        const std::filesystem::path one = folder_ / ("alone-" + name) / step / file;
        const std::filesystem::path other = folder_ / name / step / file;
        ASSERT_EQ(std::filesystem::exists(one), std::filesystem::exists(other)) << other;
        if (std::filesystem::exists(one)) EXPECT_TRUE(get_file(one) == get_file(other)) << other;
      }
    }
  }
}

TEST_F(StreamProcesses, GoOnInAnyNumberOfProcesses) {
  for (const StreamShape& shape : kStreams) {
    set_stream(shape.schedule, shape.replicas);
    const std::string kind = fmt::format("{}-{}-", shape.schedule, fmt::join(shape.replicas, "-"));
    const StreamOutcome whole = train_alone(kind + "whole");
    for (int stop = 1; stop < 7; stop += 2) {
      const std::string name = kind + std::to_string(stop);
      // A request to any process counts for all.
      const int asked = stop % shape.processes.front();
      StreamOutcome first = train_in(shape.processes.front(), name, [&](int rank, auto& observer) {
        if (rank == asked) observer.stop_asked = stop;
      });
      for (const std::string& error : first.errors) EXPECT_EQ(error, "");
      EXPECT_GT(first.steps, 0);
      ASSERT_EQ(first.losses.size(), static_cast<std::size_t>(first.steps))
          << name << " " << (first.losses.empty() ? 0 : first.losses.rbegin()->first);
      if (first.steps == 14) continue;  // the request came too late
      const StreamOutcome second =
          stop == 5 ? train_alone(name) : train_in(shape.processes.back(), name);
      EXPECT_EQ(second.in_flight, first.steps % 7 != 0);
      for (const auto& [step, loss] : whole.losses)
        EXPECT_EQ(step <= first.steps ? first.losses.at(step) : second.losses.at(step), loss)
            << name << ", step " << step;
      EXPECT_TRUE(second.bytes == whole.bytes) << name;
    }
  }
}

TEST_F(StreamProcesses, WhatOneProcessStoppedOthersTakeUp) {
  set_stream("pipedream", {1, 1, 1, 1});
  const StreamOutcome whole = train_alone("whole");
  EXPECT_EQ(train_alone("part", 3).steps, 3);
  const StreamOutcome rest = train_in(3, "part");
  EXPECT_TRUE(rest.in_flight);
  EXPECT_EQ(rest.losses.size(), 11U);
  EXPECT_TRUE(rest.bytes == whole.bytes);
}

// The first stage gets a gradient before its update, and reads it behind the update, where the
// round can be cut.
TEST_F(StreamProcesses, TakeUpWhatOneProcessStoppedBetweenReplicas) {
  for (const std::vector<int>& replicas : {std::vector<int>{1, 2}, {2, 1}, {2, 2}}) {
    set_stream("pipedream", replicas);
    const std::string kind = fmt::format("{}-", fmt::join(replicas, "-"));
    const StreamOutcome whole = train_alone(kind + "whole");
    int before = 0;
    for (int stop = 1; stop <= 6; ++stop) {
      const std::string name = kind + std::to_string(stop);
      const int steps = static_cast<int>(train_alone(name, stop).steps);
      if (steps == std::exchange(before, steps)) continue;
      const StreamOutcome rest = train_in(replicas[0] + replicas[1], name);
      EXPECT_EQ(rest.losses.size(), static_cast<std::size_t>(14 - steps)) << name;
      EXPECT_TRUE(rest.bytes == whole.bytes) << name;
    }
  }
}

TEST_F(StreamProcesses, EndByTheClock) {
  config_.optimization.epochs = 1'000'000;
  set_stream("pipedream", {1, 1, 1});
  test::MemoryWorld world(3, 5);
  std::vector<TrainingSummary> ends(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroup group(world.process(rank));
      PlannedNetwork network = plan_network(config_, RunMode::kTrain, &group);
      PipelineRun run(network);
      StreamObserver observer;
      TrainingOptions options;
      if (rank == 0) options.max_seconds = 0.2;
      ends[static_cast<std::size_t>(rank)] = train(run, observer, options);
      run.collect_weights();
      group.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TrainingSummary& end : ends) {
    EXPECT_EQ(end.end, RunEnd::kTime);
    EXPECT_EQ(end.steps, ends.front().steps);
    EXPECT_GT(end.steps, 0);
  }
}

TEST_F(StreamProcesses, AFailureEndsAllWithItsSentence) {
  set_stream("pipedream", {1, 1, 1, 1});
  for (const int processes : {2, 4}) {
    for (int failing = 0; failing < processes; ++failing) {
      const StreamOutcome out = train_in(processes, "failing", [&](int rank, auto& observer) {
        if (rank != failing) return;
        (rank == 0 ? observer.fail_at : observer.fail_asked) = 3;
      });
      for (int rank = 0; rank < processes; ++rank) {
        const std::string& error = out.errors[static_cast<std::size_t>(rank)];
        EXPECT_EQ(error.rfind(failing == 0 ? "4 sample 3 is damaged" : "4 the disk is damaged", 0),
                  0U)
            << error;
        EXPECT_EQ(error.find(fmt::format("in process {}", failing)) != std::string::npos,
                  rank != failing)
            << error;
      }
    }
  }
}

/// Samples for the network above that take a minute to read.
class MinuteLongReads final : public Dataset {
 public:
  std::size_t size() const override { return 50; }
  std::span<const Column> columns() const override { return columns_; }
  void gather(std::span<const std::size_t>, std::size_t, Tensor) const override {
    std::this_thread::sleep_for(std::chrono::minutes(1));
  }

 private:
  std::vector<Column> columns_ = {{"x", DType::kFloat32, {6}}, {"labels", DType::kInt64, {}}};
};

TEST_F(StreamProcesses, AFailureDoesNotWaitForSlowData) {
  set_stream("pipedream", {1, 1});
  PlannedNetwork network = plan_network(config_);
  PipelineRun run(network);
  const Program& program = run.program(network.round_units(0));
  const int micro_batches = static_cast<int>(network.micro_batches());
  const auto begin = std::chrono::steady_clock::now();
  {
    Loader loader(std::make_shared<MinuteLongReads>(), Sampler(50, {.batch_size = 8}), 0, 6);
    RoundSaves saves(run, program, micro_batches, 0, {});
    const StreamUnits::Shape shape = {.micro_batches = micro_batches,
                                      .in_flight = run.batches_in_flight()};
    StreamUnits units(run, program, loader, shape, saves, {});
    const std::jthread failing_stage([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      units.abort();
    });
    EXPECT_THROW(units.acquire(0), ChannelAborted);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace pipetrain
