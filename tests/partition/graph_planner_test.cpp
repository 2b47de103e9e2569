// Orders of a network, exact cut traffic, and the best plan over all orders, against enumerations.
#include "partition/graph_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "base/error.h"
#include "partition/ideals.h"
#include "partition/orders.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

// Small integers, so that sums are exact; every node reads some of the few before it.
CostGraph random_graph(std::mt19937& random, int count, int reach) {
  const auto up_to = [&](int most) { return static_cast<int>(random() % unsigned(most + 1)); };
  CostGraph graph;
  for (int i = 0; i < count; ++i) {
    CostNode node;
    node.name = "op" + std::to_string(i);
    node.forward_seconds = up_to(8);
    node.input_gradient_seconds = up_to(8);
    node.weight_gradient_seconds = up_to(8);
    node.parameter_bytes = static_cast<std::size_t>(up_to(9));
    node.saved_bytes = static_cast<std::size_t>(up_to(9));
    node.transient_bytes = static_cast<std::size_t>(up_to(4));
    node.output_bytes = static_cast<std::size_t>(up_to(12));
    node.gradient_bytes = static_cast<std::size_t>(up_to(12));
    for (int input = std::max(0, i - reach); input < i; ++input) {
      if (up_to(2) == 0) node.inputs.push_back(input);
    }
    graph.nodes.push_back(node);
  }
  return graph;
}

bool inputs_first(const CostGraph& graph, const std::vector<int>& order) {
  std::vector<int> position(graph.nodes.size(), -1);
  for (std::size_t at = 0; at < order.size(); ++at) position[order[at]] = static_cast<int>(at);
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    if (position[node] < 0) return false;
    for (const int input : graph.nodes[node].inputs) {
      if (position[input] >= position[node]) return false;
    }
  }
  return order.size() == graph.nodes.size();
}

TEST(CostGraph, ATensorCrossesEveryCutThatItSpansOnce) {
  CostGraph graph;
  graph.nodes.resize(4);
  for (int i = 0; i < 4; ++i) {
    graph.nodes[i].name = "n" + std::to_string(i);
    graph.nodes[i].output_bytes = std::size_t{1} << (4 * i);
    graph.nodes[i].gradient_bytes = std::size_t{2} << (4 * i);
  }
  graph.nodes[1].inputs = {0};
  graph.nodes[2].inputs = {0, 1};
  graph.nodes[3].inputs = {0};  // nobody reads nodes 2 and 3
  const ChainCosts chain = chain_of(graph, std::vector<int>{0, 1, 2, 3});
  EXPECT_EQ(chain.forward_bytes, (std::vector<std::size_t>{0, 0x1, 0x11, 0x1, 0}));
  EXPECT_EQ(chain.backward_bytes, (std::vector<std::size_t>{0, 0x2, 0x22, 0x2, 0}));
  EXPECT_EQ(chain.elements[2].name, "n2");
  const ChainCosts other = chain_of(graph, std::vector<int>{0, 3, 1, 2});
  EXPECT_EQ(other.forward_bytes, (std::vector<std::size_t>{0, 0x1, 0x1, 0x11, 0}));
}

TEST(CostGraph, RefusesOrdersThatAreNone) {
  CostGraph graph;
  graph.nodes.resize(3);
  graph.nodes[2].inputs = {1};
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1}, {0, 1, 1}, {0, 2, 1}, {0, 1, 3}, {-1, 1, 2}}) {
    EXPECT_THROW(chain_of(graph, order), Error);
  }
  graph.nodes[1].inputs = {2};
  try {
    plan_graph(graph, {});
    FAIL() << "planned a cycle";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(error.message().find("cycle"), std::string::npos);
  }
  graph.nodes[1].inputs = {7};
  EXPECT_THROW(plan_graph(graph, {}), Error);
  EXPECT_THROW(plan_graph({}, {}), Error);
}

TEST(Orders, ArePermutationsWithInputsFirst) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    CostGraph graph = random_graph(random, 1 + trial % 30, 1 + trial % 9);
    const auto orders = order_portfolio(graph, 9);
    std::set<std::vector<int>> distinct;
    for (const std::vector<int>& order : orders) {
      EXPECT_TRUE(inputs_first(graph, order));
      distinct.insert(order);
    }
    EXPECT_EQ(distinct.size(), orders.size());
    EXPECT_EQ(order_portfolio(graph, 9), orders);  // the same every time
    std::vector<int> numbers(graph.nodes.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i);
    EXPECT_EQ(numbered_order(graph), numbers);
  }
}

TEST(Orders, SmallestCutFinishesABranchBeforeTheNext) {
  // Two branches that end in little: depth first within each keeps one large tensor alive at a
  // time.
  CostGraph graph;
  graph.nodes.resize(8);
  for (CostNode& node : graph.nodes) node.output_bytes = 100;
  graph.nodes[0].output_bytes = 1;
  for (const int branch : {1, 4}) {
    graph.nodes[branch].inputs = {0};
    graph.nodes[branch + 1].inputs = {branch};
    graph.nodes[branch + 2].inputs = {branch + 1};
    graph.nodes[branch + 2].output_bytes = 1;
  }
  graph.nodes[7].inputs = {3, 6};
  const ChainCosts chain = chain_of(graph, smallest_cut_order(graph));
  EXPECT_LE(*std::max_element(chain.forward_bytes.begin(), chain.forward_bytes.end()), 102u);
  const ChainCosts wide = chain_of(graph, breadth_first_order(graph));
  EXPECT_GE(*std::max_element(wide.forward_bytes.begin(), wide.forward_bytes.end()), 200u);
}

TEST(Ideals, AreCountedExactly) {
  const auto count = [](const CostGraph& graph) {
    return IdealRanges::of(graph, 5000)->count() + 1;
  };
  CostGraph chain, loose, branches;
  chain.nodes.resize(20);
  for (int i = 1; i < 20; ++i) chain.nodes[i].inputs = {i - 1};
  EXPECT_EQ(count(chain), 21);
  loose.nodes.resize(10);
  EXPECT_EQ(count(loose), 1024);
  // Two chains of 9 between a source and a sink: 10 x 10 and the empty and the full set.
  branches.nodes.resize(20);
  for (int i = 1; i < 19; ++i) branches.nodes[i].inputs = {i == 10 ? 0 : i - 1};
  branches.nodes[19].inputs = {9, 18};
  EXPECT_EQ(count(branches), 102);
  EXPECT_FALSE(IdealRanges::of(branches, 101));
}

// Every way to give nodes to stages so that no node reads a later stage, priced by definition; one
// device a stage.
double best_assignment(const CostGraph& graph, const PlanRequest& request) {
  const int count = static_cast<int>(graph.nodes.size());
  double best = INFINITY;
  std::vector<int> stage(count, 0);
  const auto price = [&](int stages) {
    std::vector<double> seconds(stages, 0), saved(stages, 0), weights(stages, 0),
        transient(stages, 0);
    std::vector<double> forward(stages + 1, 0), backward(stages + 1, 0);  // over cut s
    for (int i = 0; i < count; ++i) {
      const CostNode& node = graph.nodes[i];
      seconds[stage[i]] +=
          node.forward_seconds + node.input_gradient_seconds + node.weight_gradient_seconds;
      saved[stage[i]] += double(node.saved_bytes);
      weights[stage[i]] += double(node.parameter_bytes);
      transient[stage[i]] = std::max(transient[stage[i]], double(node.transient_bytes));
      int last = stage[i];
      for (int j = 0; j < count; ++j) {
        const std::vector<int>& inputs = graph.nodes[j].inputs;
        if (std::find(inputs.begin(), inputs.end(), i) != inputs.end()) {
          last = std::max(last, stage[j]);
        }
      }
      for (int cut = stage[i] + 1; cut <= last; ++cut) {
        forward[cut] += double(node.output_bytes);
        backward[cut] += double(node.gradient_bytes);
      }
    }
    double slowest = 0;
    for (int s = 0; s < stages; ++s) {
      const int depth = stages - s;  // pipedream: so many versions and activations
      const double memory = weights[s] * (depth + 1 + request.optimizer_bytes_per_parameter_byte) +
                            transient[s] + saved[s] * depth;
      if (request.memory_limit_bytes > 0 && memory > double(request.memory_limit_bytes)) return;
      for (const int cut : {s, s + 1}) {
        for (const double bytes : {forward[cut], backward[cut]}) {
          if (bytes > 0) seconds[s] += bytes / request.transfer.bytes_per_second;
        }
      }
      slowest = std::max(slowest, seconds[s]);
    }
    best = std::min(best, slowest);
  };
  const std::function<void(int, int)> assign = [&](int node, int stages) {
    if (node == count) {
      for (int s = 0; s < stages; ++s) {
        if (std::find(stage.begin(), stage.end(), s) == stage.end()) return;
      }
      price(stages);
      return;
    }
    int least = 0;
    for (const int input : graph.nodes[node].inputs) least = std::max(least, stage[input]);
    for (int s = least; s < stages; ++s) {
      stage[node] = s;
      assign(node + 1, stages);
    }
  };
  for (int stages = 1; stages <= request.devices; ++stages) assign(0, stages);
  return best;
}

TEST(GraphPlanner, EqualsTheBestAssignmentOfNodesToStages) {
  std::mt19937 random(17);
  int compared = 0, infeasible = 0;
  for (int trial = 0; trial < 250; ++trial) {
    const CostGraph graph = random_graph(random, 3 + trial % 6, 5);
    PlanRequest request;
    request.stages = 0;
    request.devices = 1 + trial % 3;
    request.schedule = planned_schedule("pipedream");
    request.replication = false;
    request.recompute = Recompute::kNone;
    request.transfer.bytes_per_second = trial % 2 ? 1.0 : 8.0;
    if (trial % 3 == 0) request.memory_limit_bytes = 60 + 5 * (trial % 20);
    const double expected = best_assignment(graph, request);
    if (expected == INFINITY) {
      ++infeasible;
      EXPECT_THROW(plan_graph(graph, request), Error) << trial;
      continue;
    }
    ++compared;
    const GraphPlan plan = plan_graph(graph, request);
    EXPECT_TRUE(plan.exact);
    EXPECT_TRUE(inputs_first(graph, plan.order));
    EXPECT_NEAR(plan.plan.bottleneck_seconds, expected, 1e-9 * expected) << trial;
  }
  EXPECT_GT(compared, 200);
  EXPECT_GT(infeasible, 5);
}

TEST(GraphPlanner, IsNeverWorseThanAnyOneOrder) {
  std::mt19937 random(23);
  for (int trial = 0; trial < 6; ++trial) {
    // Wide enough that not all ideals can be looked at.
    const CostGraph graph = random_graph(random, 60, 3 + 5 * trial);
    PlanRequest request;
    request.stages = 0;
    request.devices = 6;
    request.schedule = planned_schedule("pipedream");
    request.transfer.bytes_per_second = 4;
    const GraphPlan plan = plan_graph(graph, request);
    for (const std::vector<int>& order : order_portfolio(graph, 3)) {
      const Plan other = plan_devices(chain_of(graph, order), request);
      EXPECT_LE(plan.plan.bottleneck_seconds, other.bottleneck_seconds * (1 + 1e-6));
    }
    EXPECT_EQ(plan_graph(graph, request).order, plan.order);
  }
}

}  // namespace
}  // namespace pipetrain
