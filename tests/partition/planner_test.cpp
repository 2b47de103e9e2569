// The planner against brute force over all cuts, with a simple independent cost model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "base/error.h"
#include "partition/plan.h"
#include "partition/random_chain.h"
#include "pipeline/schedule/generate.h"

namespace pipetrain {
namespace {

struct ChainStage {
  double seconds = 0;
  double memory = 0;
  bool fits = false;
};

// One stage computed from the definition. Micro-batches are 8 where step_seconds matter, so that
// all sums are exact.
ChainStage plain_stage(const ChainCosts& chain, const PlanRequest& request, int first, int last,
                       int stage, int stages) {
  double forward = 0, backward = 0, step = 0, weights = 0, fixed = 0, saved = 0, transient = 0;
  for (int i = first; i < last; ++i) {
    const ChainCost& e = chain.elements[i];
    forward += e.forward_seconds;
    backward += e.input_gradient_seconds + e.weight_gradient_seconds;
    step += e.step_seconds;
    weights += e.parameter_bytes;
    fixed += e.fixed_bytes;
    saved += e.saved_bytes;
    transient = std::max(transient, double(e.transient_bytes));
    for (const Reuse& reuse : e.reuses) {
      if (reuse.previous < first) {
        weights += reuse.parameter_bytes;
        fixed += reuse.fixed_bytes;
        saved += reuse.saved_bytes;
      }
    }
  }
  const int m = request.micro_batches;
  double in_flight = 0, versions = 1;
  if (request.schedule.name == "gpipe") in_flight = m;
  if (request.schedule.name == "1f1b") in_flight = std::min(stages - stage, m);
  if (request.schedule.name == "pipedream") in_flight = versions = stages - stage;
  const double always = weights * (versions + 1 + request.optimizer_bytes_per_parameter_byte) +
                        fixed * versions + transient;
  const double kept = always + in_flight * saved;
  const double again = always + in_flight * chain.forward_bytes[first] + saved;
  const double limit =
      request.memory_limit_bytes == 0 ? INFINITY : double(request.memory_limit_bytes);
  bool recompute = request.recompute == Recompute::kAll;
  if (request.recompute == Recompute::kAuto && kept > limit) recompute = true;
  ChainStage out;
  out.memory = recompute ? again : kept;
  out.fits = out.memory <= limit;
  out.seconds = forward * (recompute ? 2 : 1) + backward + step / m;
  for (const int cut : {first, last}) {
    if (cut == 0 || cut == int(chain.elements.size())) continue;
    for (const std::size_t bytes : {chain.forward_bytes[cut], chain.backward_bytes[cut]}) {
      if (bytes > 0) {
        out.seconds +=
            request.transfer.latency_seconds + double(bytes) / request.transfer.bytes_per_second;
      }
    }
  }
  return out;
}

struct ChainPlan {
  double bottleneck = INFINITY, memory = INFINITY, traffic = INFINITY;
  std::vector<int> cuts;
  auto key() const { return std::tie(bottleneck, memory, traffic, cuts); }
};

// Tries every set of cuts.
std::optional<ChainPlan> brute_force(const ChainCosts& chain, const PlanRequest& request) {
  const int count = static_cast<int>(chain.elements.size());
  const int stages = std::min(request.stages, count);
  std::optional<ChainPlan> best;
  for (unsigned mask = 0; mask < (1u << (count - 1)); ++mask) {
    if (__builtin_popcount(mask) != stages - 1) continue;
    ChainPlan plan{0, 0, 0, {}};
    bool fits = true;
    int first = 0;
    for (int i = 1; i <= count; ++i) {
      if (i < count && !(mask >> (i - 1) & 1)) continue;
      const ChainStage stage =
          plain_stage(chain, request, first, i, static_cast<int>(plan.cuts.size()), stages);
      fits = fits && stage.fits;
      plan.bottleneck = std::max(plan.bottleneck, stage.seconds);
      plan.memory = std::max(plan.memory, stage.memory);
      if (i < count) {
        plan.traffic += double(chain.forward_bytes[i] + chain.backward_bytes[i]);
        plan.cuts.push_back(i);
      }
      first = i;
    }
    if (fits && (!best || plan.key() < best->key())) best = plan;
  }
  return best;
}

TEST(Planner, EqualsBruteForceOnRandomChains) {
  std::mt19937 random(20240607);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int infeasible = 0, recomputed = 0, compared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const ChainCosts chain = random_chain(random, pick(1, 10));
    PlanRequest request;
    request.stages = pick(1, 5);
    request.micro_batches = 1 << pick(0, 3);
    request.schedule =
        planned_schedule(std::vector<std::string>{"gpipe", "1f1b", "pipedream"}[pick(0, 2)]);
    request.optimizer_bytes_per_parameter_byte = pick(0, 2);
    request.recompute = static_cast<Recompute>(pick(0, 2));
    if (pick(0, 1)) request.transfer = {double(pick(0, 3)), pick(0, 1) ? 2.0 : 0.5};
    if (pick(0, 1)) request.memory_limit_bytes = static_cast<std::size_t>(pick(5, 150));
    const std::optional<ChainPlan> expected = brute_force(chain, request);
    if (!expected) {
      ++infeasible;
      try {
        plan_stages(chain, request);
        ADD_FAILURE() << "trial " << trial << " planned what does not fit";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kResource) << error.what();
      }
      continue;
    }
    ++compared;
    const Plan plan = plan_stages(chain, request);
    EXPECT_EQ(plan.bottleneck_seconds, expected->bottleneck) << "trial " << trial;
    EXPECT_EQ(plan.cuts(), expected->cuts) << "trial " << trial;
    double peak = 0;
    for (const StagePlan& stage : plan.stages) {
      peak = std::max(peak, double(stage.memory.total()));
      recomputed += stage.recompute;
    }
    EXPECT_EQ(peak, expected->memory) << "trial " << trial;
    EXPECT_LE(plan.lower_bound_seconds, plan.bottleneck_seconds * (1 + 1e-12)) << trial;
  }
  // All branches were taken.
  EXPECT_GT(infeasible, 300);
  EXPECT_GT(recomputed, 300);
  EXPECT_GT(compared, 1500);
}

ChainCosts uniform_chain(int count, double seconds) {
  ChainCosts chain;
  for (int i = 0; i < count; ++i) {
    ChainCost element;
    element.name = "block" + std::to_string(i);
    element.forward_seconds = seconds / 3;
    element.input_gradient_seconds = seconds / 3;
    element.weight_gradient_seconds = seconds / 3;
    element.parameter_bytes = 100;
    element.saved_bytes = 1000;
    chain.elements.push_back(element);
  }
  chain.forward_bytes.assign(static_cast<std::size_t>(count) + 1, 64);
  chain.backward_bytes = chain.forward_bytes;
  return chain;
}

TEST(Planner, CutsEqualBlocksEvenly) {
  PlanRequest request;
  request.stages = 4;
  const Plan plan = plan_stages(uniform_chain(12, 3.0), request);
  EXPECT_EQ(plan.cuts(), (std::vector<int>{3, 6, 9}));
  EXPECT_DOUBLE_EQ(plan.bottleneck_seconds, 9.0);
  EXPECT_NEAR(plan.gap(), 0, 1e-12);
  EXPECT_EQ(plan.cut_reasons.size(), 3u);
  EXPECT_NE(plan.cut_reasons[0].find("before block3"), std::string::npos);
  EXPECT_TRUE(plan.notes.empty());
}

TEST(Planner, NamesTheNodeThatBoundsIt) {
  ChainCosts chain = uniform_chain(6, 1.0);
  chain.elements[2].forward_seconds = 50;
  PlanRequest request;
  request.stages = 3;
  const Plan plan = plan_stages(chain, request);
  EXPECT_NE(plan.lower_bound_reason.find("block2"), std::string::npos);
  EXPECT_NEAR(plan.gap(), 0, 0.03);
}

TEST(Planner, UsesFewerStagesForAShortChainAndSaysSo) {
  PlanRequest request;
  request.stages = 8;
  const Plan plan = plan_stages(uniform_chain(3, 1.0), request);
  EXPECT_EQ(plan.stages.size(), 3u);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("8 stages were asked for"), std::string::npos);
  request.stages_per_device = 2;
  const Plan pairs = plan_stages(uniform_chain(3, 1.0), request);
  EXPECT_EQ(pairs.stages.size(), 2u);
  ASSERT_EQ(pairs.notes.size(), 1u);
  EXPECT_NE(pairs.notes[0].find("has only 3 nodes to put into stages: 2 are used"),
            std::string::npos);
}

TEST(Planner, IsMonotone) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const ChainCosts chain = random_chain(random, 12);
    PlanRequest request;
    request.schedule = planned_schedule("gpipe");
    request.micro_batches = 4;
    // More stages are never slower where transfers are free.
    double before = INFINITY;
    for (request.stages = 1; request.stages <= 12; ++request.stages) {
      const double now = plan_stages(chain, request).bottleneck_seconds;
      EXPECT_LE(now, before) << "trial " << trial << ", " << request.stages << " stages";
      before = now;
    }
    // More bandwidth is never slower.
    request.stages = 4;
    before = INFINITY;
    for (const double bandwidth : {0.25, 1.0, 4.0, 64.0, 1e9}) {
      request.transfer = {0.5, bandwidth};
      const double now = plan_stages(chain, request).bottleneck_seconds;
      EXPECT_LE(now, before);
      before = now;
    }
    // More memory is never slower, and what fits keeps fitting.
    before = INFINITY;
    for (std::size_t limit = 20; limit < 600; limit += 20) {
      request.memory_limit_bytes = limit;
      double now = INFINITY;
      try {
        now = plan_stages(chain, request).bottleneck_seconds;
      } catch (const Error&) {
      }
      EXPECT_LE(now, before) << "trial " << trial << ", limit " << limit;
      before = now;
    }
    EXPECT_LT(before, INFINITY);
  }
}

TEST(Planner, SaysWhatFitsWhenMemoryIsShort) {
  PlanRequest request;
  request.stages = 4;
  request.micro_batches = 8;
  request.recompute = Recompute::kNone;
  request.memory_limit_bytes = 7000;
  try {
    plan_stages(uniform_chain(12, 3.0), request);
    FAIL() << "planned what does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    const std::string& text = error.message();
    EXPECT_NE(text.find("stage "), std::string::npos) << text;
    EXPECT_NE(text.find("the limit is 6.84 KiB"), std::string::npos) << text;
    EXPECT_NE(text.find("in flight x"), std::string::npos) << text;
    EXPECT_NE(text.find("`recompute` auto"), std::string::npos) << text;
    EXPECT_NE(text.find("`micro-batches` 16"), std::string::npos) << text;
  }
  // Of so many samples.
  request.most_micro_batches = 15;
  try {
    plan_stages(uniform_chain(12, 3.0), request);
    FAIL() << "planned what does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.message().find("`micro-batches`"), std::string::npos) << error.message();
  }
  // The advice is true.
  request.recompute = Recompute::kAuto;
  const Plan plan = plan_stages(uniform_chain(12, 3.0), request);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("the forward pass twice to fit into 6.84 KiB"), std::string::npos)
      << plan.notes[0];
  for (const StagePlan& stage : plan.stages) EXPECT_LE(stage.memory.total(), 7000u);
}

TEST(Planner, SaysThatNothingFits) {
  PlanRequest request;
  request.stages = 2;
  request.memory_limit_bytes = 10;
  try {
    plan_stages(uniform_chain(4, 3.0), request);
    FAIL() << "planned what does not fit";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("reduce `batch-size`"), std::string::npos) << error.message();
  }
}

TEST(Planner, TakesGivenCuts) {
  const ChainCosts chain = uniform_chain(10, 3.0);
  PlanRequest request;
  const std::vector<int> cuts = {2, 7};
  const Plan plan = plan_with_cuts(chain, request, cuts);
  EXPECT_EQ(plan.cuts(), cuts);
  EXPECT_DOUBLE_EQ(plan.bottleneck_seconds, 15.0);
  const std::vector<Recompute> modes = {Recompute::kAll, Recompute::kNone, Recompute::kNone};
  const Plan again = plan_with_cuts(chain, request, cuts, modes);
  EXPECT_TRUE(again.stages[0].recompute);
  EXPECT_DOUBLE_EQ(again.stages[0].seconds, 8.0);
  EXPECT_EQ(plan_with_cuts(chain, request, {}).stages.size(), 1u);
}

TEST(Planner, RefusesImpossibleCuts) {
  const ChainCosts chain = uniform_chain(10, 3.0);
  for (const std::vector<int>& cuts :
       {std::vector<int>{0}, {10}, {-3}, {4, 4}, {6, 2}, {1000000}}) {
    try {
      plan_with_cuts(chain, {}, cuts);
      ADD_FAILURE() << "took a cut at " << cuts[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
}

TEST(Planner, RefusesCostsThatAreNoNumbers) {
  ChainCosts chain = uniform_chain(3, 1.0);
  chain.elements[1].forward_seconds = NAN;
  EXPECT_THROW(plan_stages(chain, {}), Error);
  chain.elements[1].forward_seconds = -1;
  EXPECT_THROW(plan_stages(chain, {}), Error);
  EXPECT_THROW(plan_stages(ChainCosts{{}, {0}, {0}}, {}), Error);
}

TEST(Planner, CountsTiedWeightsOncePerStage) {
  ChainCosts chain = uniform_chain(4, 3.0);
  chain.elements[0].parameter_bytes = 1000;
  chain.elements[3].parameter_bytes = 0;
  chain.elements[3].reuses = {{.previous = 0, .parameter_bytes = 1000}};
  EXPECT_EQ(plan_with_cuts(chain, {}, {}).stages[0].parameter_bytes, 1200u);
  const std::vector<int> cut = {2};
  const Plan plan = plan_with_cuts(chain, {}, cut);
  EXPECT_EQ(plan.stages[0].parameter_bytes, 1100u);
  EXPECT_EQ(plan.stages[1].parameter_bytes, 1100u);
}

TEST(Planner, CountsTheGradientsOfAllUsesOfATiedWeightInEachStageThatHasIt) {
  ChainCosts chain = uniform_chain(4, 3.0);
  chain.elements[0].parameter_bytes = chain.elements[0].more_gradient_bytes = 1000;
  chain.elements[3].parameter_bytes = 0;
  chain.elements[3].reuses = {
      {.previous = 0, .parameter_bytes = 1000, .more_gradient_bytes = 1000}};
  EXPECT_EQ(plan_with_cuts(chain, {}, {}).stages[0].memory.gradient_bytes, 1200u + 1000u);
  const std::vector<int> cut = {2};
  const Plan plan = plan_with_cuts(chain, {}, cut);
  EXPECT_EQ(plan.stages[0].memory.gradient_bytes, 1100u + 1000u);
  EXPECT_EQ(plan.stages[1].memory.gradient_bytes, 1100u + 1000u);
}

TEST(Planner, CountsConstantsOnceForAllWeightVersions) {
  ChainCosts chain = uniform_chain(4, 3.0);
  chain.elements[0].constant_bytes = 5000;
  chain.elements[3].reuses = {{.previous = 0, .constant_bytes = 5000}};
  PlanRequest request;
  request.schedule = planned_schedule("pipedream");
  const std::vector<int> cut = {2};
  const Plan plan = plan_with_cuts(chain, request, cut);
  // Elements have 100 bytes of parameters; stage 0 keeps two versions of them.
  EXPECT_EQ(plan.stages[0].memory.weight_bytes, 2 * 200u + 5000u);
  EXPECT_EQ(plan.stages[1].memory.weight_bytes, 200u + 5000u);
  EXPECT_EQ(plan_with_cuts(chain, request, {}).stages[0].memory.weight_bytes, 400u + 5000u);
}

TEST(Planner, HandlesAsManyElementsAsModelsHave) {
  std::mt19937 random(9);
  const ChainCosts chain = random_chain(random, 2000);
  PlanRequest request;
  request.stages = 16;
  request.micro_batches = 32;
  const Plan plan = plan_stages(chain, request);
  EXPECT_EQ(plan.stages.size(), 16u);
  EXPECT_LT(plan.gap(), 0.01);
}

TEST(ScheduleLoad, FollowsTheClosedForms) {
  const auto load = [](const char* schedule, int stage, int stages, int micro_batches) {
    const MemoryRule rule = planned_schedule(schedule).memory.value();
    const ScheduleLoad out = schedule_load(rule, stage, stages, micro_batches);
    return std::pair(out.in_flight, out.weight_versions);
  };
  EXPECT_EQ(load("gpipe", 2, 4, 8), std::pair(8, 1));
  EXPECT_EQ(load("1f1b", 0, 4, 8), std::pair(4, 1));
  EXPECT_EQ(load("1f1b", 3, 4, 8), std::pair(1, 1));
  EXPECT_EQ(load("1f1b", 0, 4, 2), std::pair(2, 1));
  EXPECT_EQ(load("pipedream", 0, 4, 1), std::pair(4, 4));
  EXPECT_EQ(load("pipedream", 3, 4, 1), std::pair(1, 1));
  EXPECT_EQ(load("pipedream-2bw", 1, 4, 8), std::pair(3, 2));
  EXPECT_EQ(load("pipedream-2bw", 0, 1, 8), std::pair(1, 2));
  EXPECT_EQ(load("zb-h1", 3, 4, 8), std::pair(4, 1));
  EXPECT_EQ(load("zb-h2", 3, 4, 8), std::pair(7, 1));
}

TEST(Planner, SaysWhichScheduleHasNoMemoryRule) {
  std::mt19937 random(3);
  PlanRequest request;
  request.stages = 2;
  request.schedule = planned_schedule("round-robin");
  try {
    plan_stages(random_chain(random, 5), request);
    FAIL() << "planned without knowing what a stage holds";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("\"round-robin\" cannot be planned"), std::string::npos);
  }
}

// What other numbers of micro-batches and stages hold is known from a closed form only.
TEST(Planner, DoesNotSayThatItTriedWhatItCouldNotTry) {
  PlanRequest request;
  request.stages = 2;
  request.micro_batches = 4;
  request.memory_limit_bytes = 10;
  request.schedule.name = "zb-v";
  request.schedule.memory.reset();
  request.loads = {{2, 1}, {1, 1}};
  const auto advice = [&] {
    try {
      plan_stages(uniform_chain(4, 3.0), request);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
      return error.message();
    }
    return std::string();
  };
  const std::string text = advice();
  EXPECT_EQ(text.find("neither"), std::string::npos) << text;
  EXPECT_NE(text.find("try more `micro-batches` or `gpus`, a smaller `batch-size`, or devices"),
            std::string::npos)
      << text;
  request.most_micro_batches = 4;  // of one sample each
  EXPECT_NE(advice().find("try more `gpus`, a smaller"), std::string::npos) << advice();
  request.schedule = planned_schedule("rounds.csv");  // a file, which has its own numbers
  EXPECT_TRUE(advice().ends_with(
      "; try a smaller `batch-size`, a schedule for more devices, or devices with more memory"))
      << advice();
}

TEST(Planner, AdvisesNumbersOfMicroBatchesThatFit) {
  ChainCosts chain;
  for (int i = 0; i < 2; ++i) {
    chain.elements.push_back({});
    chain.elements.back().forward_seconds = 1;
    chain.elements.back().saved_bytes = 100;
  }
  chain.forward_bytes.assign(3, 10);
  chain.backward_bytes.assign(3, 10);
  PlanRequest request;
  request.stages = 2;
  request.recompute = Recompute::kNone;
  request.memory_limit_bytes = 60;
  request.most_micro_batches = 16;
  request.loads = {{1, 1}, {1, 1}};
  const auto advice = [&](const char* schedule) {
    request.schedule = planned_schedule(schedule);
    try {
      plan_stages(chain, request);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  // The first stage holds two: of half the size it needs 100 bytes, of a quarter 50.
  EXPECT_NE(advice("1f1b").find("`micro-batches` 4"), std::string::npos);
  // gpipe holds all, and the others send mini-batches whole.
  for (const char* schedule : {"gpipe", "pipedream", "pipedream-vertical"})
    EXPECT_EQ(advice(schedule).find("`micro-batches`"), std::string::npos) << schedule;
}

}  // namespace
}  // namespace pipetrain
