#include "partition/pipedream_compat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "partition/pipedream_states.h"

namespace pipetrain {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kFolder =
    std::filesystem::path(PIPETRAIN_SOURCE_DIR) / "tests/data/pipedream";

PipeDreamProfile profile_of(const std::string& model) {
  return read_pipedream_profile(kFolder / model / "graph.txt");
}

// What a row of goldens.json was made with: PipeDream's own options.
CompatRequest request_of(const Json& arguments) {
  CompatRequest request;
  request.levels.clear();
  std::vector<double> bandwidths;
  std::string option;
  double memory = 16e9;
  bool is_constrained = false;
  for (const std::string argument : arguments) {
    if (argument.starts_with("-")) {
      option = argument;
      request.straight |= option == "--straight_pipeline";
      request.fewer_machines |= option == "--use_fewer_machines";
      is_constrained |= option == "--use_memory_constraint";
      continue;
    }
    const double number = std::stod(argument);
    if (option == "-n") request.levels.push_back({static_cast<int>(number), 1e9});
    if (option == "-b") bandwidths.push_back(number);
    if (option == "-s") memory = number;
    if (option == "--activation_compression_ratio") request.activation_compression = number;
  }
  for (std::size_t i = 0; i < bandwidths.size(); ++i) {
    request.levels.at(i).bytes_per_second = bandwidths[i];
  }
  if (is_constrained) request.memory_bytes = memory;
  return request;
}

void expect_relative(double value, double golden, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(value - golden), tolerance * golden) << what << ": " << value;
}

// Stages hold every node once, no edge leads back, and their compute is their nodes'.
void expect_plan_is_sound(const PipeDreamProfile& profile, const CompatRequest& request,
                          const CompatPlan& plan) {
  for (const PipeDreamEdge& edge : profile.edges) {
    EXPECT_LE(plan.stage_of_node[static_cast<std::size_t>(edge.from)],
              plan.stage_of_node[static_cast<std::size_t>(edge.to)]);
  }
  int devices = 0, machines = 1;
  for (const CompatLevel& level : request.levels) machines *= level.machines;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    double seconds = 0;
    for (const int node : plan.stages[s].nodes) {
      EXPECT_EQ(plan.stage_of_node[static_cast<std::size_t>(node)], static_cast<int>(s));
      seconds += profile.nodes[static_cast<std::size_t>(node)].seconds();
    }
    EXPECT_NEAR(seconds, plan.stages[s].compute_seconds, 1e-9);
    devices += plan.stages[s].devices;
    int replicas = 1;
    for (const int count : plan.stages[s].replicas) replicas *= count;
    EXPECT_EQ(replicas, plan.stages[s].devices);
    EXPECT_EQ(plan.stages[s].cut_level < 0, s == 0);
  }
  EXPECT_LE(devices, machines);
}

TEST(PipeDreamCompat, EveryValueOfPipeDreamsOwnPlanner) {
  std::ifstream in(kFolder / "goldens.json");
  const Json goldens = Json::parse(in);
  ASSERT_EQ(goldens["rows"].size(), 96U);
  double slowest = 0;
  for (const Json& row : goldens["rows"]) {
    const PipeDreamProfile profile = profile_of(row["model"]);
    const CompatRequest request = request_of(row["args"]);
    const std::string what = row["model"].get<std::string>() + " " + row["args"].dump();
    const double start = thread_cpu_seconds();
    const CompatPlan plan = plan_like_pipedream(profile, request);
    slowest = std::max(slowest, thread_cpu_seconds() - start);
    EXPECT_EQ(plan.states, row["states"].get<int>()) << what;
    expect_relative(plan.seconds, row["pipeline_s"], 1e-9, what);
    expect_relative(plan.single_machine_seconds, row["single_machine_s"], 1e-9, what);
    expect_relative(plan.data_parallel_seconds / plan.seconds, row["speedup_vs_dp"], 1e-9, what);
    EXPECT_EQ(plan.levels.size(), row["levels"].size()) << what;
    expect_plan_is_sound(profile, request, plan);
  }
  EXPECT_LT(slowest, 1.0);
}

// Values that PipeDream printed for its larger networks, as far as they were written down.
TEST(PipeDreamCompat, LargerNetworks) {
  struct Case {
    const char* model;
    int machines, states;
    double seconds, tolerance;
  };
  for (const Case& row :
       {Case{"gnmt_large", 4, 1495, 0.137129, 4e-6}, Case{"gnmt_large", 8, 1495, 0.082845, 6e-6},
        Case{"gnmt_large", 16, 1495, 0.058971, 9e-6}, Case{"resnet101", 4, 410, 0.116555, 5e-6},
        Case{"resnet101", 8, 410, 0.096591656, 6e-9}, Case{"resnet101", 16, 410, 0.051380, 1e-5},
        Case{"densenet121", 4, 430, 0.089976, 6e-6},
        Case{"densenet121", 8, 430, 0.047118412, 1.1e-8},
        Case{"densenet121", 16, 430, 0.024546, 2.1e-5},
        Case{"resnet18", 4, 100, 0.100004036, 5e-9}}) {
    CompatRequest request;
    request.levels = {{row.machines, 1e9}};
    request.activation_compression = 1;
    const double start = thread_cpu_seconds();
    const PipeDreamProfile profile = profile_of(row.model);
    const CompatPlan plan = plan_like_pipedream(profile, request);
    EXPECT_LT(thread_cpu_seconds() - start, 1.0) << row.model;
    EXPECT_EQ(plan.states, row.states) << row.model;
    expect_relative(plan.seconds, row.seconds, row.tolerance, row.model);
    expect_plan_is_sound(profile, request, plan);
  }
}

// PipeDream's own planner gave no answer within 1300 s; the value is another program's.
TEST(PipeDreamCompat, TwoLevelsOverManyStates) {
  CompatRequest request;
  request.levels = {{4, 1e10}, {4, 1e9}};
  request.activation_compression = 1;
  const PipeDreamProfile profile = profile_of("gnmt_large");
  const CompatPlan plan = plan_like_pipedream(profile, request);
  expect_relative(plan.seconds, 0.042345, 1.2e-5, "gnmt_large 4x4");
  expect_plan_is_sound(profile, request, plan);
}

TEST(PipeDreamCompat, ANetworkOfTooManyStatesEndsInASentence) {
  for (const char* model : {"inception_v3", "nasnetamobile", "nasnetalarge"}) {
    const double start = thread_cpu_seconds();
    try {
      plan_like_pipedream(profile_of(model), {});
      FAIL() << model;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
      EXPECT_NE(error.message().find("4096 states"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("without `compat`"), std::string::npos) << error.message();
    }
    EXPECT_LT(thread_cpu_seconds() - start, 1.0) << model;
  }
}

// Two thousand sources, each read by a node of its own and by a common one: wide enough to keep a
// careless search busy for hours.
TEST(PipeDreamStates, AVeryWideNetworkEndsInASentence) {
  std::string nodes, edges;
  const auto add = [&](const std::string& name) {
    nodes += name +
             " -- Layer -- forward_compute_time=1, backward_compute_time=1, "
             "activation_size=1.0, parameter_size=1\n";
  };
  add("join");
  for (int i = 0; i < 2000; ++i) {
    add(fmt::format("source{}", i));
    add(fmt::format("sink{}", i));
    edges += fmt::format("\tsource{} -- sink{}\n\tsource{} -- join\n", i, i, i);
  }
  const PipeDreamProfile profile = parse_pipedream_profile(nodes + edges, "wide.txt");
  const double start = thread_cpu_seconds();
  try {
    pipedream_states(profile);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(error.message().find("without `compat`"), std::string::npos);
  }
  EXPECT_LT(thread_cpu_seconds() - start, 20);
}

// A fork S -> {A, B} -> J: the cut behind A and B is charged the fork's output as well.
TEST(PipeDreamStates, ADiamondCountsItsFork) {
  const PipeDreamProfile profile = parse_pipedream_profile(
      "S -- S -- forward_compute_time=0, backward_compute_time=0, activation_size=1000.0, "
      "parameter_size=0\n"
      "A -- A -- forward_compute_time=0, backward_compute_time=0, activation_size=10.0, "
      "parameter_size=0\n"
      "B -- B -- forward_compute_time=0, backward_compute_time=0, activation_size=1.0, "
      "parameter_size=0\n"
      "J -- J -- forward_compute_time=0, backward_compute_time=0, activation_size=5.0, "
      "parameter_size=0\n"
      "\tS -- A\n\tS -- B\n\tA -- J\n\tB -- J\n",
      "diamond");
  const PipeDreamStates states = pipedream_states(profile);
  std::vector<double> bytes;
  for (const PipeDreamState& state : states.states) bytes.push_back(state.output_bytes);
  // {S}, {A} and {B} with the fork, {A, B} with the fork, {J}.
  EXPECT_EQ(bytes, (std::vector<double>{1000, 1010, 1001, 1011, 5}));
}

TEST(PipeDreamStates, PublishedNetworksHaveAsManyStatesAsPipeDreamFinds) {
  for (const auto& [model, count] : std::vector<std::pair<std::string, int>>{
           {"squeezenet1_0", 99}, {"resnext50", 240}, {"resnext101", 410}, {"densenet121", 430}}) {
    EXPECT_EQ(pipedream_states(profile_of(model)).count(), count) << model;
  }
}

TEST(PipeDreamCompat, RequestsThatCannotBe) {
  const PipeDreamProfile profile = profile_of("alexnet");
  const auto kind_of = [&](const CompatRequest& request) {
    try {
      plan_like_pipedream(profile, request);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  CompatRequest request;
  request.levels = {};
  EXPECT_EQ(kind_of(request), ErrorKind::kUsage);
  request.levels = {{0, 1e9}};
  EXPECT_EQ(kind_of(request), ErrorKind::kUsage);
  request.levels = {{4, 0}};
  EXPECT_EQ(kind_of(request), ErrorKind::kUsage);
  request.levels = {{4, 1e9}};
  request.activation_compression = 0;
  EXPECT_EQ(kind_of(request), ErrorKind::kUsage);
  // The memory constraint of PipeDream ends its own program with a TypeError here.
  request.activation_compression = 1;
  request.memory_bytes = 1;
  request.straight = true;
  EXPECT_EQ(kind_of(request), ErrorKind::kResource);
}

TEST(PipeDreamCompat, MoreMachinesThanStatesAreNotALackOfMemory) {
  std::string text;
  for (const char* name : {"A", "B", "C"}) {
    text += fmt::format(
        "{0} -- {0} -- forward_compute_time=1, backward_compute_time=1, activation_size=1.0, "
        "parameter_size=1\n",
        name);
  }
  const PipeDreamProfile profile = parse_pipedream_profile(text + "\tA -- B\n\tB -- C\n", "graph");
  CompatRequest request;
  request.straight = true;
  request.levels = {{3, 1e9}};
  EXPECT_EQ(plan_like_pipedream(profile, request).stages.size(), 3U);
  request.levels = {{8, 1e9}};
  try {
    plan_like_pipedream(profile, request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(error.message().find("3 states of this profile into 8 stages"), std::string::npos)
        << error.message();
    EXPECT_EQ(error.message().find("memory"), std::string::npos) << error.message();
  }
}

TEST(PipeDreamCompat, AProfileOfInputsAloneIsRefused) {
  const PipeDreamProfile profile = parse_pipedream_profile(
      "a -- Input0 -- forward_compute_time=0, backward_compute_time=0, activation_size=0, "
      "parameter_size=0\n",
      "graph.txt");
  EXPECT_THROW(plan_like_pipedream(profile, {}), Error);
}

}  // namespace
}  // namespace pipetrain
