// The checker is tested by mutation: every small change to a right program must be refused, or a
// symbolic run of all lanes must show that it changes nothing.
#include "pipeline/check.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "example_programs.h"
#include "pipeline/simulate.h"
#include "symbolic_run.h"

namespace pipetrain {
namespace {

/// The rule that a program breaks, by its number; 0 if it is accepted.
int broken_rule(const Program& program) {
  try {
    check(program);
    return 0;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    const std::string text = error.message();
    const std::size_t number = text.find("breaks rule ");
    if (number == std::string::npos) {
      ADD_FAILURE() << "names no rule: " << text;
      return -1;
    }
    return std::stoi(text.substr(number + 12));
  }
}

struct Tally {
  int mutants = 0, rejected = 0, equivalent = 0;
  int sampled = 0, harmful = 0;  // of the rejected, by one symbolic run each
  std::map<int, int> by_rule;
};

/// Judges mutants of one program.
class Judge {
 public:
  Judge(const Program& program, const std::vector<int>& warm, Tally& tally)
      : original_(program), expected_(symbolic::serial_round(program, warm)), tally_(tally) {
    EXPECT_EQ(broken_rule(program), 0);
    EXPECT_TRUE(is_equivalent(program, 8)) << "the symbolic run does not know " << program.schedule;
  }

  void judge(const Program& mutant, const std::string& what) {
    if (mutant == original_) return;
    ++tally_.mutants;
    const int rule = broken_rule(mutant);
    if (rule != 0) {
      ++tally_.rejected;
      ++tally_.by_rule[rule];
      constexpr int kSample = 4;
      if (tally_.rejected % kSample != 0) return;
      ++tally_.sampled;
      if (!is_equivalent(mutant, 1)) ++tally_.harmful;
      return;
    }
    ++tally_.equivalent;
    EXPECT_TRUE(is_equivalent(mutant, 8))
        << "accepted wrongly: " << original_.schedule << ", " << what;
  }

 private:
  bool is_equivalent(const Program& program, std::uint32_t runs) const {
    try {
      for (std::uint32_t seed = 0; seed < runs; ++seed) {
        if (symbolic::Run(program, seed).run() != expected_) return false;
      }
      if (runs > 1) {
        Costs costs = uniform_costs(program, {});
        costs.transfers = TransferMode::kRendezvous;
        simulate(program, costs);
      }
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  const Program& original_;
  const symbolic::Result expected_;
  Tally& tally_;
};

/// Calls `judge` with the program changed by `change`.
template <class Change>
void mutate(const Program& program, Judge& judge, const std::string& what, Change&& change) {
  Program mutant = program;
  change(mutant);
  judge.judge(mutant, what);
}

void mutate_fields(const Program& program, Judge& judge, std::size_t d, std::size_t i) {
  const std::string text = to_text(program, program.device[d][i]);
  const auto field = [&](const char* name, int Instruction::*member, int by) {
    mutate(program, judge, text + " " + name, [&](Program& p) { p.device[d][i].*member += by; });
  };
  for (const int by : {-2, -1, 1, 2, 1000000, -1000000}) {
    field("stage", &Instruction::stage, by);
    field("unit", &Instruction::unit, by);
    field("transfer", &Instruction::transfer, by);
    field("version", &Instruction::version, by);
    field("slot", &Instruction::slot, by);
  }
  for (int kind = 0; kind <= static_cast<int>(Kind::kUpdate) + 1; ++kind) {
    mutate(program, judge, text + " kind",
           [&](Program& p) { p.device[d][i].kind = static_cast<Kind>(kind); });
  }
  const Instruction& instruction = program.device[d][i];
  for (std::size_t t = 0; is_transfer(instruction.kind) && t < program.transfers.size(); ++t) {
    // Another transfer in every respect, so that only the whole gives it away.
    mutate(program, judge, text + " other transfer", [&](Program& p) {
      Instruction& changed = p.device[d][i];
      changed.transfer = static_cast<int>(t);
      changed.unit = p.transfers[t].unit;
      changed.stage =
          changed.kind == Kind::kSend ? p.transfers[t].from_stage : p.transfers[t].to_stage;
    });
  }
}

void mutate_places(const Program& program, Judge& judge, std::size_t d, std::size_t i) {
  const auto offset = [](std::size_t index) { return static_cast<std::ptrdiff_t>(index); };
  const std::string text = to_text(program, program.device[d][i]);
  const std::size_t size = program.device[d].size();
  mutate(program, judge, text + " dropped",
         [&](Program& p) { p.device[d].erase(p.device[d].begin() + offset(i)); });
  mutate(program, judge, text + " twice", [&](Program& p) {
    const Instruction copy = p.device[d][i];
    p.device[d].insert(p.device[d].begin() + offset(i), copy);
  });
  mutate(program, judge, text + " twice, late",
         [&](Program& p) { p.device[d].push_back(Instruction(p.device[d][i])); });
  for (std::size_t j = i + 1; j < size; ++j) {
    mutate(program, judge, text + " swapped with " + to_text(program, program.device[d][j]),
           [&](Program& p) { std::swap(p.device[d][i], p.device[d][j]); });
    mutate(program, judge, text + " moved", [&](Program& p) {
      auto& list = p.device[d];
      std::rotate(list.begin() + offset(i), list.begin() + offset(i + 1),
                  list.begin() + offset(j + 1));
    });
    mutate(program, judge, text + " moved here", [&](Program& p) {
      auto& list = p.device[d];
      std::rotate(list.begin() + offset(i), list.begin() + offset(j), list.begin() + offset(j + 1));
    });
  }
  for (std::size_t other = 0; other < program.device.size(); ++other) {
    if (other == d) continue;
    mutate(program, judge, text + " to another device", [&](Program& p) {
      auto& list = p.device[other];
      list.insert(list.begin() + offset(std::min(i, list.size())), p.device[d][i]);
      p.device[d].erase(p.device[d].begin() + offset(i));
    });
  }
}

void mutate_transfers(const Program& program, Judge& judge) {
  for (std::size_t t = 0; t < program.transfers.size(); ++t) {
    const auto field = [&](const char* name, int Transfer::*member, int by) {
      mutate(program, judge, std::string("transfer ") + name,
             [&](Program& p) { p.transfers[t].*member += by; });
    };
    for (const int by : {-1, 1}) {
      field("edge", &Transfer::edge, by);
      field("from stage", &Transfer::from_stage, by);
      field("to stage", &Transfer::to_stage, by);
      field("from device", &Transfer::from_device, by);
      field("to device", &Transfer::to_device, by);
      field("unit", &Transfer::unit, by);
    }
    mutate(program, judge, "transfer direction",
           [&](Program& p) { p.transfers[t].gradient = !p.transfers[t].gradient; });
    for (std::size_t u = 0; u < t; ++u) {
      mutate(program, judge, "transfers swapped",
             [&](Program& p) { std::swap(p.transfers[t], p.transfers[u]); });
    }
  }
  mutate(program, judge, "a transfer too few", [](Program& p) {
    if (!p.transfers.empty()) p.transfers.pop_back();
  });
  mutate(program, judge, "a transfer too many", [](Program& p) {
    if (!p.transfers.empty()) p.transfers.push_back(p.transfers[0]);
  });
}

void mutate_tables(const Program& program, Judge& judge) {
  const auto entries = [&](const char* name, std::vector<int> Program::*table) {
    for (std::size_t n = 0; n < (program.*table).size(); ++n) {
      for (const int by : {-1, 1, -1000, 1000}) {
        mutate(program, judge, name, [&](Program& p) { (p.*table)[n] += by; });
      }
    }
    mutate(program, judge, name, [&](Program& p) { (p.*table).push_back(1); });
    mutate(program, judge, name, [&](Program& p) {
      if (!(p.*table).empty()) (p.*table).pop_back();
    });
  };
  entries("slots per stage", &Program::slots_per_stage);
  entries("versions per stage", &Program::versions_per_stage);
  entries("slots per edge", &Program::slots_per_edge);
  entries("route", &Program::route);
  for (std::size_t s = 0; s < program.placement.size(); ++s) {
    for (std::size_t r = 0; r < program.placement[s].size(); ++r) {
      for (const int by : {-1, 1, -1000, 1000}) {
        mutate(program, judge, "placement", [&](Program& p) { p.placement[s][r] += by; });
      }
    }
    mutate(program, judge, "a replica too many",
           [&](Program& p) { p.placement[s].push_back((p.placement[s][0] + 1) % p.devices); });
    mutate(program, judge, "a replica too few", [&](Program& p) { p.placement[s].pop_back(); });
    mutate(program, judge, "replicas turned", [&](Program& p) {
      std::rotate(p.placement[s].begin(), p.placement[s].begin() + 1, p.placement[s].end());
    });
  }
  mutate(program, judge, "units per update", [&](Program& p) { ++p.units_per_update; });
  for (const int by : {-1, 1, 1 << 30}) {
    mutate(program, judge, "stages", [&](Program& p) { p.stages += by; });
    mutate(program, judge, "units", [&](Program& p) { p.units += by; });
    mutate(program, judge, "devices", [&](Program& p) { p.devices += by; });
  }
  for (const UpdateRule rule : {UpdateRule::kNone, UpdateRule::kSync, UpdateRule::kStash,
                                UpdateRule::kVertical, UpdateRule::kDoubleBuffer}) {
    mutate(program, judge, "rule", [&](Program& p) { p.rule = rule; });
  }
  mutate(program, judge, "gradient sync", [](Program& p) { p.gradient_sync = !p.gradient_sync; });
  mutate(program, judge, "lowered", [](Program& p) { p.lowered = !p.lowered; });
  for (std::size_t s = 0; s < program.recompute.size(); ++s) {
    mutate(program, judge, "recompute",
           [&](Program& p) { p.recompute[s] = !static_cast<bool>(p.recompute[s]); });
  }
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    mutate(program, judge, "edge gone",
           [&](Program& p) { p.edges.erase(p.edges.begin() + static_cast<std::ptrdiff_t>(e)); });
    mutate(program, judge, "edge turned",
           [&](Program& p) { std::swap(p.edges[e].from_stage, p.edges[e].to_stage); });
    mutate(program, judge, "edge direction",
           [&](Program& p) { p.edges[e].gradient = !p.edges[e].gradient; });
  }
}

void mutate_everything(const Program& program, const std::vector<int>& warm, Tally& tally) {
  Judge judge(program, warm, tally);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      mutate_fields(program, judge, d, i);
      mutate_places(program, judge, d, i);
    }
  }
  mutate_transfers(program, judge);
  mutate_tables(program, judge);
}

void report(const std::string& name, const Tally& tally) {
  std::string rules;
  for (const auto& [rule, count] : tally.by_rule) {
    rules += fmt::format(" {}:{}", to_text(static_cast<CheckRule>(rule)), count);
  }
  std::printf(
      "%s: %d mutants, %d rejected (%d of %d sampled shown harmful), %d accepted and shown "
      "equivalent\n  %s\n",
      name.c_str(), tally.mutants, tally.rejected, tally.harmful, tally.sampled, tally.equivalent,
      rules.c_str());
  EXPECT_EQ(tally.mutants, tally.rejected + tally.equivalent);
  EXPECT_GT(tally.mutants, 500);
  // A checker that refuses everything would pass too; and so would an oracle that harms nothing.
  EXPECT_GT(tally.equivalent, 0);
  // (Many a refused swap of a transfer would do no harm where every lane runs ahead.)
  EXPECT_GT(tally.harmful, tally.sampled / 8);
}

/// Two stages of two replicas that stand in opposite directions (Li and Hoefler, Chimera, 2021):
/// unit 0 goes from device 0 to 1, unit 1 from 1 to 0.
Program two_directions() {
  Program program = program_of_words({"F0.0 F1.1 B1.1 B0.0", "F0.1 F1.0 B1.0 B0.1"}, 2, 2, {0, 1});
  program.placement = {{0, 1}, {1, 0}};
  program.route = {0, 1};
  for (auto& list : program.device) {
    std::erase_if(list, [](const Instruction& i) { return i.kind == Kind::kUpdate; });
    for (const int stage : {0, 1}) list.push_back({Kind::kReduce, stage});
    for (const int stage : {0, 1}) list.push_back({Kind::kUpdate, stage});
  }
  return lower(program, chain_edges(2, 1));
}

const std::vector<Edge> kSkips = {{0, 1, 4, false}, {1, 0, 4, true},  {1, 2, 4, false},
                                  {2, 1, 4, true},  {0, 2, 4, false}, {2, 0, 4, true}};

TEST(CheckMutation, Gpipe) {
  Tally tally;
  mutate_everything(lowered(options_for("gpipe", 3, 3)), {}, tally);
  ScheduleOptions options = options_for("gpipe", 2, 2);
  options.recompute = {true, true};
  mutate_everything(lowered(options), {}, tally);
  report("gpipe", tally);
}

TEST(CheckMutation, OneForwardOneBackward) {
  Tally tally;
  mutate_everything(lowered(options_for("1f1b", 3, 4)), {}, tally);
  ScheduleOptions options = options_for("1f1b", 3, 3);
  options.gradient_sync = true;
  options.recompute = {true, false, true};
  mutate_everything(lower(generate(options), kSkips), {}, tally);
  report("1f1b", tally);
}

TEST(CheckMutation, Pipedream) {
  Tally tally;
  mutate_everything(lowered(options_for("pipedream", 3, 4)), standard_warm_up(3), tally);
  mutate_everything(lower(generate(options_for("pipedream", 3, 3)), kSkips), standard_warm_up(3),
                    tally);
  report("pipedream", tally);
}

TEST(CheckMutation, Forward) {
  Tally tally;
  mutate_everything(lowered(options_for("forward", 3, 4)), {}, tally);
  report("forward", tally);
}

TEST(CheckMutation, SplitBackwardAndChunks) {
  Tally tally;
  mutate_everything(lower(zero_bubble_h1(), chain_edges(3, 1)), {}, tally);
  mutate_everything(lower(interleaved(2, 2, 2), chain_edges(4, 1)), {}, tally);
  report("zero-bubble and interleaved", tally);
}

TEST(CheckMutation, Replicas) {
  Tally tally;
  mutate_everything(two_directions(), {}, tally);
  report("two directions", tally);
}

TEST(CheckMutation, ManyChangesAtOnce) {
  Tally tally;
  std::mt19937 random(11);
  for (const char* name : {"gpipe", "1f1b", "pipedream", "forward"}) {
    const Program program = lower(generate(options_for(name, 3, 3)), kSkips);
    Judge judge(program, standard_warm_up(3), tally);
    for (int n = 0; n < 2000; ++n) {
      Program mutant = program;
      const std::size_t changes = 2 + random() % 3;
      for (std::size_t c = 0; c < changes; ++c) {
        auto& list = mutant.device[random() % mutant.device.size()];
        const std::size_t i = random() % (list.size() - 1);
        std::swap(list[i], list[i + 1]);
      }
      judge.judge(mutant, "several swaps");
    }
  }
  report("several swaps", tally);
}

TEST(Check, NamesRuleDeviceAndInstruction) {
  Program program = lowered(options_for("1f1b", 2, 2));
  program.device[1].erase(program.device[1].begin() + 1);
  try {
    check(program, ErrorKind::kUsage);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "schedule '1f1b' breaks rule 2 (coverage): device 1 has no forward of unit 0 on "
                 "stage 1");
  }
}

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
  EXPECT_EQ(rule_of([](Program& p) { p.units = 0; }, program), CheckRule::kForm);
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
            CheckRule::kUnitOrder);
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

TEST(Check, AcceptsProgramsWithoutTransfersYet) {
  for (const ScheduleDescription& schedule : schedules()) {
    EXPECT_NO_THROW(check(generate(options_for(schedule.name, 4, 6))));
  }
}

TEST(Check, IsLinear) {
  // 16 stages, 1024 units: a quadratic pass would take minutes.
  const Program program = lowered(options_for("1f1b", 16, 1024));
  std::size_t instructions = 0;
  for (const auto& list : program.device) instructions += list.size();
  EXPECT_NO_THROW(check(program));
  EXPECT_GT(instructions, 90000U);
}

}  // namespace
}  // namespace pipetrain
