// Every small change to a correct program must be refused by the checker, or be harmless in a
// symbolic run of all lanes.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/schedule/warm_up.h"
#include "pipeline/simulate/simulate.h"
#include "support/check_programs.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"
#include "support/symbolic_run.h"

namespace pipetrain {
namespace {

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
      // With numbers out of range there is nothing to run.
      constexpr int kSample = 4;
      if (rule == static_cast<int>(CheckRule::kForm) || tally_.rejected % kSample != 0) return;
      ++tally_.sampled;
      if (!is_equivalent(mutant, 1)) ++tally_.harmful;
      return;
    }
    ++tally_.equivalent;
    EXPECT_TRUE(is_equivalent(mutant, 4))
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
    field("unit", &Instruction::micro_batch, by);
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
      changed.micro_batch = p.transfers[t].micro_batch;
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
  // All neighbours, and fewer the farther away they are.
  for (std::size_t j = i + 1; j < size; j += 1 + (j - i) / 2) {
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
      field("unit", &Transfer::micro_batch, by);
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
  // A micro-batch sent to another replica, with all its instructions where they were.
  for (std::size_t k = 0; k < static_cast<std::size_t>(program.micro_batches); ++k) {
    mutate(program, judge, "another replica", [&](Program& p) {
      if (p.route.empty()) {
        p.route.resize(static_cast<std::size_t>(p.micro_batches));
        std::iota(p.route.begin(), p.route.end(), 0);
      }
      ++p.route[k];
    });
  }
  mutate(program, judge, "units per update", [&](Program& p) { ++p.micro_batches_per_update; });
  for (const int by : {-1, 1, 1 << 30}) {
    mutate(program, judge, "stages", [&](Program& p) { p.stages += by; });
    mutate(program, judge, "units", [&](Program& p) { p.micro_batches += by; });
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

const std::vector<Edge> kSkips = {{0, 1, 4, false}, {1, 0, 4, true},  {1, 2, 4, false},
                                  {2, 1, 4, true},  {0, 2, 4, false}, {2, 0, 4, true}};

/// Warm-up that the weight versions of a schedule follow from; any for those that have none.
std::vector<int> warm_of(const ScheduleOptions& options) {
  if (!options.warm.empty()) return options.warm;
  if (!options.replicas.empty()) return standard_warm_up(options.replicas);
  return standard_warm_up(options.stages);
}

void mutate_schedule(const ScheduleOptions& options, const std::vector<Edge>& edges, Tally& tally) {
  mutate_everything(lower(generate(options), edges), warm_of(options), tally);
}

/// A small program of a schedule: 3 stages in a chain, else 2 on each of 2 devices.
ScheduleOptions small(const ScheduleDescription& schedule) {
  const int stages = schedule.placement == Placement::kChain ? 3 : 4;
  return options_for(schedule.name, stages, 4);
}

class CheckMutation : public testing::TestWithParam<ScheduleDescription> {};

TEST_P(CheckMutation, OfTheSchedule) {
  Tally tally;
  const ScheduleOptions options = small(GetParam());
  mutate_schedule(options, chain_edges(options.stages, 1), tally);
  report(GetParam().name, tally);
}

INSTANTIATE_TEST_SUITE_P(All, CheckMutation, testing::ValuesIn(schedules()),
                         [](const auto& schedule) {
                           std::string name = schedule.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CheckMutations, RecomputeAndSkips) {
  Tally tally;
  ScheduleOptions options = options_for("gpipe", 2, 2);
  options.recompute = {true, true};
  mutate_schedule(options, chain_edges(2, 1), tally);
  options = options_for("1f1b", 3, 3);
  options.gradient_sync = true;
  options.recompute = {true, false, true};
  mutate_schedule(options, kSkips, tally);
  mutate_schedule(options_for("pipedream", 3, 3), kSkips, tally);
  report("recompute and skips", tally);
}

TEST(CheckMutations, Replicas) {
  Tally tally;
  for (const char* name : {"1f1b", "pipedream", "pipedream-2bw"}) {
    for (const std::vector<int>& replicas : {std::vector<int>{2, 1}, {1, 2}}) {
      ScheduleOptions options = options_for(name, 2, 4);
      options.replicas = replicas;
      mutate_schedule(options, chain_edges(2, 1), tally);
    }
  }
  ScheduleOptions options = options_for("gpipe", 2, 3);
  options.replicas = {2, 2};
  options.gradient_sync = true;
  mutate_schedule(options, chain_edges(2, 1), tally);
  mutate_everything(two_directions(), {}, tally);
  report("replicas", tally);
}

TEST(CheckMutations, ImportedSchedules) {
  Tally tally;
  mutate_everything(lower(chimera(4, 4), chain_edges(4, 1)), {}, tally);
  mutate_everything(lower(dual_pipe_v(2, 4).program, chain_edges(4, 1)), {}, tally);
  report("imported", tally);
}

TEST(CheckMutations, ManyChangesAtOnce) {
  Tally tally;
  std::mt19937 random(11);
  for (const char* name :
       {"gpipe", "1f1b", "zb-h1", "pipedream", "pipedream-vertical", "pipedream-2bw", "forward"}) {
    const Program program = lower(generate(options_for(name, 3, 3)), kSkips);
    Judge judge(program, standard_warm_up(3), tally);
    for (int n = 0; n < 500; ++n) {
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

}  // namespace
}  // namespace pipetrain
