// The general planner against brute force (brute_force_plans.h), and what it says of its plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "partition/brute_force_plans.h"
#include "partition/plan.h"
#include "partition/random_chain.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

struct Picker {
  std::mt19937 random;
  int operator()(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  }
};

PlanRequest random_request(Picker& pick) {
  PlanRequest request;
  request.stages = 0;
  request.micro_batches = 1 << pick(0, 3);
  request.schedule = planned_schedule(std::vector<std::string>{
      "gpipe", "1f1b", "1f1b-auto", "pipedream", "pipedream-2bw"}[pick(0, 4)]);
  request.optimizer_bytes_per_parameter_byte = pick(0, 2);
  request.recompute = static_cast<Recompute>(pick(0, 2));
  if (pick(0, 2)) request.transfer = {double(pick(0, 2)), pick(0, 1) ? 2.0 : 0.5};
  if (pick(0, 3) == 0) request.transfer.all_reduce_bytes_per_second = pick(0, 1) ? 4 : 1;
  if (pick(0, 2)) request.memory_limit_bytes = static_cast<std::size_t>(pick(10, 160));
  request.replication = pick(0, 4) > 0;
  return request;
}

struct Counts {
  int compared = 0, infeasible = 0, replicated = 0, recomputed = 0, idle = 0;
};

// Compares one plan with the enumeration; the plan if there is one.
std::optional<Plan> compare(const ChainCosts& chain, const PlanRequest& request, double factor,
                            Counts& counts, const std::string& name) {
  const std::optional<PlainPlan> expected = Enumeration(chain, request).best();
  if (!expected) {
    ++counts.infeasible;
    try {
      plan_devices(chain, request);
      ADD_FAILURE() << name << " planned what does not fit";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource) << name << error.what();
    }
    return std::nullopt;
  }
  ++counts.compared;
  const Plan plan = plan_devices(chain, request);
  const bool asynchronous =
      request.schedule.name == "pipedream" || request.schedule.name == "pipedream-2bw";
  const bool mini_batch = request.objective == Objective::kMiniBatch ||
                          (request.objective == Objective::kAuto && !asynchronous);
  const double objective = mini_batch ? plan.mini_batch_seconds : plan.bottleneck_seconds;
  EXPECT_LE(objective, expected->objective * factor + 1e-9) << name;
  EXPECT_GE(objective, expected->objective * (1 - 1e-9) - 1e-9) << name;
  EXPECT_LE(plan.lower_bound_seconds, plan.bottleneck_seconds * (1 + 1e-9)) << name;
  EXPECT_LE(plan.mini_batch_bound_seconds, plan.mini_batch_seconds * (1 + 1e-9)) << name;
  EXPECT_LE(plan.mini_batch_bound_seconds, expected->objective * (1 + 1e-9)) << name;
  for (const StagePlan& stage : plan.stages) {
    counts.replicated += stage.replicas > 1;
    counts.recomputed += stage.recompute;
    if (request.memory_limit_bytes > 0) {
      EXPECT_LE(stage.memory.total(), request.memory_limit_bytes) << name;
    }
  }
  counts.idle += plan.devices() < request.devices;
  EXPECT_LE(plan.stages.back().first_device + plan.stages.back().replicas, request.devices) << name;
  return plan;
}

double peak_of(const Plan& plan) {
  double out = 0;
  for (const StagePlan& stage : plan.stages) {
    out = std::max(out, double(stage.memory.total()));
  }
  return out;
}

TEST(DevicePlanner, EqualsBruteForceOnEqualDevices) {
  Picker pick{std::mt19937(71)};
  Counts counts;
  for (int trial = 0; trial < 3000; ++trial) {
    const ChainCosts chain = random_chain(pick.random, pick(1, 6));
    PlanRequest request = random_request(pick);
    request.devices = pick(1, 5);
    request.objective = Objective::kThroughput;
    const std::string name = "trial " + std::to_string(trial);
    const std::optional<Plan> plan = compare(chain, request, 1 + 1e-9, counts, name);
    if (!plan) continue;
    // Ties: fewest devices, smallest peak, fewest bytes, earliest cuts.
    const std::optional<PlainPlan> expected = Enumeration(chain, request).best();
    EXPECT_EQ(plan->devices(), expected->devices) << name;
    if (request.recompute == Recompute::kAuto) continue;  // recomputes only where it must
    EXPECT_EQ(peak_of(*plan), expected->memory) << name;
    EXPECT_EQ(plan->cuts(), expected->cuts) << name;
  }
  EXPECT_GT(counts.compared, 600);
  EXPECT_GT(counts.infeasible, 60);
  EXPECT_GT(counts.replicated, 300);
  EXPECT_GT(counts.recomputed, 200);
  EXPECT_GT(counts.idle, 100);
}

TEST(DevicePlanner, EqualsBruteForceWhereReplicasShareUpdates) {
  Picker pick{std::mt19937(76)};
  Counts counts;
  int only_shared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const ChainCosts chain = random_chain(pick.random, pick(1, 5));
    PlanRequest request = random_request(pick);
    request.schedule = planned_schedule(std::vector<std::string>{"gpipe", "1f1b"}[pick(0, 1)]);
    request.devices = pick(1, 5);
    request.objective = Objective::kThroughput;
    request.memory_limit_bytes = static_cast<std::size_t>(pick(10, 120));
    request.replication = true;
    request.optimizer_bytes_per_parameter_byte = pick(1, 3);
    request.shared_bytes_per_parameter_byte =
        pick(1, static_cast<int>(request.optimizer_bytes_per_parameter_byte));
    if (pick(0, 2) == 0) {
      request.topology.levels = {
          {"bus", 5, request.transfer.bytes_per_second, request.transfer.latency_seconds}};
      for (int d = 0; d < 5; ++d) request.topology.device_speed.push_back(0.25 * pick(1, 4));
    }
    const std::string name = "trial " + std::to_string(trial);
    if (!compare(chain, request, 1 + 1e-9, counts, name)) continue;
    PlanRequest unshared = request;
    unshared.shared_bytes_per_parameter_byte = 0;
    only_shared += Enumeration(chain, unshared).best() ? 0 : 1;
  }
  EXPECT_GT(counts.compared, 600);
  EXPECT_GT(counts.infeasible, 60);
  EXPECT_GT(counts.replicated, 300);
  EXPECT_GT(only_shared, 20) << "what fits only because replicas share the updates";
}

TEST(DevicePlanner, EqualsBruteForceOnGroupsOfDevices) {
  Picker pick{std::mt19937(72)};
  Counts counts;
  for (int trial = 0; trial < 1500; ++trial) {
    const ChainCosts chain = random_chain(pick.random, pick(1, 4));
    PlanRequest request = random_request(pick);
    request.objective = Objective::kThroughput;
    const int inner = pick(2, 3);
    request.topology.levels = {{"inner", inner, pick(0, 1) ? 8.0 : 2.0, 0.25 * pick(0, 1)},
                               {"outer", 6 / inner, pick(0, 1) ? 1.0 : 0.25, 1.0 * pick(0, 1)}};
    request.devices = pick(2, 6);
    if (trial % 5 == 0 && chain.elements.size() < 4) {
      request.topology.levels = {{"pair", 2, 8, 0},
                                 {"server", 2, pick(0, 1) ? 2.0 : 4.0, 0.25 * pick(0, 1)},
                                 {"rack", 2, pick(0, 1) ? 1.0 : 0.25, 1.0 * pick(0, 1)}};
      request.devices = pick(3, 8);
    }
    for (TopologyLevel& level : request.topology.levels) {
      if (pick(0, 2) == 0)
        level.all_reduce_bytes_per_second = level.bytes_per_second * (pick(0, 1) ? 4 : 0.5);
    }
    compare(chain, request, 1 + 1e-9, counts, "trial " + std::to_string(trial));
  }
  EXPECT_GT(counts.compared, 250);
  EXPECT_GT(counts.replicated, 100);
}

TEST(DevicePlanner, EqualsBruteForceOnUnequalDevices) {
  Picker pick{std::mt19937(73)};
  Counts counts;
  for (int trial = 0; trial < 800; ++trial) {
    const ChainCosts chain = random_chain(pick.random, pick(1, 5));
    PlanRequest request = random_request(pick);
    request.objective = Objective::kThroughput;
    request.devices = pick(1, 5);
    request.topology.levels = {
        {"bus", 5, request.transfer.bytes_per_second, request.transfer.latency_seconds}};
    for (int d = 0; d < 5; ++d) request.topology.device_speed.push_back(0.25 * pick(1, 4));
    compare(chain, request, 1 + 1e-9, counts, "trial " + std::to_string(trial));
  }
  EXPECT_GT(counts.compared, 150);
  EXPECT_GT(counts.idle, 20);
}

TEST(DevicePlanner, MiniBatchIsWithinThreePercentOfTheBest) {
  Picker pick{std::mt19937(74)};
  Counts counts;
  for (int trial = 0; trial < 2000; ++trial) {
    const ChainCosts chain = random_chain(pick.random, pick(1, 6));
    PlanRequest request = random_request(pick);
    request.schedule =
        planned_schedule(std::vector<std::string>{"gpipe", "1f1b", "1f1b-auto"}[pick(0, 2)]);
    request.devices = pick(1, 5);
    compare(chain, request, 1.03, counts, "trial " + std::to_string(trial));
  }
  EXPECT_GT(counts.compared, 300);
  EXPECT_GT(counts.replicated, 100);
}

TEST(DevicePlanner, KeepsTheNumberOfStagesThatIsAskedFor) {
  Picker pick{std::mt19937(75)};
  Counts counts;
  for (int trial = 0; trial < 800; ++trial) {
    const ChainCosts chain = random_chain(pick.random, 5);
    PlanRequest request = random_request(pick);
    request.devices = pick(2, 5);
    request.stages = pick(1, request.devices);
    request.objective = Objective::kThroughput;
    const auto plan = compare(chain, request, 1 + 1e-9, counts, "trial " + std::to_string(trial));
    if (!plan) continue;
    EXPECT_EQ(static_cast<int>(plan->stages.size()), request.stages);
  }
  EXPECT_GT(counts.compared, 100);
}

double throughput_of(const ChainCosts& chain, const PlanRequest& request) {
  try {
    return plan_devices(chain, request).bottleneck_seconds;
  } catch (const Error&) {
    return INFINITY;
  }
}

TEST(DevicePlanner, IsMonotone) {
  std::mt19937 random(81);
  for (int trial = 0; trial < 60; ++trial) {
    const ChainCosts chain = random_chain(random, 12);
    PlanRequest request;
    request.stages = 0;
    request.schedule = planned_schedule(trial % 2 ? "pipedream" : "1f1b");
    request.micro_batches = trial % 2 ? 1 : 8;
    request.objective = Objective::kThroughput;
    request.transfer = {0.5, 2};
    request.memory_limit_bytes = 300;
    double before = INFINITY;
    for (const int devices : {1, 2, 3, 4, 6, 9, 16, 40}) {
      request.devices = devices;
      const double now = throughput_of(chain, request);
      EXPECT_LE(now, before * (1 + 1e-9)) << "trial " << trial << ", " << devices << " devices";
      before = now;
    }
    request.devices = 6;
    before = INFINITY;
    for (const double bandwidth : {0.25, 1.0, 4.0, 64.0, 1e9}) {
      request.transfer.bytes_per_second = bandwidth;
      const double now = throughput_of(chain, request);
      EXPECT_LE(now, before * (1 + 1e-9)) << "trial " << trial << ", bandwidth " << bandwidth;
      before = now;
    }
    before = INFINITY;
    for (std::size_t limit = 40; limit < 900; limit += 50) {
      request.memory_limit_bytes = limit;
      const double now = throughput_of(chain, request);
      EXPECT_LE(now, before * (1 + 1e-9)) << "trial " << trial << ", limit " << limit;
      before = now;
    }
    EXPECT_LT(before, INFINITY);
  }
}

TEST(DevicePlanner, GivesTheSamePlanEveryTime) {
  std::mt19937 random(82);
  for (int trial = 0; trial < 20; ++trial) {
    const ChainCosts chain = random_chain(random, 30);
    PlanRequest request;
    request.stages = 0;
    request.devices = 8;
    request.micro_batches = 16;
    request.transfer = {0.25, 4};
    request.schedule = planned_schedule(trial % 2 ? "pipedream" : "1f1b");
    request.memory_limit_bytes = 600;
    if (trial % 3 == 0) request.topology.levels = {{"inner", 4, 8, 0}, {"outer", 2, 1, 0}};
    const Plan plan = plan_devices(chain, request), again = plan_devices(chain, request);
    ASSERT_EQ(plan.stages.size(), again.stages.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(plan.stages[i].first, again.stages[i].first);
      EXPECT_EQ(plan.stages[i].first_device, again.stages[i].first_device);
      EXPECT_EQ(plan.stages[i].replicas, again.stages[i].replicas);
      EXPECT_EQ(plan.stages[i].recompute, again.stages[i].recompute);
    }
  }
}

ChainCosts equal_blocks(int count, std::size_t parameter_bytes) {
  ChainCosts chain;
  for (int i = 0; i < count; ++i) {
    ChainCost element;
    element.name = "block" + std::to_string(i);
    element.forward_seconds = element.input_gradient_seconds = element.weight_gradient_seconds = 1;
    element.parameter_bytes = parameter_bytes;
    element.saved_bytes = 1000;
    chain.elements.push_back(element);
  }
  chain.forward_bytes.assign(static_cast<std::size_t>(count) + 1, 100);
  chain.backward_bytes = chain.forward_bytes;
  return chain;
}

TEST(DevicePlanner, ReplicatesOneBlockPerfectly) {
  PlanRequest request;
  request.stages = 0;
  request.devices = 4;
  request.schedule = planned_schedule("pipedream");
  const Plan plan = plan_devices(equal_blocks(1, 100), request);
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].replicas, 4);
  EXPECT_DOUBLE_EQ(plan.bottleneck_seconds, 0.75);
  EXPECT_NEAR(plan.gap(), 0, 1e-12);
  EXPECT_EQ(plan.devices(), 4);
  EXPECT_EQ(plan.stages[0].weight_versions, 1);  // replicas of one stage run in step
  EXPECT_GT(plan.planning_seconds, 0);
}

TEST(DevicePlanner, SaysWhyDevicesStayIdle) {
  PlanRequest request;
  request.stages = 0;
  request.devices = 8;
  request.schedule = planned_schedule("1f1b");
  request.micro_batches = 2;
  request.objective = Objective::kThroughput;
  const Plan plan = plan_devices(equal_blocks(1, 0), request);
  EXPECT_EQ(plan.devices(), 2);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("2 of 8 devices are used: stage 0 (block0) already has a replica "
                               "for each of the 2 micro-batches"),
            std::string::npos)
      << plan.notes[0];
  request.replication = false;
  const Plan single = plan_devices(equal_blocks(2, 0), request);
  ASSERT_EQ(single.notes.size(), 1u);
  EXPECT_NE(single.notes[0].find("cannot be divided further and replication is off"),
            std::string::npos)
      << single.notes[0];
}

TEST(DevicePlanner, ExplainsEveryCut) {
  PlanRequest request;
  request.stages = 0;
  request.devices = 4;
  request.replication = false;
  request.schedule = planned_schedule("pipedream");
  request.topology.levels = {{"NVLink", 2, 1000, 0}, {"network", 2, 500, 0}};
  const Plan plan = plan_devices(equal_blocks(8, 0), request);
  ASSERT_EQ(plan.cut_reasons.size(), 3u);
  EXPECT_NE(plan.cut_reasons[0].find("backward over NVLink"), std::string::npos);
  EXPECT_NE(plan.cut_reasons[1].find("backward over network"), std::string::npos);
  EXPECT_NE(plan.cut_reasons[0].find("one node earlier, the slower stage would take"),
            std::string::npos);
}

TEST(DevicePlanner, SaysWhatFitsWhenMemoryIsShort) {
  PlanRequest request;
  request.stages = 0;
  request.devices = 2;
  request.micro_batches = 8;
  request.recompute = Recompute::kNone;
  request.schedule = planned_schedule("gpipe");
  request.memory_limit_bytes = 13000;
  try {
    plan_devices(equal_blocks(4, 100), request);
    FAIL() << "planned what does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    const std::string& text = error.message();
    EXPECT_NE(text.find("no plan on 2 devices fits in 12.7 KiB"), std::string::npos) << text;
    EXPECT_NE(text.find("`recompute` auto"), std::string::npos) << text;
    EXPECT_NE(text.find("8 in flight x"), std::string::npos) << text;
    EXPECT_NE(text.find("4 devices (8.20 KiB)"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  // The advice is true.
  PlanRequest more = request;
  more.recompute = Recompute::kAuto;
  EXPECT_NO_THROW(plan_devices(equal_blocks(4, 100), more));
  more = request;
  more.devices = 4;
  EXPECT_NO_THROW(plan_devices(equal_blocks(4, 100), more));
  request.memory_limit_bytes = 10;
  try {
    plan_devices(equal_blocks(4, 100), request);
    FAIL() << "planned what does not fit";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("reduce `batch-size`"), std::string::npos) << error.message();
  }
}

TEST(DevicePlanner, RefusesImpossibleRequests) {
  const ChainCosts chain = equal_blocks(3, 10);
  PlanRequest request;
  request.stages = 0;
  request.devices = 16;
  request.topology = {"small", {{"bus", 8, 1e9, 0}}, 0, 0, 0, {}};
  EXPECT_THROW(plan_devices(chain, request), Error);  // more devices than the topology has
  request.topology = {};
  request.stages = 4;
  EXPECT_THROW(plan_devices(chain, request), Error);  // more stages than nodes
  request.stages = 0;
  request.devices = -1;
  EXPECT_THROW(plan_devices(chain, request), Error);
  request.devices = 2;
  request.topology.device_speed = {1, 0};
  EXPECT_THROW(plan_devices(chain, request), Error);
  request.topology = {"bad", {{"bus", 2, 0, 0}}, 0, 0, 0, {}};
  EXPECT_THROW(plan_devices(chain, request), Error);
}

TEST(DevicePlanner, HandlesHundredsOfDevices) {
  std::mt19937 random(83);
  const ChainCosts chain = random_chain(random, 400);
  PlanRequest request;
  request.stages = 0;
  request.devices = 512;
  request.schedule = planned_schedule("pipedream");
  request.transfer = {0.01, 100};
  request.memory_limit_bytes = 60000;
  const Plan plan = plan_devices(chain, request);
  EXPECT_LE(plan.devices(), 512);
  EXPECT_GE(plan.devices(), 500);
  for (const StagePlan& stage : plan.stages) EXPECT_LE(stage.memory.total(), 60000u);
}

}  // namespace
}  // namespace pipetrain
