#include "partition/pipedream_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "partition/orders.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

const std::filesystem::path kGraphs =
    std::filesystem::path(PIPETRAIN_SOURCE_DIR) / "tests/data/pipedream";

PipeDreamProfile published(const std::string& model) {
  return read_pipedream_profile(kGraphs / model / "graph.txt");
}

PlanRequest flat_request(int devices, double bytes_per_second = 1e9) {
  PlanRequest request;
  request.stages = 0;
  request.schedule = planned_schedule("pipedream");
  request.recompute = Recompute::kNone;
  request.devices = devices;
  request.transfer.bytes_per_second = bytes_per_second;
  return request;
}

std::string node(const std::string& name, const std::string& description, double bytes,
                 double parameters = 0) {
  return fmt::format(
      "{} -- {} -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size={:.1f}, "
      "parameter_size={:.1f}\n",
      name, description, bytes, parameters);
}

TEST(PipeDreamGraph, TakesTheProfilesNumbers) {
  const CostGraph graph = cost_graph_of(parse_pipedream_profile(
      node("in", "Input", 1000) + node("a", "Linear(3, 3)", 100, 36) + node("b", "ReLU", 10) +
          node("c", "Concat(1)", 100) + "\tin -- a\n\ta -- b\n\tb -- c\n\ta -- c\n\ta -- c\n",
      "graph.txt"));
  ASSERT_EQ(graph.nodes.size(), 4U);
  // Inputs are free.
  EXPECT_EQ(graph.nodes[0].output_bytes, 0U);
  EXPECT_EQ(graph.nodes[0].forward_seconds, 0);
  const CostNode& linear = graph.nodes[1];
  EXPECT_EQ(linear.forward_seconds, 1e-3);
  EXPECT_EQ(linear.input_gradient_seconds + linear.weight_gradient_seconds, 2e-3);
  EXPECT_GT(linear.weight_gradient_seconds, 0);
  EXPECT_EQ(linear.parameter_bytes, 36U);
  EXPECT_EQ(linear.inputs, (std::vector<int>{0}));
  EXPECT_EQ(graph.nodes[2].weight_gradient_seconds, 0);
  // All that is joined, each input once.
  EXPECT_EQ(graph.nodes[3].output_bytes, 110U);
  EXPECT_EQ(graph.nodes[3].gradient_bytes, 110U);
  EXPECT_EQ(graph.nodes[3].inputs, (std::vector<int>{1, 2}));
}

// A diamond S -> {A, B} -> J, cut behind A and B: their outputs cross and the fork's does not.
TEST(PipeDreamGraph, ACutIsChargedWhatCrossesIt) {
  const CostGraph graph = cost_graph_of(
      parse_pipedream_profile(node("S", "S", 1000) + node("A", "A", 10) + node("B", "B", 1) +
                                  node("J", "J", 5) + "\tS -- A\n\tS -- B\n\tA -- J\n\tB -- J\n",
                              "diamond"));
  const std::vector<int> order = {0, 1, 2, 3};
  EXPECT_EQ(chain_of(graph, order).forward_bytes[3], 11U);
  EXPECT_EQ(chain_of(graph, order).forward_bytes[2], 1010U);
}

TEST(PipeDreamGraph, NeverSlowerThanPipeDreamsPlan) {
  for (const char* model :
       {"vgg16", "alexnet", "gnmt", "gnmt_large", "resnet18", "resnet50", "resnet101", "resnext50",
        "resnext101", "densenet121", "squeezenet1_0"}) {
    const PipeDreamProfile profile = published(model);
    const CostGraph graph = cost_graph_of(profile);
    for (const int devices : {2, 4, 8, 16}) {
      CompatRequest wanted;
      wanted.levels = {{devices, 1e9}};
      wanted.activation_compression = 1;
      const CompatPlan compat = plan_like_pipedream(profile, wanted);
      const PlanRequest request = flat_request(devices);
      const GraphPlan known = price_compat_plan(profile, graph, compat, request);
      EXPECT_EQ(known.plan.stages.size(), compat.stages.size());
      // One level: the planner alone is as fast.
      const double start = thread_cpu_seconds();
      const GraphPlan own = plan_graph(graph, request);
      EXPECT_LE(thread_cpu_seconds() - start, 5) << model;
      EXPECT_LE(own.plan.bottleneck_seconds, known.plan.bottleneck_seconds * (1 + 1e-9))
          << model << " on " << devices;
    }
  }
}

TEST(PipeDreamGraph, NeverSlowerThanPipeDreamsPlanOnItsClusters) {
  Topology cluster;
  cluster.levels = {{"inside", 4, 1e10, 0}, {"between", 4, 1e9, 0}};
  for (const char* model : {"vgg16", "alexnet", "gnmt", "resnet50"}) {
    const PipeDreamProfile profile = published(model);
    const CostGraph graph = cost_graph_of(profile);
    CompatRequest wanted;
    wanted.levels = {{4, 1e10}, {4, 1e9}};
    wanted.activation_compression = 1;
    PlanRequest request = flat_request(16);
    request.topology = cluster;
    const GraphPlan known =
        price_compat_plan(profile, graph, plan_like_pipedream(profile, wanted), request);
    const GraphPlan own = plan_not_slower_than(known, graph, request);
    EXPECT_LE(own.plan.bottleneck_seconds, known.plan.bottleneck_seconds) << model;
    EXPECT_LE(own.plan.devices(), 16) << model;
  }
}

// Two servers of two: a pipeline of two stages in each of them, whose sums go over the network.
TEST(PipeDreamGraph, PipeDreamsPlacementIsPricedAsItLies) {
  const PipeDreamProfile profile = parse_pipedream_profile(
      node("a", "Linear", 100, 40) + node("b", "Linear", 0, 80) + "\ta -- b\n", "graph.txt");
  const CostGraph graph = cost_graph_of(profile);
  PlanRequest request = flat_request(4);
  request.topology.levels = {{"inside", 2, 1e5, 1e-3}, {"between", 2, 1e4, 1e-2, 2e4}};
  CompatPlan compat;
  compat.stages.resize(2);
  compat.stages[0] = {{0}, 2, {1, 2}, -1, 0.003};
  compat.stages[1] = {{1}, 2, {1, 2}, 0, 0.003};
  compat.stage_of_node = {0, 1};
  const Plan plan = price_compat_plan(profile, graph, compat, request).plan;
  ASSERT_EQ(plan.stages.size(), 2U);
  // 100 bytes there and back inside; 2 (2 - 1) / 2 of the weights between, at the rate of sums, and
  // two latencies.
  EXPECT_NEAR(plan.stages[0].transfer_seconds, 2 * (1e-3 + 100 / 1e5), 1e-12);
  EXPECT_NEAR(plan.stages[1].all_reduce_seconds, 80 / 2e4 + 2 * 1e-2, 1e-12);
  EXPECT_NEAR(plan.bottleneck_seconds, (0.003 + 0.004 + 0.024) / 2, 1e-12);
}

// PipeDream's own planner runs out of memory here.
TEST(PipeDreamGraph, NetworksOfManyBranches) {
  for (const char* model : {"inception_v3", "nasnetamobile", "nasnetalarge"}) {
    const CostGraph graph = cost_graph_of(published(model));
    for (const int devices : {4, 8, 16}) {
      const double start = thread_cpu_seconds();
      const GraphPlan own = plan_graph(graph, flat_request(devices));
      EXPECT_LE(thread_cpu_seconds() - start, 5) << model << " on " << devices;
      EXPECT_LT(own.plan.gap(), 1) << model << " on " << devices;
      EXPECT_EQ(own.order.size(), graph.nodes.size());
    }
  }
}

// The same where links are of two or three speeds, which the planner must tell apart.
TEST(PipeDreamGraph, NetworksOfManyBranchesOnServers) {
  const CostGraph graph = cost_graph_of(published("nasnetalarge"));
  const TopologyLevel pcie{"PCIe", 4, 15.75e9, 1e-5}, pair{"pair", 2, 15.75e9, 1e-5},
      socket{"socket", 2, 5e9, 1e-5}, network{"network", 4, 1.25e9, 5e-5};
  for (const std::vector<TopologyLevel>& levels :
       {std::vector<TopologyLevel>{pcie, network}, {pair, socket, network}}) {
    PlanRequest request = flat_request(16);
    request.topology.levels = levels;
    const double start = thread_cpu_seconds();
    const GraphPlan own = plan_graph(graph, request);
    // A search that has lost its way takes minutes; how long it takes is bench/planner_bench's to
    // say.
    EXPECT_LE(thread_cpu_seconds() - start, 15) << levels.size();
    EXPECT_LT(own.plan.gap(), 0.5) << levels.size();
    // No slower than any one order would be, among them the portfolio's first ones.
    const Plan first = plan_devices(chain_of(graph, smallest_cut_order(graph)), request);
    EXPECT_LE(own.plan.bottleneck_seconds, first.bottleneck_seconds * (1 + 1e-6)) << levels.size();
  }
}

// A plan that lies where the planner never puts a stage: 3 of 4 devices from the middle of a group.
TEST(PipeDreamGraph, TakesTheKnownPlanWhereItIsBetter) {
  const PipeDreamProfile profile =
      parse_pipedream_profile(node("a", "A", 0) + node("b", "B", 0) + "\ta -- b\n", "graph.txt");
  CostGraph graph = cost_graph_of(profile);
  graph.nodes[0].forward_seconds = 0.999;
  graph.nodes[1].forward_seconds = 3.0;
  PlanRequest request = flat_request(4);
  request.topology.levels = {{"inside", 2, 1e9, 0}, {"between", 2, 1e9, 0}};
  CompatPlan compat;
  compat.stages.resize(2);
  compat.stages[0] = {{0}, 1, {1}, -1, 1};
  compat.stages[1] = {{1}, 3, {3}, 0, 3};
  compat.stage_of_node = {0, 1};
  const GraphPlan known = price_compat_plan(profile, graph, compat, request);
  EXPECT_NEAR(known.plan.bottleneck_seconds, 1.001, 1e-3);
  const GraphPlan own = plan_not_slower_than(known, graph, request);
  EXPECT_LE(own.plan.bottleneck_seconds, known.plan.bottleneck_seconds);
  // And the planner's own where that is.
  compat.stages = {{{0, 1}, 1, {1}, -1, 4}};
  compat.stage_of_node = {0, 0};
  const GraphPlan slow = price_compat_plan(profile, graph, compat, request);
  EXPECT_LT(plan_not_slower_than(slow, graph, request).plan.bottleneck_seconds,
            slow.plan.bottleneck_seconds);
}

// All ideals of a network of at most 64 nodes, and the best way through them by the plainest
// dynamic program.
class IdealReference {
 public:
  explicit IdealReference(const CostGraph& graph) : graph_(graph), readers_(readers_of(graph)) {
    std::set<std::uint64_t> found = {0};
    std::vector<std::uint64_t> queue = {0};
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
        const std::uint64_t bit = std::uint64_t{1} << n;
        const auto& inputs = graph.nodes[n].inputs;
        const bool is_ready = std::all_of(inputs.begin(), inputs.end(),
                                          [&](int input) { return (queue[i] >> input & 1) != 0; });
        if ((queue[i] & bit) != 0 || !is_ready) continue;
        if (found.insert(queue[i] | bit).second) queue.push_back(queue[i] | bit);
      }
    }
    ideals_.assign(found.begin(), found.end());
    for (const std::uint64_t ideal : ideals_) {
      seconds_.push_back(seconds(ideal));
      cut_bytes_.push_back(cut_bytes(ideal));
    }
  }

  std::size_t count() const { return ideals_.size(); }

  double best(int stages, double bytes_per_second) const {
    const double never = std::numeric_limits<double>::infinity();
    std::vector<double> slowest(count(), never);
    slowest[0] = 0;
    for (int s = 0; s < stages; ++s) {
      // Fewer stages are allowed: an ideal may keep its value.
      std::vector<double> next = slowest;
      for (std::size_t b = 0; b < count(); ++b) {
        if (s + 1 == stages && b + 1 != count()) continue;
        for (std::size_t a = 0; a < b; ++a) {
          if (slowest[a] >= next[b] || (ideals_[a] & ~ideals_[b]) != 0) continue;
          const double stage =
              seconds_[b] - seconds_[a] + 2 * (cut_bytes_[a] + cut_bytes_[b]) / bytes_per_second;
          next[b] = std::min(next[b], std::max(slowest[a], stage));
        }
      }
      slowest = std::move(next);
    }
    return slowest.back();
  }

 private:
  double seconds(std::uint64_t ideal) const {
    double sum = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const CostNode& from = graph_.nodes[n];
      if ((ideal >> n & 1) == 0) continue;
      sum += from.forward_seconds + from.input_gradient_seconds + from.weight_gradient_seconds;
    }
    return sum;
  }
  double cut_bytes(std::uint64_t ideal) const {
    double sum = 0;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& readers = readers_[n];
      const bool crosses = (ideal >> n & 1) != 0 &&
                           std::any_of(readers.begin(), readers.end(),
                                       [&](int reader) { return (ideal >> reader & 1) == 0; });
      if (crosses) sum += static_cast<double>(graph_.nodes[n].output_bytes);
    }
    return sum;
  }

  const CostGraph& graph_;
  std::vector<std::vector<int>> readers_;
  std::vector<std::uint64_t> ideals_;
  std::vector<double> seconds_, cut_bytes_;
};

TEST(PipeDreamGraph, GnmtIsPlannedAsWellAsAnyOrderAllows) {
  const CostGraph graph = cost_graph_of(published("gnmt"));
  const IdealReference reference(graph);
  for (const int devices : {2, 4}) {
    for (const double bytes_per_second : {1e9, 1e10}) {
      PlanRequest request = flat_request(devices, bytes_per_second);
      request.replication = false;
      const GraphPlan own = plan_graph(graph, request);
      const double best = reference.best(devices, bytes_per_second);
      EXPECT_NEAR(own.plan.bottleneck_seconds, best, 1e-6 * best) << devices;
      EXPECT_TRUE(own.exact);
    }
  }
}

}  // namespace
}  // namespace pipetrain
