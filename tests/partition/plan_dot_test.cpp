#include "partition/plan_dot.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipetrain {
namespace {

ChainCosts chain_of(int elements) {
  ChainCosts chain;
  for (int e = 0; e < elements; ++e) {
    ChainCost& cost = chain.elements.emplace_back();
    cost.name = fmt::format("node{}", e);
    cost.forward_seconds = 1e-3;
    cost.input_gradient_seconds = 1e-3;
  }
  chain.forward_bytes.assign(static_cast<std::size_t>(elements) + 1, 1024);
  chain.backward_bytes.assign(static_cast<std::size_t>(elements) + 1, 2048);
  return chain;
}

Plan plan_of(const std::vector<int>& starts, int elements) {
  Plan plan;
  for (std::size_t s = 0; s < starts.size(); ++s) {
    StagePlan& stage = plan.stages.emplace_back();
    stage.first = starts[s];
    stage.last = s + 1 < starts.size() ? starts[s + 1] : elements;
    stage.forward_seconds = 1e-3;
    stage.backward_seconds = 2e-3;
    stage.memory.weight_bytes = 4096;
  }
  return plan;
}

TEST(PlanDot, GoldenTextOfATinyPlan) {
  ChainCosts chain = chain_of(3);
  chain.elements[0].name = "a \"quoted\" \\ name";
  Plan plan = plan_of({0, 2}, 3);
  plan.stages[1].recompute = true;
  plan.stages[1].replicas = 3;
  EXPECT_EQ(plan_dot(plan, chain, "x.onnx"), R"(digraph plan {
  label="x.onnx"; labelloc=t; rankdir=TB; fontname=Helvetica;
  node [shape=box, style="filled,rounded", fontname=Helvetica, fontsize=10];
  edge [fontname=Helvetica, fontsize=10];
  subgraph cluster_0 {
    color="#9aa1a9"; label="stage 0\nforward 1.00 ms, backward 2.00 ms, memory 4.00 KiB";
    n0 [label="a \"quoted\" \\ name\n2.00 ms", fillcolor="#8fb8ee"];
    n1 [label="node1\n2.00 ms", fillcolor="#8fb8ee"];
    n0 -> n1;
  }
  subgraph cluster_1 {
    color="#9aa1a9"; label="stage 1 on 3 devices (recompute)\nforward 1.00 ms, backward 2.00 ms, memory 4.00 KiB";
    n2 [label="node2\n2.00 ms", fillcolor="#f2b27a"];
  }
  n1 -> n2 [label="1.00 KiB forward\n2.00 KiB back", penwidth=2, color="#d1242f"];
}
)");
}

TEST(PlanDot, ItIsUtf8WhateverTheNameOfTheModel) {
  const std::string text = plan_dot(plan_of({0}, 1), chain_of(1), "m\xfcnchen \xe2\x82\xac");
  EXPECT_NE(text.find("label=\"m\\\\xfcnchen \xe2\x82\xac\";"), std::string::npos) << text;
}

TEST(PlanDot, LongStagesShowBothEnds) {
  const std::string text = plan_dot(plan_of({0, 100}, 101), chain_of(101), "x");
  for (const char* shown : {"\"node0\\n", "\"node5\\n", "\"89 more\"", "\"node95\\n", "\"node99\\n",
                            "n5 -> n6;", "n6 -> n95;", "n99 -> n100 [label="})
    EXPECT_NE(text.find(shown), std::string::npos) << shown << "\n" << text;
  for (const char* hidden : {"\"node6\\n", "\"node94\\n"})
    EXPECT_EQ(text.find(hidden), std::string::npos) << hidden;
}

TEST(PlanDot, RefusesAPlanOfAnotherChain) {
  EXPECT_THROW(plan_dot(plan_of({0}, 4), chain_of(3), "x"), Error);
}

}  // namespace
}  // namespace pipetrain
