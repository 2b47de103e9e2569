#include "pipeline/schedule/move_cuts.h"

#include <gtest/gtest.h>

#include <random>

#include "base/units.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/plan_costs.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

constexpr int kMicroBatches = 8;

/// Elements of random times; each saves a MiB and has a MiB of parameters.
ChainCosts random_chain(int elements, unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  ChainCosts chain;
  for (int i = 0; i < elements; ++i) {
    const double scale = i % 3 == 0 ? 1 : 0.1;  // as convolutions and what lies between them
    ChainCost element{.name = "n" + std::to_string(i),
                      .forward_seconds = scale * draw(0.5, 1.5),
                      .input_gradient_seconds = scale * draw(0.5, 1.5),
                      .weight_gradient_seconds = scale * draw(0.5, 1.5)};
    element.step_seconds = draw(0, 0.2);
    element.parameter_bytes = element.saved_bytes = 1 << 20;
    chain.elements.push_back(element);
  }
  chain.forward_bytes.assign(static_cast<std::size_t>(elements) + 1, 1 << 16);
  chain.backward_bytes = chain.forward_bytes;
  return chain;
}

struct Case {
  ChainCosts chain;
  PlanRequest request;
  Program program;  // of `plan`
  Plan plan;

  Case(const std::string& schedule, int stages, int elements, unsigned seed,
       std::size_t memory_limit = 0)
      : chain(random_chain(elements, seed)) {
    ScheduleOptions options = options_for(schedule, stages, kMicroBatches);
    options.chunks = 2;
    const Program rounds = generate(options);
    request.stages = stages;
    request.micro_batches = kMicroBatches;
    request.schedule = planned_schedule(schedule);
    request.memory_limit_bytes = memory_limit;
    for (int s = 0; s < stages; ++s) request.loads.push_back({rounds.slots_per_stage[at(s)], 1});
    plan = plan_stages(chain, request);
    program = lower(rounds, edges_of_plan(plan, chain));
  }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  double seconds(const Plan& of) const {
    Program round = program;
    round.edges = edges_of_plan(of, chain);
    return simulate(round, costs(of)).makespan;
  }
  Costs costs(const Plan& of) const {
    Costs out = costs_of_plan(of, chain, kMicroBatches);
    out.link = {.latency_seconds = 0.01, .bytes_per_second = 1e7};
    return out;
  }
  Plan moved() const { return move_cuts(chain, request, plan, program, costs(plan)); }

  /// The shortest round of all cuts from `first` on.
  double shortest(std::vector<int>& cuts, int first) const {
    if (static_cast<int>(cuts.size()) + 1 == request.stages)
      return seconds(plan_with_cuts(chain, request, cuts));
    double least = std::numeric_limits<double>::infinity();
    for (int cut = first; cut < static_cast<int>(chain.elements.size()); ++cut) {
      cuts.push_back(cut);
      least = std::min(least, shortest(cuts, cut + 1));
      cuts.pop_back();
    }
    return least;
  }
};

TEST(PlanCosts, BothPartsOfABackwardTakeTheTimeOfTheirDevice) {
  const ChainCosts chain = random_chain(2, 1);
  PlanRequest request;
  request.stages = 2;
  request.topology.levels = {{"link", 2, 1e9, 0}};
  request.topology.device_speed = {1, 0.5};
  const Costs costs = costs_of_plan(plan_stages(chain, request), chain, 1);
  EXPECT_DOUBLE_EQ(costs.stage[0].backward_input, chain.elements[0].input_gradient_seconds);
  EXPECT_DOUBLE_EQ(costs.stage[1].backward_input, 2 * chain.elements[1].input_gradient_seconds);
  EXPECT_DOUBLE_EQ(costs.stage[1].backward_weight, 2 * chain.elements[1].weight_gradient_seconds);
}

TEST(MoveCuts, ComesNearTheBestOfAllCuts) {
  double worst = 0, gain = 0;
  int cases = 0;
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v", "interleaved-1f1b"}) {
    const bool chunks = stages_per_device(schedule, 2) > 1;
    for (unsigned seed = 1; seed <= 6; ++seed) {
      const Case each(schedule, chunks ? 4 : 3, 14, seed);
      const Plan moved = each.moved();
      const double before = each.seconds(each.plan), after = each.seconds(moved);
      EXPECT_LE(after, before) << schedule;
      std::vector<int> cuts;
      const double best = each.shortest(cuts, 1);
      worst = std::max(worst, after / best - 1);
      EXPECT_LT(after, 1.06 * best) << schedule << " seed " << seed;
      if (chunks) gain += before / after - 1;
      cases += chunks;
    }
  }
  EXPECT_GT(gain / cases, 0.03) << "stages of one device are balanced one by one";
  RecordProperty("worst", std::to_string(worst));
}

TEST(MoveCuts, SaysWhatAStepTakes) {
  Case each("zb-v", 4, 14, 3);
  for (ChainCost& element : each.chain.elements) element.step_seconds *= 10;
  each.plan = plan_stages(each.chain, each.request);
  const Plan moved = each.moved();
  ASSERT_NE(moved.cuts(), each.plan.cuts());
  const std::string& note = moved.notes.back();
  EXPECT_NE(note.find("shortest simulated step, " + seconds_text(each.seconds(moved))),
            std::string::npos)
      << note;
  EXPECT_NE(note.find("balanced cuts would take " + seconds_text(each.seconds(each.plan))),
            std::string::npos)
      << note;
}

TEST(MoveCuts, LeavesWhatIsBestAlone) {
  Case each("1f1b", 4, 12, 1);
  for (ChainCost& element : each.chain.elements) {
    element.forward_seconds = element.input_gradient_seconds = element.weight_gradient_seconds = 1;
    element.step_seconds = 0;
  }
  each.plan = plan_stages(each.chain, each.request);
  EXPECT_EQ(each.plan.cuts(), (std::vector<int>{3, 6, 9}));
  const Plan moved = each.moved();
  EXPECT_EQ(moved.cuts(), each.plan.cuts());
  EXPECT_EQ(moved.notes, each.plan.notes);
}

// The last device is half as fast: two of the elements there take as long as four elsewhere.
TEST(MoveCuts, CountsTheSpeedsOfDevices) {
  Case each("1f1b", 4, 12, 1);
  for (ChainCost& element : each.chain.elements) {
    element.forward_seconds = element.input_gradient_seconds = element.weight_gradient_seconds = 1;
    element.step_seconds = 0;
  }
  each.request.topology.device_speed = {1, 1, 1, 0.5};
  each.plan = plan_stages(each.chain, each.request);
  EXPECT_EQ(each.plan.cuts().back(), 10);
  EXPECT_GE(each.moved().cuts().back(), 10);
}

TEST(MoveCuts, KeepsToTheMemoryLimit) {
  const Case free("zb-v", 4, 14, 3);
  std::size_t needed = 0;
  for (const StagePlan& stage : free.plan.stages) needed = std::max(needed, stage.memory.total());
  const Case bound("zb-v", 4, 14, 3, needed);
  ASSERT_EQ(bound.plan.cuts(), free.plan.cuts());
  EXPECT_NE(free.moved().cuts(), free.plan.cuts());
  for (const StagePlan& stage : bound.moved().stages) EXPECT_LE(stage.memory.total(), needed);
}

}  // namespace
}  // namespace pipetrain
