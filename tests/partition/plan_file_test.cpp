#include "partition/plan_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "partition/random_chain.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

const std::vector<std::string>& six_names() {
  static const std::vector<std::string> names = {"conv1", "conv1", "relu", "conv2", "relu", "fc"};
  return names;
}

std::string document(const std::string& fields) {
  return R"({"schema": "pipetrain.plan/1", )" + fields + "}";
}

// The message of the error that reading this text must give.
std::string refusal(const std::string& text) {
  try {
    parse_plan(text, "plan.json", six_names());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << text;
    return error.message();
  }
  ADD_FAILURE() << "accepted " << text;
  return "";
}

TEST(PlanFile, ComesBackAsItWas) {
  std::mt19937 random(11);
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("pipetrain_plan_" + std::to_string(::getpid()) + ".json");
  for (int trial = 0; trial < 50; ++trial) {
    const ChainCosts chain = random_chain(random, 2 + trial % 20);
    PlanRequest request;
    request.stages = 1 + trial % 4;
    request.micro_batches = 8;
    request.schedule = planned_schedule(trial % 2 ? "gpipe" : "1f1b");
    request.recompute = trial % 3 ? Recompute::kNone : Recompute::kAll;
    const Plan plan = plan_stages(chain, request);
    write_plan(path, plan, chain, request, "model.onnx");
    const PlanChoice choice = read_plan(path, element_names(chain));
    EXPECT_EQ(choice.cuts, plan.cuts());
    EXPECT_EQ(choice.schedule, request.schedule.name);
    EXPECT_EQ(choice.micro_batches, 8);
    PlanRequest other;
    other.schedule = planned_schedule(*choice.schedule);
    other.optimizer_bytes_per_parameter_byte = request.optimizer_bytes_per_parameter_byte;
    const Plan again = plan_of_choice(chain, other, choice);
    ASSERT_EQ(again.stages.size(), plan.stages.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(again.stages[i].seconds, plan.stages[i].seconds);
      EXPECT_EQ(again.stages[i].memory.total(), plan.stages[i].memory.total());
      EXPECT_EQ(again.stages[i].recompute, plan.stages[i].recompute);
    }
  }
  std::filesystem::remove(path);
}

TEST(PlanFile, KeepsReplicasAndPlaces) {
  std::mt19937 random(12);
  int replicated = 0, closed = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const ChainCosts chain = random_chain(random, 2 + trial % 9);
    PlanRequest request;
    request.stages = 0;
    request.devices = 8;
    request.micro_batches = 4;
    request.schedule = planned_schedule(trial % 2 ? "pipedream" : "1f1b");
    request.objective = Objective::kThroughput;
    if (trial % 3 == 0) request.topology.levels = {{"inner", 4, 8, 0}, {"outer", 2, 1, 0}};
    const Plan planned = plan_devices(chain, request);
    const Plan plan = without_gaps(chain, request, planned);
    closed += plan.stages.back().first_device != planned.stages.back().first_device;
    const PlanChoice choice = parse_plan(plan_text(plan, chain, request, "model.onnx"), "plan.json",
                                         element_names(chain));
    replicated += choice.replicated();
    const Plan again = plan_of_choice(chain, request, choice);
    EXPECT_EQ(again.devices(), plan.devices());
    EXPECT_EQ(again.bottleneck_seconds, plan.bottleneck_seconds);
    ASSERT_EQ(again.stages.size(), plan.stages.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(again.stages[i].replicas, plan.stages[i].replicas);
      EXPECT_EQ(again.stages[i].first_device, plan.stages[i].first_device);
      EXPECT_EQ(again.stages[i].all_reduce_seconds, plan.stages[i].all_reduce_seconds);
      EXPECT_EQ(again.stages[i].memory.total(), plan.stages[i].memory.total());
    }
  }
  EXPECT_GT(replicated, 20);
  EXPECT_GT(closed, 0);
  // Without a word on devices, stages lie one after another.
  const PlanChoice choice =
      parse_plan(document(R"("stages": [{"first_index": 0, "replicas": 3}, {"first_index": 2}])"),
                 "plan.json", six_names());
  EXPECT_EQ(choice.devices[1].first, 3);
  EXPECT_EQ(choice.devices[1].count, 1);
}

TEST(PlanFile, SurvivesNamesThatAreNotUtf8) {
  ChainCosts chain;
  for (const char* name : {"a\xff\xfe", "line\nbreak \"quoted\"", "\xe2\x98\x83"}) {
    chain.elements.push_back({});
    chain.elements.back().name = name;
    chain.elements.back().forward_seconds = 1;
  }
  chain.forward_bytes.assign(4, 0);
  chain.backward_bytes.assign(4, 0);
  PlanRequest request;
  request.stages = 3;
  const Plan plan = plan_stages(chain, request);
  const std::string text = plan_text(plan, chain, request, "m\xff.onnx");
  EXPECT_EQ(parse_plan(text, "plan.json", element_names(chain)).cuts, (std::vector<int>{1, 2}));
}

TEST(PlanFile, TakesHandWrittenStages) {
  const auto cuts = [](const std::string& stages) {
    return parse_plan(document(R"("stages": )" + stages), "plan.json", six_names()).cuts;
  };
  using Cuts = std::vector<int>;
  EXPECT_EQ(cuts(R"([{"first_index": 0}, {"first_index": 3}])"), Cuts{3});
  EXPECT_EQ(cuts(R"([{"first_node": "conv1"}, {"first_node": "conv2"}])"), Cuts{3});
  EXPECT_EQ(cuts(R"([{"first_index": 0, "last_index": 3},
                     {"first_node": "relu", "first_index": 4, "last_node": "fc"}])"),
            Cuts{4});
  EXPECT_EQ(cuts(R"([{"first_index": 0, "comment": "all of it"}])"), Cuts{});
  const PlanChoice choice = parse_plan(
      document(
          R"("stages": [{"first_index": 0, "recompute": true}, {"first_index": 2, "recompute": false}, {"first_index": 5}])"),
      "plan.json", six_names());
  EXPECT_EQ(choice.recompute,
            (std::vector<Recompute>{Recompute::kAll, Recompute::kNone, Recompute::kAuto}));
  EXPECT_FALSE(choice.schedule);
  EXPECT_FALSE(choice.micro_batches);
}

TEST(PlanFile, NamesTheFieldThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("stages": [])", "plan.json: stages lists no stage"},
      {R"("stages": 3)", "plan.json: stages must be a list, got 3"},
      {R"("notes": [])", "plan.json lacks the field \"stages\""},
      {R"("stage": [])", "plan.json has an unknown field \"stage\""},
      {R"("gap": "none", "stages": [{"first_index": 0}])", "plan.json: gap must be a number"},
      {R"("stages": [{"first_index": 0, "seconds": -1}])", "stages[0].seconds must be a number"},
      {R"("stages": [{"first_index": 0, "memory": {"weights": 1e308}}])",
       "stages[0].memory.weights must be an integer"},
      {R"("stages": [7])", "stages[0]"},
      {R"("stages": [{}])", "stages[0] needs first_node or first_index"},
      {R"("stages": [{"first_index": 1}])", "stages[0] begins at node 1"},
      {R"("stages": [{"first_index": 0}, {"first_index": 6}])",
       "stages[1].first_index must be an integer between 0 and 5, got 6"},
      {R"("stages": [{"first_index": 0}, {"first_index": -1}])", "stages[1].first_index"},
      {R"("stages": [{"first_index": 0}, {"first_index": 2.5}])", "got 2.5"},
      {R"("stages": [{"first_index": 0}, {"first_index": "2"}])", "got \"2\""},
      {R"("stages": [{"first_index": 0}, {"first_index": 1e300}])", "stages[1].first_index"},
      {R"("stages": [{"first_index": 0}, {"first_index": 18446744073709551615}])",
       "stages[1].first_index"},
      {R"("stages": [{"first_index": 0}, {"first_index": 3}, {"first_index": 3}])",
       "stages[2] begins at node 3, not after stage 1"},
      {R"("stages": [{"first_index": 0}, {"first_index": 4}, {"first_index": 3}])", "stages[2]"},
      {R"("stages": [{"first_index": 0}, {"first_index": 3, "first_node": "fc"}])",
       "stages[1].first_node is \"fc\", but node 3 of the model is \"conv2\""},
      {R"("stages": [{"first_index": 0}, {"first_node": "conv9"}])",
       "stages[1].first_node does not fit the model"},
      {R"("stages": [{"first_index": 0}, {"first_node": "relu"}])", "2 nodes are called \"relu\""},
      {R"("stages": [{"first_index": 0, "last_index": 1}, {"first_index": 3}])",
       "stages[0].last_index is 1"},
      {R"("stages": [{"first_index": 0, "last_node": "conv1"}, {"first_index": 3}])",
       "stages[0].last_node"},
      {R"("stages": [{"first_index": 0, "recompute": "yes"}])", "stages[0].recompute"},
      {R"("stages": [{"first_index": 0, "replicas": 0}])", "stages[0].replicas"},
      {R"("stages": [{"first_index": 0, "replicas": 2}, {"first_index": 3, "first_device": 1}])",
       "stages[1].first_device is 1, but the stages before take the devices up to 1"},
      {R"("chain_nodes": 9, "stages": [{"first_index": 0}])",
       "chain_nodes is 9, but the model has 6"},
      {R"("micro_batches": 0, "stages": [{"first_index": 0}])", "micro_batches"},
      {R"("schedule": [1], "stages": [{"first_index": 0}])", "schedule must be a text"},
  };
  for (const auto& [fields, expected] : cases) {
    const std::string message = refusal(document(fields));
    EXPECT_NE(message.find(expected), std::string::npos) << fields << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(PlanFile, RefusesWhatIsNoPlan) {
  EXPECT_NE(refusal("").find("plan.json is not JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"schema\": \"pipetrain.plan/1\"").find("is not JSON"), std::string::npos);
  EXPECT_NE(refusal("[1, 2]").find("\"schema\""), std::string::npos);
  EXPECT_NE(refusal("null").find("\"schema\""), std::string::npos);
  EXPECT_NE(refusal(R"({"schema": 1})").find("\"schema\""), std::string::npos);
  EXPECT_NE(refusal(R"({"schema": "pipetrain.profile/1"})").find("is a pipetrain.profile/1"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"schema": "pipetrain.plan/2"})").find("reads pipetrain.plan/1 only"),
            std::string::npos);
  refusal(std::string(100000, '['));
  refusal(document(R"("stages": )" + std::string(100000, '[') + std::string(100000, ']')));
  refusal(document("\"stages\": [{\"first_index\": 0, \"first_node\": \"\xff\"}]"));
}

TEST(PlanFile, SaysThatAFileIsMissing) {
  try {
    read_plan("/nonexistent/plan.json", six_names());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("/nonexistent/plan.json"), std::string::npos);
  }
  EXPECT_THROW(read_plan("/", six_names()), Error);
}

TEST(PlanFile, StagesThatShareDevicesHaveNoneOfTheirOwn) {
  std::mt19937 random(13);
  const ChainCosts chain = random_chain(random, 6);
  PlanRequest request;
  request.stages = 4;
  const Plan plan = plan_stages(chain, request);
  const auto has = [&](const std::string& field) {
    return plan_text(plan, chain, request, "m.onnx").find(field) != std::string::npos;
  };
  EXPECT_TRUE(has("\"devices\": 4") && has("\"first_device\": 3"));
  request.shared_devices = 2;
  EXPECT_TRUE(has("\"devices\": 2") && !has("first_device"));
}

TEST(PlanFile, CutsHaveNamesOrPositions) {
  EXPECT_EQ(find_cut(six_names(), "conv2"), 3);
  EXPECT_EQ(find_cut(six_names(), "4"), 4);
  const std::vector<std::string> numbers = {"a", "b", "c", "1"};
  EXPECT_EQ(find_cut(numbers, "1"), 3);
  EXPECT_EQ(find_cut(numbers, "2"), 2);
  for (const char* word : {"relu", "4x", "-", "", "99999999999"})
    EXPECT_THROW(find_cut(six_names(), word), Error) << word;
}

TEST(PlanFile, RecomputeModesHaveNames) {
  EXPECT_EQ(name_of(Recompute::kNone), "none");
  EXPECT_EQ(name_of(Recompute::kAll), "all");
  EXPECT_EQ(name_of(Recompute::kAuto), "auto");
}

}  // namespace
}  // namespace pipetrain
