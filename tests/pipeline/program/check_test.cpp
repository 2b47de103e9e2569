// Every rule of the checker can be broken, and its error says where.
#include "pipeline/program/check.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/complete.h"
#include "support/check_programs.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

TEST(Check, NamesRuleDeviceAndInstruction) {
  Program program = lowered(options_for("1f1b", 2, 2));
  program.device[1].erase(program.device[1].begin() + 1);
  try {
    check(program, ErrorKind::kUsage);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(
        error.what(),
        "schedule '1f1b' breaks rule 2 (coverage): device 1 has no forward of micro-batch 0 on "
        "stage 1");
  }
}

// One function because only all of its mutants together break every rule.
TEST(Check, EveryRuleCanBeBroken) {
  std::set<int> broken;
  const Program program = lowered(options_for("1f1b", 3, 4));
  const auto rule_of = [&](auto&& change, Program mutant) {
    change(mutant);
    const int rule = broken_rule(mutant);
    broken.insert(rule);
    return static_cast<CheckRule>(rule);
  };
  // Finds an instruction by its text on a device.
  const auto at = [](Program& p, std::size_t d, const std::string& text) -> Instruction& {
    for (Instruction& instruction : p.device[d]) {
      if (to_text(p, instruction) == text) return instruction;
    }
    throw std::runtime_error("no " + text);
  };
  EXPECT_EQ(rule_of([](Program& p) { p.micro_batches = 0; }, program), CheckRule::kForm);
  EXPECT_EQ(rule_of([](Program& p) { p.device[0].push_back(p.device[0][0]); }, program),
            CheckRule::kCoverage);
  EXPECT_EQ(rule_of([](Program& p) { std::swap(p.device[0], p.device[1]); }, program),
            CheckRule::kPlacement);
  EXPECT_EQ(rule_of([&](Program& p) { std::swap(at(p, 2, "2F1"), at(p, 2, "2B1")); }, program),
            CheckRule::kLocalOrder);
  EXPECT_EQ(rule_of(
                [](Program& p) {
                  std::erase_if(p.device[0],
                                [](const Instruction& i) { return i.kind == Kind::kSend; });
                },
                program),
            CheckRule::kTransfers);
  EXPECT_EQ(rule_of([&](Program& p) { std::swap(at(p, 0, "0F0"), at(p, 0, "0SF0>1")); }, program),
            CheckRule::kTransferPlace);
  EXPECT_EQ(rule_of([&](Program& p) { std::swap(at(p, 1, "1RF0<0"), at(p, 1, "1RF1<0")); },
                    lowered(options_for("gpipe", 2, 2))),
            CheckRule::kTransferPlace);
  EXPECT_EQ(rule_of(
                [&](Program& p) {
                  // Both receives still before both forwards, but in the wrong order.
                  p.device[1] = {at(p, 1, "1RF1<0"), at(p, 1, "1RF0<0"), at(p, 1, "1F0"),
                                 at(p, 1, "1F1"),    at(p, 1, "1B0"),    at(p, 1, "1SB0>0"),
                                 at(p, 1, "1B1"),    at(p, 1, "1SB1>0"), at(p, 1, "1U")};
                },
                lowered(options_for("gpipe", 2, 2))),
            CheckRule::kChannelOrder);
  EXPECT_EQ(rule_of(
                [&](Program& p) {
                  // Stage 0 wants the gradient before it gives the forward that it depends on.
                  p.device[0] = {at(p, 0, "0F0"),    at(p, 0, "0SF0>1"), at(p, 0, "0RB0<1"),
                                 at(p, 0, "0B0"),    at(p, 0, "0F1"),    at(p, 0, "0SF1>1"),
                                 at(p, 0, "0RB1<1"), at(p, 0, "0B1"),    at(p, 0, "0U")};
                },
                lowered(options_for("gpipe", 2, 2))),
            CheckRule::kLanes);
  EXPECT_EQ(rule_of(
                [&](Program& p) {
                  // The send of a gradient waits for a device that waits to send.
                  p.device[1] = {at(p, 1, "1RF0<0"), at(p, 1, "1F0"),    at(p, 1, "1B0"),
                                 at(p, 1, "1SB0>0"), at(p, 1, "1RF1<0"), at(p, 1, "1F1"),
                                 at(p, 1, "1B1"),    at(p, 1, "1SB1>0"), at(p, 1, "1U")};
                },
                lowered(options_for("1f1b", 2, 2))),
            CheckRule::kRendezvous);
  EXPECT_EQ(rule_of([&](Program& p) { p.slots_per_stage[0] = 2; }, program),
            CheckRule::kActivations);
  EXPECT_EQ(rule_of([&](Program& p) { p.slots_per_edge[0] = 1; }, program),
            CheckRule::kReceiveBuffers);
  EXPECT_EQ(rule_of([&](Program& p) { at(p, 0, "0B2").version = 1; }, program),
            CheckRule::kVersions);
  EXPECT_EQ(rule_of([&](Program& p) { p.versions_per_stage[0] = 2; },
                    lowered(options_for("pipedream", 3, 4))),
            CheckRule::kVersions);
  EXPECT_EQ(rule_of([](Program& p) { p.device[2].pop_back(); }, program), CheckRule::kUpdates);
  ScheduleOptions options = options_for("1f1b", 3, 4);
  options.gradient_sync = true;
  EXPECT_EQ(rule_of([](Program& p) { std::swap(p.device[1].back(), p.device[1].end()[-2]); },
                    lowered(options)),
            CheckRule::kGradientSync);
  EXPECT_EQ(rule_of(
                [](Program& p) {
                  // Last-in first-out backwards, right in all but the order of the additions.
                  p.device[0] = {{Kind::kForward, 0, 0, -1, 0, 0},
                                 {Kind::kForward, 0, 1, -1, 0, 1},
                                 {Kind::kBackward, 0, 1, -1, 0, 1},
                                 {Kind::kBackward, 0, 0, -1, 0, 0},
                                 {Kind::kUpdate, 0, -1, -1, 1, -1}};
                },
                lowered(options_for("gpipe", 1, 2))),
            CheckRule::kMicroBatchOrder);
  EXPECT_EQ(rule_of(
                [](Program& p) {
                  std::erase_if(p.device[1],
                                [](const Instruction& i) { return i.kind == Kind::kReduce; });
                },
                two_directions()),
            CheckRule::kReduces);
  EXPECT_EQ(
      rule_of([&](Program& p) { std::swap(at(p, 1, "0A"), at(p, 1, "1A")); }, two_directions()),
      CheckRule::kCollectives);
  EXPECT_EQ(broken.size(), static_cast<std::size_t>(CheckRule::kVersions));
}

// Output buffers are taken in turn: those of another order would be waited for in a circle, or
// overwritten.
TEST(Check, InputGradientsFollowTheOrderOfTheMicroBatches) {
  const std::string waits = "F0 F1 I1 I0 W0 F2 I2 W1 W2", overwrites = "F0 F1 I1 I0 W0 W1 F2 I2 W2";
  for (const std::string& list : {waits, overwrites}) {
    const Program program = program_of_words({list, list}, 2, 3, {0, 1});
    EXPECT_EQ(broken_rule(lower(program, chain_edges(2, 1))),
              static_cast<int>(CheckRule::kMicroBatchOrder));
  }
  const std::string mixed = "F0 F1 I0 I1 W0 W1 F2 B2";
  EXPECT_EQ(broken_rule(program_of_words({mixed, mixed}, 2, 3, {0, 1})), 0);
}

TEST(Check, AcceptsProgramsWithoutTransfersYet) {
  for (const ScheduleDescription& schedule : schedules()) {
    EXPECT_NO_THROW(check(generate(options_for(schedule.name, 4, 6))));
  }
}

/// Every send right after what makes its data, every receive right before what reads it.
Program lower_naively(const Program& program) {
  Program result = program;
  for (std::size_t e = 0; e < result.edges.size(); ++e) {
    const Edge& edge = result.edges[e];
    for (int micro_batch = 0; micro_batch < result.micro_batches; ++micro_batch) {
      const int from = result.device_of(edge.from_stage, micro_batch);
      const int to = result.device_of(edge.to_stage, micro_batch);
      if (from == to) continue;
      result.transfers.push_back({static_cast<int>(e), edge.from_stage, edge.to_stage, from, to,
                                  micro_batch, edge.gradient});
    }
  }
  for (auto& list : result.device) {
    std::vector<Instruction> moved;
    for (const Instruction& now : list) {
      const bool backward = now.kind == Kind::kBackward || now.kind == Kind::kBackwardInput;
      const bool moves = now.kind == Kind::kForward || backward;
      const auto add = [&](Kind kind) {
        for (std::size_t t = 0; moves && t < result.transfers.size(); ++t) {
          const Transfer& transfer = result.transfers[t];
          const int stage = kind == Kind::kSend ? transfer.from_stage : transfer.to_stage;
          if (stage != now.stage || transfer.micro_batch != now.micro_batch ||
              transfer.gradient != backward) {
            continue;
          }
          moved.push_back({kind, now.stage, now.micro_batch, static_cast<int>(t)});
        }
      };
      add(Kind::kReceive);
      moved.push_back(now);
      add(Kind::kSend);
    }
    list = std::move(moved);
  }
  result.lowered = true;
  annotate(result);
  return result;
}

TEST(Check, FindsTheDeadlockOfNaiveTransfersInEverySchedule) {
  for (const ScheduleDescription& schedule : schedules()) {
    const bool one_way = schedule.name == "gpipe" || schedule.name == "forward";
    const int p = schedule.placement == Placement::kChain ? 3 : 6;
    const int rule = broken_rule(lower_naively(generate(options_for(schedule.name, p, 6))));
    if (one_way) {
      EXPECT_EQ(rule, 0) << schedule.name;
    } else {
      // With several stages on a device even a lane for each end does not help.
      const auto broken = static_cast<CheckRule>(rule);
      EXPECT_TRUE(broken == CheckRule::kRendezvous || broken == CheckRule::kLanes) << schedule.name;
    }
  }
}

TEST(Check, VerticalSyncNeedsTheSameReplicasEverywhere) {
  Program program = generate(options_for("pipedream-vertical", 2, 4));
  program.placement = {{0}, {1, 2}};
  program.devices = 3;
  program.device.emplace_back();
  EXPECT_EQ(static_cast<CheckRule>(broken_rule(program)), CheckRule::kForm);
}

TEST(Check, DoubleBufferingNeedsGroupsAsLongAsTheWarmUp) {
  // With one micro-batch an update, stage 0 of 4 would start a group before the update that it
  // reads.
  Program program = generate(options_for("1f1b", 4, 8));
  program.rule = UpdateRule::kDoubleBuffer;
  for (auto& list : program.device) {
    std::erase_if(list, [](const Instruction& i) { return i.kind == Kind::kUpdate; });
  }
  Program enough = program;
  enough.micro_batches_per_update = 4;
  complete(enough);
  EXPECT_EQ(broken_rule(enough), 0);
  EXPECT_EQ(enough.versions_per_stage[0], 2);
  program.micro_batches_per_update = 1;
  complete(program);
  EXPECT_EQ(static_cast<CheckRule>(broken_rule(program)), CheckRule::kVersions);
}

TEST(Check, IsLinear) {
  // 16 stages, 1024 micro-batches: a quadratic pass would take minutes.
  const Program program = lowered(options_for("1f1b", 16, 1024));
  std::size_t instructions = 0;
  for (const auto& list : program.device) instructions += list.size();
  EXPECT_NO_THROW(check(program));
  EXPECT_GT(instructions, 90000U);
}

}  // namespace
}  // namespace pipetrain
