// What a run that goes on takes over of its stages, and what options put out of force.
#include "cli/options/resume_command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace pipetrain {
namespace {

/// The checkpoint of a stream with these settings, whose second stage begins with node 3.
FoundCheckpoint checkpoint_of_stream(std::vector<Setting> settings, const std::string& replicas) {
  FoundCheckpoint found;
  found.path = "runs/a/checkpoints/step-000004";
  found.checkpoint.is_own = true;
  found.checkpoint.run.settings = std::move(settings);
  found.checkpoint.run.numbers = {{"updates", "asynchronous"}, {"replicas", replicas}};
  found.checkpoint.cuts = {3};
  found.checkpoint.order = {0, 2, 1, 3, 4};
  return found;
}

PipelineConfig taken_over(const FoundCheckpoint& found, const std::vector<std::string>& given) {
  Options options = parse_options("train", given);
  take_over(found, "train", options);
  return options.run.pipeline;
}

TEST(TakeOver, CutsAndTheirOrderStayWhileTheSameStagesAreAskedFor) {
  const FoundCheckpoint found = checkpoint_of_stream(
      {{"--model", "net.onnx"}, {"--schedule", "pipedream"}, {"--threads", "1"}, {"--gpus", "2"}},
      "1,1");
  // Job queues and restarts repeat the whole command line.
  for (const std::vector<std::string>& given :
       std::vector<std::vector<std::string>>{{},
                                             {"--lr", "0.1"},
                                             {"--gpus", "2"},
                                             {"--stages=2", "--schedule", "pipedream"},
                                             {"--gpu-ids", "1,0"}}) {
    const PipelineConfig pipeline = taken_over(found, given);
    EXPECT_EQ(pipeline.cuts, found.checkpoint.cuts) << (given.empty() ? "" : given.front());
    EXPECT_EQ(pipeline.order, found.checkpoint.order) << (given.empty() ? "" : given.front());
  }
  for (const std::vector<std::string>& given :
       std::vector<std::vector<std::string>>{{"--gpus", "3"},
                                             {"--gpus", "2", "--schedule", "1f1b"},
                                             {"--gpu-ids", "0,1,2"},
                                             {"--replicas", "1,1"},
                                             {"--split", "node"},
                                             {"--plan", "plan.json"}}) {
    const PipelineConfig pipeline = taken_over(found, given);
    EXPECT_TRUE(pipeline.cuts.empty()) << given.front();
    EXPECT_TRUE(pipeline.order.empty()) << given.front();
  }
}

TEST(TakeOver, ReplicasThatThePlannerHasChosenStay) {
  const std::vector<Setting> settings = {{"--model", "net.onnx"},
                                         {"--schedule", "pipedream"},
                                         {"--threads", "1"},
                                         {"--gpus", "3"},
                                         {"--replicas", "auto"}};
  const FoundCheckpoint found = checkpoint_of_stream(settings, "2,1");
  const std::vector<int> chosen = {2, 1};
  for (const std::vector<std::string>& given :
       std::vector<std::vector<std::string>>{{}, {"--gpus", "3", "--replicas", "auto"}}) {
    const PipelineConfig pipeline = taken_over(found, given);
    EXPECT_EQ(pipeline.replicas, chosen);
    EXPECT_FALSE(pipeline.plan_replicas);
    EXPECT_EQ(pipeline.cuts, found.checkpoint.cuts);
  }
  const PipelineConfig others = taken_over(found, {"--gpus", "4", "--replicas", "auto"});
  EXPECT_TRUE(others.replicas.empty());
  EXPECT_TRUE(others.plan_replicas);
  // What does not fit the devices or the cuts is not taken.
  for (const char* wrong : {"", "3", "2,2", "2,1,1", "2,x", "3,0", "4,-1"}) {
    const PipelineConfig pipeline = taken_over(checkpoint_of_stream(settings, wrong), {});
    EXPECT_TRUE(pipeline.replicas.empty()) << wrong;
    EXPECT_TRUE(pipeline.plan_replicas) << wrong;
  }
}

TEST(TakeOver, DevicesThatThePlannerHasLeftIdleStayIdle) {
  const std::vector<int> chosen = {2, 1};
  for (const Setting& devices : {Setting("--gpus", "5"), Setting("--gpu-ids", "4,3,2,1,0")}) {
    const FoundCheckpoint found = checkpoint_of_stream({{"--model", "net.onnx"},
                                                        {"--schedule", "pipedream"},
                                                        {"--threads", "1"},
                                                        devices,
                                                        {"--replicas", "auto"}},
                                                       "2,1");
    Options options = parse_options("train", std::vector<std::string>{});
    take_over(found, "train", options);
    const PipelineConfig& pipeline = options.run.pipeline;
    EXPECT_EQ(pipeline.replicas, chosen);
    EXPECT_FALSE(pipeline.plan_replicas);
    EXPECT_EQ(pipeline.cuts, found.checkpoint.cuts);
    const bool has_ids = devices.first == "--gpu-ids";
    EXPECT_EQ(options.gpus, has_ids ? 0 : 3);
    EXPECT_EQ(pipeline.gpu_ids, has_ids ? std::vector<int>({4, 3, 2}) : std::vector<int>());
    // The next checkpoint records what was asked for.
    EXPECT_EQ(std::ranges::count(options.settings, devices), 1);
  }
}

}  // namespace
}  // namespace pipetrain
