// Attribution on a graph drawn by hand: every number is known.
#include <gtest/gtest.h>

#include <vector>

#include "graph/op.h"
#include "passes/linearise.h"
#include "profile/profile.h"

namespace pipetrain {
namespace {

const OpDef kWork{.name = "Work"};
const OpDef kReshaped{.name = "Reshaped", .flags = kView};

class HandMadeGraph {
 public:
  TrainingGraph training;
  Profile profile;

  ValueId value(const char* name, Role role, std::int64_t floats) {
    Value v;
    v.name = name;
    v.role = role;
    v.type = {DType::kFloat32, Shape{floats}};
    training.graph.values.push_back(v);
    return {static_cast<int>(training.graph.values.size()) - 1};
  }

  NodeId node(const char* name, Part part, double seconds, std::vector<ValueId> inputs,
              std::vector<ValueId> outputs, NodeId gradient_of = {}, const OpDef* op = &kWork) {
    Node n;
    n.op = op;
    n.name = name;
    n.part = part;
    n.gradient_of = gradient_of;
    n.inputs = std::move(inputs);
    n.outputs = std::move(outputs);
    const NodeId id{static_cast<int>(training.graph.nodes.size())};
    for (const ValueId output : n.outputs) training.graph[output].producer = id;
    training.graph.nodes.push_back(n);
    profile.node_seconds.push_back(seconds);
    profile.workspace_bytes.push_back(0);
    return id;
  }
};

// a(x, w) → h0 —view→ v;  b(v) → h1;  c(h1, prepared w) → loss;  w is tied: used by a and,
// prepared, by c.
HandMadeGraph tied_graph() {
  HandMadeGraph g;
  const ValueId x = g.value("x", Role::kInput, 8);
  const ValueId w = g.value("w", Role::kParameter, 100);
  const ValueId frozen = g.value("frozen", Role::kParameter, 10);
  const ValueId packed = g.value("packed w", Role::kConstant, 128);
  const ValueId h0 = g.value("h0", Role::kActivation, 20);
  const ValueId v = g.value("v", Role::kActivation, 20);
  const ValueId h1 = g.value("h1", Role::kActivation, 30);
  const ValueId loss = g.value("loss", Role::kActivation, 1);
  const ValueId scale = g.value("scale", Role::kLossScale, 1);
  const ValueId g1 = g.value("gradient of h1", Role::kGradient, 30);
  const ValueId gv = g.value("gradient of v", Role::kGradient, 20);
  const ValueId part_c = g.value("contribution of c", Role::kGradient, 100);
  const ValueId part_a = g.value("contribution of a", Role::kGradient, 100);
  const ValueId sum_a = g.value("accumulator of a", Role::kAccumulator, 100);
  const ValueId sum_c = g.value("accumulator of c", Role::kAccumulator, 100);
  const ValueId gw = g.value("gradient of w", Role::kGradient, 100);

  g.node("pack", Part::kPrepare, 0.5, {w}, {packed});
  const NodeId a = g.node("a", Part::kForward, 1, {x, w}, {h0});
  const NodeId view = g.node("view", Part::kForward, 0, {h0}, {v}, {}, &kReshaped);
  const NodeId b = g.node("b", Part::kForward, 2, {v, frozen}, {h1});
  const NodeId c = g.node("c", Part::kForward, 4, {h1, packed}, {loss});
  g.node("c", Part::kInputGradient, 8, {scale, packed}, {g1}, c);
  g.node("c", Part::kWeightGradient, 16, {h1, scale}, {part_c}, c);
  g.node("b", Part::kInputGradient, 32, {v, g1}, {gv}, b);
  g.node("a", Part::kWeightGradient, 64, {x, gv, h0}, {part_a}, a);
  g.node("w", Part::kFinish, 0.25, {sum_a, sum_c}, {gw});
  (void)view;
  g.training.loss.loss_sum = loss;
  g.training.parameters = {{"w", w, gw}, {"frozen", frozen, {}}};
  g.training.accumulations = {{part_a, sum_a, a}, {part_c, sum_c, c}};
  return g;
}

TEST(ChainCosts, GiveEveryGradientNodeToItsForwardNode) {
  const HandMadeGraph g = tied_graph();
  const Chain chain = linearise(g.training);
  const ChainCosts costs = chain_costs(g.training, chain, g.profile);
  ASSERT_EQ(costs.elements.size(), 4u);
  const std::vector<const char*> names = {"a", "view", "b", "c"};
  const std::vector<double> forward = {1, 0, 2, 4}, input = {0, 0, 32, 8}, weight = {64, 0, 0, 16};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(costs.elements[i].name, names[i]);
    EXPECT_EQ(costs.elements[i].forward_seconds, forward[i]) << i;
    EXPECT_EQ(costs.elements[i].input_gradient_seconds, input[i]) << i;
    EXPECT_EQ(costs.elements[i].weight_gradient_seconds, weight[i]) << i;
  }
  EXPECT_EQ(costs.forward_bytes, chain.forward_bytes);
  EXPECT_EQ(costs.backward_bytes, chain.backward_bytes);
  EXPECT_EQ(g.profile.total_seconds(g.training), 127);
}

TEST(ChainCosts, CountAdditionsToAccumulators) {
  HandMadeGraph g = tied_graph();
  g.profile.accumulate_seconds_per_byte = 0.01;
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_DOUBLE_EQ(costs.elements[0].weight_gradient_seconds, 64 + 4);
  EXPECT_DOUBLE_EQ(costs.elements[3].weight_gradient_seconds, 16 + 4);
}

// What is computed for four micro-batches at once is added once.
TEST(ChainCosts, CountAdditionsOfBatchedGradientsOncePerBatch) {
  HandMadeGraph g = tied_graph();
  g.profile.accumulate_seconds_per_byte = 0.01;
  g.training.batched_micro_batches = 4;
  for (Node& node : g.training.graph.nodes) {
    if (node.name == "c" && node.part == Part::kWeightGradient) node.part = Part::kBatchGradient;
  }
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_DOUBLE_EQ(costs.elements[0].weight_gradient_seconds, 64 + 4);
  EXPECT_DOUBLE_EQ(costs.elements[3].weight_gradient_seconds, (16 + 4) / 4.0);
}

TEST(ChainCosts, TheFirstGradientOfAStepIsWrittenNotAdded) {
  HandMadeGraph g = tied_graph();
  g.profile.accumulate_seconds_per_byte = 0.01;
  g.profile.update_seconds_per_byte = 0.02;
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_DOUBLE_EQ(costs.elements[0].step_seconds, 0.25 + 8 - 4);
  EXPECT_EQ(costs.elements[3].step_seconds, 0);  // 0.5 - 4
}

TEST(ChainCosts, GiveWhatIsDoneOncePerStepToTheFirstUse) {
  const HandMadeGraph g = tied_graph();
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_EQ(costs.elements[0].step_seconds, 0.25);  // finish
  EXPECT_EQ(costs.elements[3].step_seconds, 0.5);   // pack
}

TEST(ChainCosts, CountUpdatesWhereTheParameterIsFirstNeeded) {
  HandMadeGraph g = tied_graph();
  g.profile.update_seconds_per_byte = 0.01;
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_DOUBLE_EQ(costs.elements[0].step_seconds, 0.25 + 4);
  EXPECT_DOUBLE_EQ(costs.elements[2].step_seconds, 0);  // frozen
  EXPECT_DOUBLE_EQ(costs.elements[3].step_seconds, 0.5);
}

TEST(ChainCosts, CountATiedWeightAgainOnlyAcrossACut) {
  const HandMadeGraph g = tied_graph();
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_EQ(costs.elements[0].parameter_bytes, 400u);
  EXPECT_EQ(costs.elements[3].parameter_bytes, 0u);
  ASSERT_EQ(costs.elements[3].reuses.size(), 1u);
  EXPECT_EQ(costs.elements[3].reuses[0].previous, 0);
  EXPECT_EQ(costs.elements[3].reuses[0].parameter_bytes, 400u);
  // Each stage that has it sums up the gradients of both uses, of which the other's is sent.
  EXPECT_EQ(costs.elements[0].more_gradient_bytes, 400u);
  EXPECT_EQ(costs.elements[3].more_gradient_bytes, 0u);
  EXPECT_EQ(costs.elements[3].reuses[0].more_gradient_bytes, 400u);
  ASSERT_EQ(costs.tied.size(), 2u);
  for (std::size_t use = 0; use < 2; ++use) {
    EXPECT_EQ(costs.tied[use].element, use == 0 ? 0 : 3);
    EXPECT_EQ(costs.tied[use].bytes, 400u);
    EXPECT_EQ(costs.tied[use].needed_by, (std::vector<int>{0, 3}));
  }
  EXPECT_EQ(costs.elements[3].fixed_bytes, 512u);  // the packed form
  EXPECT_EQ(costs.elements[2].fixed_bytes, 40u);   // frozen
}

// Read by a and c, and by what prepares a weight for c. In host memory they take no room.
TEST(ChainCosts, CountConstantsOfDevicesWhereKernelsReadThem) {
  HandMadeGraph g = tied_graph();
  const ValueId frozen = g.value("frozen weight", Role::kConstant, 50);
  const ValueId raw = g.value("raw", Role::kConstant, 7);
  std::vector<Node>& nodes = g.training.graph.nodes;
  nodes[0].inputs.push_back(raw);
  nodes[1].inputs.push_back(frozen);
  nodes[4].inputs.push_back(frozen);
  g.profile.backend = "cpu";
  for (const ChainCost& element :
       chain_costs(g.training, linearise(g.training), g.profile).elements)
    EXPECT_EQ(element.constant_bytes, 0u) << element.name;
  for (const char* backend : {"device", "estimate"}) {
    g.profile.backend = backend;
    const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
    EXPECT_EQ(costs.elements[0].constant_bytes, 200u);
    EXPECT_EQ(costs.elements[1].constant_bytes, 0u);
    EXPECT_EQ(costs.elements[2].constant_bytes, 0u);
    EXPECT_EQ(costs.elements[3].constant_bytes, 28u);
    ASSERT_EQ(costs.elements[3].reuses.size(), 1u);
    EXPECT_EQ(costs.elements[3].reuses[0].previous, 0);
    EXPECT_EQ(costs.elements[3].reuses[0].constant_bytes, 200u);
  }
}

// Devices keep one of equal ones: a and b read different constants with the same bytes.
TEST(ChainCosts, CountEqualConstantsOnce) {
  HandMadeGraph g = tied_graph();
  std::vector<ValueId> masks;
  for (const char* name : {"mask of a", "mask of b", "mask of c"}) {
    masks.push_back(g.value(name, Role::kConstant, 50));
    const std::vector<float> values(50, masks.size() == 3 ? 2.0F : 1.0F);
    g.training.graph[masks.back()].data = HostTensor::of<float>({50}, values);
  }
  std::vector<Node>& nodes = g.training.graph.nodes;
  for (std::size_t i = 0; i < 3; ++i) nodes[i == 0 ? 1 : i + 2].inputs.push_back(masks[i]);
  g.profile.backend = "device";
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_EQ(costs.elements[0].constant_bytes, 200u);
  EXPECT_EQ(costs.elements[2].constant_bytes, 0u);
  ASSERT_GE(costs.elements[2].reuses.size(), 1u);
  EXPECT_EQ(costs.elements[2].reuses[0].previous, 0);
  EXPECT_EQ(costs.elements[2].reuses[0].constant_bytes, 200u);
  EXPECT_EQ(costs.elements[3].constant_bytes, 200u);  // other bytes
}

TEST(ChainCosts, CountAThirdUseAgainAcrossACutBehindTheSecond) {
  HandMadeGraph g = tied_graph();
  g.training.graph.nodes[3].inputs.push_back({1});  // b reads w, too
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_EQ(costs.elements[0].parameter_bytes, 400u);
  const std::pair<std::size_t, int> uses[] = {{2, 0}, {3, 2}};  // the element and the use before
  for (const auto& [element, previous] : uses) {
    std::size_t bytes = 0;
    for (const Reuse& reuse : costs.elements[element].reuses) {
      if (reuse.previous == previous) bytes += reuse.parameter_bytes;
    }
    EXPECT_EQ(bytes, 400u) << "element " << element;
  }
}

TEST(ChainCosts, CountSavedActivationsWhereGradientsReadThem) {
  const HandMadeGraph g = tied_graph();
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  // h0 is read by a's gradient and, as the view v, by b's; h1 by c's. x is an input, the loss is
  // not read.
  EXPECT_EQ(costs.elements[0].saved_bytes, 80u);
  EXPECT_EQ(costs.elements[1].saved_bytes, 0u);
  EXPECT_EQ(costs.elements[2].saved_bytes, 0u);
  EXPECT_EQ(costs.elements[3].saved_bytes, 120u);
  ASSERT_EQ(costs.elements[2].reuses.size(), 1u);
  EXPECT_EQ(costs.elements[2].reuses[0].previous, 0);
  EXPECT_EQ(costs.elements[2].reuses[0].saved_bytes, 80u);
}

TEST(ChainCosts, CountWhatLivesWhileAKernelRuns) {
  HandMadeGraph g = tied_graph();
  g.profile.workspace_bytes[3] = 1000;  // b, forward
  const ChainCosts costs = chain_costs(g.training, linearise(g.training), g.profile);
  EXPECT_EQ(costs.elements[0].transient_bytes,
            400u + 80u);  // its contribution and the gradient it reads
  EXPECT_EQ(costs.elements[2].transient_bytes, 1000u);  // workspace; h1 is saved
  EXPECT_EQ(costs.elements[3].transient_bytes, 400u);
}

}  // namespace
}  // namespace pipetrain
