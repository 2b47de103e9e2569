#include "pipeline/view/trace_diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

Program program_for(const std::string& name, int devices = 4, int micro_batches = 8) {
  return lowered(options_for(name, devices * stages_per_device(name, 2), micro_batches));
}

Costs costs_for(const Program& program) {
  return uniform_costs(program, {1e-3, 2e-3, 1e-3, 1e-3, 1e-3, 1e-4}, {1e-4, INFINITY});
}

double sum_of(const StepDifference& difference) {
  double sum = 0;
  for (const DifferenceCause& cause : difference.causes) sum += cause.seconds;
  return sum;
}

/// Seconds of the only cause of a kind.
double seconds_of(const StepDifference& difference, CauseKind kind) {
  double seconds = 0;
  int found = 0;
  for (const DifferenceCause& cause : difference.causes) {
    if (cause.kind != kind) continue;
    seconds = cause.seconds;
    ++found;
  }
  EXPECT_EQ(found, 1) << to_text(kind);
  return seconds;
}

TEST(TraceDiff, NothingExplainsNoDifference) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "pipedream", "zb-v"}) {
    const Program program = program_for(name);
    const Events events = time_round(program, costs_for(program));
    const StepDifference difference = explain(program, events, events);
    EXPECT_EQ(difference.seconds(), 0) << name;
    EXPECT_TRUE(difference.causes.empty()) << name;
    EXPECT_EQ(difference.predicted_bubble, difference.measured_bubble);
  }
}

TEST(TraceDiff, FindsTheSlowInstructions) {
  for (const char* name : {"gpipe", "1f1b", "pipedream", "pipedream-2bw"}) {
    const Program program = program_for(name);
    const Costs costs = costs_for(program);
    for (int stage = 0; stage < 4; ++stage) {
      Costs slow = costs;
      slow.stage[static_cast<std::size_t>(stage)].backward *= 1.1;
      const StepDifference difference =
          explain(program, time_round(program, costs), time_round(program, slow));
      ASSERT_FALSE(difference.causes.empty()) << name << stage;
      const DifferenceCause& first = difference.causes.front();
      EXPECT_EQ(first.kind, CauseKind::kInstruction);
      EXPECT_EQ(first.instruction, Kind::kBackward);
      EXPECT_EQ(first.stage, stage) << name;
      // Nothing else has changed, so nothing else is to blame.
      EXPECT_NEAR(first.seconds, difference.seconds(), 1e-9) << name << stage;
      EXPECT_GT(first.seconds, 2e-4);
      EXPECT_NEAR(first.measured_mean, 1.1 * first.predicted_mean, 1e-9);
      EXPECT_EQ(first.text(), fmt::format("stage {} backward 10.0 % slower (2.20 ms, predicted "
                                          "2.00 ms)",
                                          stage));
    }
  }
}

TEST(TraceDiff, FindsASlowLink) {
  const Program program = program_for("1f1b");
  Costs costs = costs_for(program);
  costs.edge_link.assign(program.edges.size(), costs.link);
  Costs slow = costs;
  std::size_t edge = 0;  // gradients from stage 2 to stage 1
  while (program.edges[edge].from_stage != 2 || program.edges[edge].to_stage != 1) ++edge;
  slow.edge_link[edge].latency_seconds = 7e-4;
  const StepDifference difference =
      explain(program, time_round(program, costs), time_round(program, slow));
  ASSERT_FALSE(difference.causes.empty());
  const DifferenceCause& first = difference.causes.front();
  EXPECT_EQ(first.kind, CauseKind::kReceive);
  EXPECT_EQ(first.from_stage, 2);
  EXPECT_EQ(first.stage, 1);
  EXPECT_NEAR(first.seconds, difference.seconds(), 1e-9);
  EXPECT_EQ(first.text(),
            "gradients from stage 2 take longer to reach stage 1 (transfer, waking up)");
}

/// Two stages, one micro-batch: all on one path, so every cause is its own number.
TEST(TraceDiff, GoldenStepByHand) {
  const Program program = lowered(options_for("1f1b", 2, 1));
  const auto events_of = [&](double f0, double f1, double b1, double b0, const double(&ends)[6]) {
    Events events;
    for (std::size_t d = 0; d < 2; ++d) {
      auto& list = events.emplace_back();
      for (std::size_t i = 0; i < program.device[d].size(); ++i) {
        const Kind kind = program.device[d][i].kind;
        Event event{static_cast<int>(d), static_cast<int>(i), 0, 0};
        if (kind == Kind::kForward) {
          event.start = d == 0 ? f0 : f1;
          event.end = ends[d];
        } else if (kind == Kind::kBackward) {
          event.start = d == 0 ? b0 : b1;
          event.end = ends[3 - d];
        } else if (kind == Kind::kUpdate) {
          event.start = ends[3 - d];
          event.end = d == 0 ? ends[5] : ends[4];
        }
        list.push_back(event);
      }
    }
    return events;
  };
  // Start-up 0.5; F1 starts 0.25 late; 0.1 before B1, which takes 0.2 longer; the update 0.3; the
  // step ends 0.15 after it.
  const Events predicted = events_of(0, 1, 2, 4, {1, 2, 4, 6, 4, 6});
  const Events measured = events_of(0.5, 1.75, 2.85, 5.05, {1.5, 2.75, 5.05, 7.05, 5.05, 7.35});
  const StepDifference difference = explain(program, predicted, measured, 7.5);
  EXPECT_DOUBLE_EQ(difference.predicted_seconds, 6);
  EXPECT_DOUBLE_EQ(difference.measured_seconds, 7.5);
  EXPECT_DOUBLE_EQ(difference.predicted_bubble, 0.5);
  EXPECT_NEAR(difference.measured_bubble, 1 - 6.5 / 15, 1e-12);
  EXPECT_DOUBLE_EQ(*difference.theoretical_bubble, 0.5);
  EXPECT_NEAR(seconds_of(difference, CauseKind::kStartUp), 0.5, 1e-9);
  EXPECT_NEAR(seconds_of(difference, CauseKind::kReceive), 0.25, 1e-9);
  EXPECT_NEAR(seconds_of(difference, CauseKind::kBetween), 0.1, 1e-9);
  EXPECT_NEAR(seconds_of(difference, CauseKind::kEnd), 0.15, 1e-9);
  EXPECT_EQ(
      difference_text(difference, 4),
      "predicted step 6.00 s, measured 7.50 s: +1.50 s (+25.0 %)\n"
      "bubble in theory 50.0 %, predicted 50.0 %, measured 56.7 %\n"
      "     +500 ms  start-up of device 0\n"
      "     +300 ms  stage 0 update takes 300 ms, predicted nothing\n"
      "     +250 ms  activations from stage 0 take longer to reach stage 1 (transfer, waking up)\n"
      "     +200 ms  stage 1 backward 10.0 % slower (2.20 s, predicted 2.00 s)\n"
      "     +250 ms  other\n");
}

TEST(TraceDiff, LargeDifferencesAreFactors) {
  StepDifference difference;
  difference.predicted_seconds = 2e-3;
  difference.measured_seconds = 65e-3;
  // A single device has no bubble.
  EXPECT_EQ(difference_text(difference, 3),
            "predicted step 2.00 ms, measured 65.0 ms: +63.0 ms (32.5 times as long)\n");
  difference.measured_seconds = 5e-3;
  difference.measured_bubble = 0.25;
  EXPECT_EQ(difference_text(difference, 3),
            "predicted step 2.00 ms, measured 5.00 ms: +3.00 ms (+150.0 %)\n"
            "bubble predicted 0.0 %, measured 25.0 %\n");
}

TEST(TraceDiff, SharesAddUpForNoisySteps) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> factor(0.8, 1.3);
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "pipedream"}) {
    for (int n = 0; n < 10; ++n) {
      const Program program = program_for(name);
      const Costs costs = costs_for(program);
      Costs noisy = costs;
      for (StageSeconds& stage : noisy.stage) {
        for (double* seconds : {&stage.forward, &stage.backward, &stage.backward_input,
                                &stage.backward_weight, &stage.update})
          *seconds *= factor(random);
      }
      for (int u = 0; u < program.micro_batches; ++u)
        noisy.micro_batch_scale.push_back(factor(random));
      noisy.link.latency_seconds *= factor(random);
      const StepDifference difference =
          explain(program, time_round(program, costs), time_round(program, noisy));
      EXPECT_NEAR(sum_of(difference), difference.seconds(), 1e-12) << name;
      for (const DifferenceCause& cause : difference.causes)
        EXPECT_NE(cause.kind, CauseKind::kOther) << name << " " << cause.seconds;
      // The way back is the same with the other sign.
      const StepDifference back =
          explain(program, time_round(program, noisy), time_round(program, costs));
      EXPECT_NEAR(back.seconds(), -difference.seconds(), 1e-12);
      EXPECT_NEAR(sum_of(back), back.seconds(), 1e-12);
    }
  }
}

TEST(TraceDiff, TellsTheSyncFromTheWaitForIt) {
  ScheduleOptions options = options_for("1f1b", 3, 4);
  options.gradient_sync = true;
  const Program program = lowered(options);
  const Costs costs = costs_for(program);
  const Events predicted = time_round(program, costs);
  Costs slow = costs;
  slow.stage[0].forward *= 1.5;
  Events measured = time_round(program, slow);
  // The runtime records a sync from the arrival of each device; only the last one waits for nobody.
  for (std::size_t d = 0; d < measured.size(); ++d) {
    double before = 0;
    for (std::size_t i = 0; i < measured[d].size(); ++i) {
      if (program.device[d][i].kind == Kind::kGradientSync) measured[d][i].start = before;
      if (!is_transfer(program.device[d][i].kind)) before = measured[d][i].end;
    }
  }
  const StepDifference difference = explain(program, predicted, measured);
  ASSERT_FALSE(difference.causes.empty());
  EXPECT_EQ(difference.causes.front().stage, 0);
  EXPECT_EQ(difference.causes.front().instruction, Kind::kForward);
  EXPECT_NEAR(difference.causes.front().seconds, difference.seconds(), 1e-9);
}

TEST(TraceDiff, MeanOfStepsIsTheMeanOfTheirCauses) {
  const Program program = program_for("1f1b");
  const Costs costs = costs_for(program);
  Costs slow = costs;
  slow.stage[1].backward *= 1.2;
  const Events predicted = time_round(program, costs);
  const std::vector<StepDifference> two = {explain(program, predicted, time_round(program, slow)),
                                           explain(program, predicted, predicted)};
  const StepDifference mean = mean_of(two);
  EXPECT_EQ(mean.steps, 2);
  EXPECT_NEAR(mean.seconds(), two[0].seconds() / 2, 1e-15);
  EXPECT_NEAR(sum_of(mean), mean.seconds(), 1e-12);
  EXPECT_NE(difference_text(mean).find("(mean of 2 steps)"), std::string::npos);
  EXPECT_THROW(mean_of({}), Error);
}

TEST(TraceDiff, ManySmallCausesAreOne) {
  const Program program = program_for("1f1b", 24, 48);
  const Costs costs = costs_for(program);
  Costs slow = costs;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> factor(1.0, 1.2);
  for (int u = 0; u < program.micro_batches; ++u) slow.micro_batch_scale.push_back(factor(random));
  const StepDifference difference =
      explain(program, time_round(program, costs), time_round(program, slow));
  EXPECT_GT(difference.causes.size(), 20U);
  const std::string text = difference_text(difference);
  EXPECT_NE(text.find("  backwards of all stages "), std::string::npos) << text;
  EXPECT_NE(text.find("  forwards of all stages "), std::string::npos) << text;
  double sum = 0;
  for (const DifferenceCause& cause : by_kind(difference.causes)) sum += cause.seconds;
  EXPECT_NEAR(sum, difference.seconds(), 1e-12);
  EXPECT_EQ(by_kind(difference.causes).front().instruction, Kind::kBackward);
}

TEST(TraceDiff, RefusesEventsOfAnotherProgram) {
  const Program program = program_for("1f1b");
  const Program other = program_for("1f1b", 4, 7);
  EXPECT_THROW(explain(program, time_round(program, costs_for(program)),
                       time_round(other, costs_for(other))),
               Error);
}

}  // namespace
}  // namespace pipetrain
