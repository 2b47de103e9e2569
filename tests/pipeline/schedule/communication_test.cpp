// Every schedule's communication plan is run by a strict model: a group completes only when all its
// parts have met their peers, a device runs one group at a time, and consumers wait. No plan relies
// on more than NCCL guarantees.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/index.h"
#include "pipeline/program/check.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/schedule/communication_plan.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/transport/channel.h"
#include "pipeline/transport/exchange.h"
#include "support/imported_schedules.h"
#include "support/recorded_devices.h"

namespace pipetrain {
namespace {

/// Threads of devices, threads that issue, and streams: all as slow to go on as they may be.
class Model {
 public:
  Model(const Program& program, const CommunicationPlan& plan, std::vector<int> rank_of_device)
      : program_(program),
        plan_(plan),
        ranks_(std::move(rank_of_device)),
        capacity_(stage_capacities({&program})),
        next_(program.device.size(), 0),
        group_(plan.groups.size(), 0),
        offered_(plan.operations.size()),
        done_(plan.operations.size(), false) {}

  /// Where it gets stuck; empty: everything was exchanged.
  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t d = 0; d < next_.size(); ++d) moved = step(static_cast<int>(d)) || moved;
      moved = exchange() || moved;
    }
    for (std::size_t d = 0; d < next_.size(); ++d) {
      if (next_[d] < program_.device[d].size())
        return "device " + std::to_string(d) + " at " +
               to_text(program_, program_.device[d][next_[d]]);
    }
    for (std::size_t r = 0; r < group_.size(); ++r) {
      if (group_[r] < plan_.groups[r].size()) return "rank " + std::to_string(r);
    }
    return {};
  }

 private:
  bool over(int operation) const { return operation < 0 || done_[at(operation)]; }

  /// A device's thread goes one instruction further if it can.
  bool step(int device) {
    const auto& list = program_.device[at(device)];
    if (next_[at(device)] >= list.size()) return false;
    const Instruction& instruction = list[next_[at(device)]];
    const int operation = plan_.operation_at[at(device)][next_[at(device)]];
    if (operation >= 0) {
      offered_[at(operation)].insert(device);
      if (instruction.kind == Kind::kReduce && !over(operation)) return false;
    } else if (instruction.kind == Kind::kReduce) {
      if (!all_at(Kind::kReduce, instruction.stage)) return false;
    } else if (instruction.kind == Kind::kGradientSync) {
      if (!all_at(Kind::kGradientSync, -1)) return false;
    } else if (is_compute(instruction.kind) && !can_compute(instruction)) {
      return false;
    }
    if (is_compute(instruction.kind))
      computed_.insert(
          {static_cast<int>(instruction.kind), instruction.stage, instruction.micro_batch});
    ++next_[at(device)];
    return true;
  }

  /// Whether everybody who meets there has come; they stay until the next step of each.
  bool all_at(Kind kind, int stage) {
    if (met_.count({kind, stage, passed_[{kind, stage}]}) == 0) {
      for (std::size_t d = 0; d < next_.size(); ++d) {
        if (stage >= 0) {
          const auto& on = program_.placement[at(stage)];
          if (std::find(on.begin(), on.end(), static_cast<int>(d)) == on.end()) continue;
        }
        if (next_[d] >= program_.device[d].size()) return false;
        const Instruction& here = program_.device[d][next_[d]];
        if (here.kind != kind || here.stage != stage) return false;
      }
      met_.insert({kind, stage, passed_[{kind, stage}]});
      left_[{kind, stage}] = static_cast<int>(stage >= 0 ? program_.placement[at(stage)].size()
                                                         : program_.device.size());
    }
    if (--left_[{kind, stage}] == 0) ++passed_[{kind, stage}];
    return true;
  }

  bool has_computed(Kind kind, int stage, int micro_batch) const {
    return computed_.count({static_cast<int>(kind), stage, micro_batch}) > 0;
  }

  bool can_compute(const Instruction& instruction) {
    const bool forward = instruction.kind == Kind::kForward;
    const bool gradient =
        instruction.kind == Kind::kBackward || instruction.kind == Kind::kBackwardInput;
    if (!forward && !gradient) return true;
    for (std::size_t e = 0; e < program_.edges.size(); ++e) {
      const Edge& edge = program_.edges[e];
      if (edge.gradient == forward) continue;
      const int operation = plan_.operation_of_micro_batch[e * at(program_.micro_batches) +
                                                           at(instruction.micro_batch)];
      if (edge.to_stage == instruction.stage) {
        if (!over(operation)) return false;
        const bool made =
            edge.gradient
                ? has_computed(Kind::kBackward, edge.from_stage, instruction.micro_batch) ||
                      has_computed(Kind::kBackwardInput, edge.from_stage, instruction.micro_batch)
                : has_computed(Kind::kForward, edge.from_stage, instruction.micro_batch);
        if (!made) return false;
      }
    }
    return entry_is_free(instruction, gradient);
  }

  bool has_ended(int stage, int micro_batch) const {
    return program_.rule == UpdateRule::kNone
               ? has_computed(Kind::kForward, stage, micro_batch)
               : has_computed(Kind::kBackward, stage, micro_batch) ||
                     has_computed(Kind::kBackwardWeight, stage, micro_batch);
  }

  /// What lies in the entry that an instruction writes has left the device.
  bool entry_is_free(const Instruction& instruction, bool gradient) {
    const StageCapacity& capacity = capacity_[at(instruction.stage)];
    const int entries = gradient ? capacity.gradient_entries : capacity.forward_entries;
    const int replica = program_.replica_of(instruction.stage, instruction.micro_batch);
    std::vector<int>& micro_batches = handed_on_[{instruction.stage, replica, gradient}];
    if (static_cast<int>(micro_batches.size()) >= entries) {
      const int holder = micro_batches[micro_batches.size() - at(entries)];
      for (std::size_t e = 0; e < program_.edges.size(); ++e) {
        const Edge& edge = program_.edges[e];
        if (edge.from_stage != instruction.stage || edge.gradient != gradient) continue;
        const int operation =
            plan_.operation_of_micro_batch[e * at(program_.micro_batches) + at(holder)];
        if (operation >= 0 ? !over(operation) : !has_ended(edge.to_stage, holder)) return false;
      }
    }
    micro_batches.push_back(instruction.micro_batch);
    return true;
  }

  /// Groups that are first on all ranks of one of their parts exchange it.
  bool exchange() {
    bool moved = false;
    std::vector<std::set<int>> reached(group_.size());
    for (std::size_t r = 0; r < group_.size(); ++r) {
      if (group_[r] >= plan_.groups[r].size()) continue;
      const std::vector<int>& group = plan_.groups[r][group_[r]];
      if (std::all_of(group.begin(), group.end(), [&](int o) { return is_offered(o, r); }))
        reached[r].insert(group.begin(), group.end());
    }
    for (const std::set<int>& group : reached) {
      for (const int o : group) {
        const auto& devices = plan_.operations[at(o)].devices;
        if (done_[at(o)] || !std::all_of(devices.begin(), devices.end(), [&](int device) {
              return reached[at(ranks_[at(device)])].count(o) > 0;
            }))
          continue;
        done_[at(o)] = true;
        moved = true;
      }
    }
    for (std::size_t r = 0; r < group_.size(); ++r) {
      if (reached[r].empty()) continue;
      const std::vector<int>& group = plan_.groups[r][group_[r]];
      if (!std::all_of(group.begin(), group.end(), [&](int o) { return done_[at(o)]; })) continue;
      ++group_[r];
      moved = true;
    }
    return moved;
  }

  bool is_offered(int operation, std::size_t rank) const {
    for (const int device : plan_.operations[at(operation)].devices) {
      if (at(ranks_[at(device)]) == rank && offered_[at(operation)].count(device) == 0)
        return false;
    }
    return true;
  }

  const Program& program_;
  const CommunicationPlan& plan_;
  std::vector<int> ranks_;
  std::vector<StageCapacity> capacity_;
  std::vector<std::size_t> next_, group_;
  std::vector<std::set<int>> offered_;
  std::vector<bool> done_;
  std::set<std::tuple<int, int, int>> computed_;
  std::set<std::tuple<Kind, int, int>> met_;
  std::map<std::pair<Kind, int>, int> passed_, left_;
  std::map<std::tuple<int, int, bool>, std::vector<int>> handed_on_;
};

struct Counts {
  std::uint64_t programs = 0, groups = 0, operations = 0, faults = 0;
};

std::vector<int> ranks_of(int devices, bool shared) {
  std::vector<int> ranks;
  // Two of the program's devices a GPU: neighbours.
  for (int d = 0; d < devices; ++d) ranks.push_back(shared ? d / 2 : d);
  return ranks;
}

/// Two groups of a rank in the wrong order, where both exchange with one other rank.
void plant_faults(const Program& program, const CommunicationPlan& plan,
                  const std::vector<int>& ranks, Counts& counts, const std::string& what) {
  const auto others = [&](const std::vector<int>& group, int rank) {
    std::set<int> out;
    for (const int o : group) {
      for (const int device : plan.operations[at(o)].devices) {
        if (ranks[at(device)] != rank) out.insert(ranks[at(device)]);
      }
    }
    return out;
  };
  for (std::size_t r = 0; r < plan.groups.size(); ++r) {
    // The first, one in the middle and the last.
    const std::size_t count = plan.groups[r].size();
    for (const std::size_t g : std::set<std::size_t>{0, count / 2, count > 1 ? count - 2 : 0}) {
      if (g + 1 >= count) continue;
      const std::set<int> one = others(plan.groups[r][g], static_cast<int>(r));
      const std::set<int> two = others(plan.groups[r][g + 1], static_cast<int>(r));
      if (std::none_of(one.begin(), one.end(), [&](int o) { return two.count(o) > 0; })) continue;
      CommunicationPlan wrong = plan;
      std::swap(wrong.groups[r][g], wrong.groups[r][g + 1]);
      EXPECT_FALSE(Model(program, wrong, ranks).run().empty())
          << what << ": groups " << g << " of rank " << r << " are swapped";
      ++counts.faults;
    }
  }
}

void check_exchanges(const Program& program, const std::string& what, Counts& counts) {
  for (const bool shared : {false, true}) {
    const std::vector<int> ranks = ranks_of(program.devices, shared);
    const CommunicationPlan plan = plan_communication(program, ranks);
    EXPECT_EQ(Model(program, plan, ranks).run(), "") << what << (shared ? ", shared" : "");
    ++counts.programs;
    counts.operations += plan.operations.size();
    for (const auto& groups : plan.groups) counts.groups += groups.size();
    if (program.micro_batches <= 8) plant_faults(program, plan, ranks, counts, what);
  }
}

/// A chain, and what a skip connection adds.
std::vector<Edge> edges_of(int stages, bool skip) {
  std::vector<Edge> edges = chain_edges(stages, 1);
  if (skip && stages > 2) {
    edges.push_back({0, stages - 1, 1, false});
    edges.push_back({stages - 1, 0, 1, true});
  }
  return edges;
}

TEST(Communication, EveryScheduleGoesOnWhereSendsWaitForReceives) {
  Counts counts;
  const auto run = [&](ScheduleOptions options, bool skip) {
    std::string what = options.name + ", " + std::to_string(options.stages) + " stages, " +
                       std::to_string(options.micro_batches) + " units";
    for (const int count : options.replicas) what += " r" + std::to_string(count);
    const Program program = lower(generate(options), edges_of(options.stages, skip));
    check(program);
    check_exchanges(program, what, counts);
  };
  for (const ScheduleDescription& schedule : schedules()) {
    for (const int devices : {1, 2, 3, 4, 6, 8}) {
      for (const int micro_batches : {1, 3, 8, 16}) {
        for (const bool skip : {false, true}) {
          ScheduleOptions options;
          options.name = schedule.name;
          options.stages = devices * stages_per_device(schedule.name, 2);
          options.micro_batches = micro_batches;
          options.gradient_sync = skip && schedule.rule == UpdateRule::kSync;
          // Interleaved schedules take whole groups of micro-batches.
          if (stages_per_device(schedule.name, 2) == 2 && micro_batches % devices != 0) continue;
          run(options, skip);
        }
      }
    }
    if (!schedule.takes_replicas) continue;
    for (const auto& replicas : std::vector<std::vector<int>>{
             {2}, {4}, {2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 3, 2}, {2, 2, 2, 2}}) {
      for (const int micro_batches : {7, 12}) {
        ScheduleOptions options;
        options.name = schedule.name;
        options.stages = static_cast<int>(replicas.size());
        options.micro_batches = micro_batches;
        options.replicas = replicas;
        if (schedule.name == "pipedream-2bw") options.micro_batches_per_update = 6;
        run(options, false);
      }
    }
  }
  for (const int devices : {2, 4}) {
    const Program program = lower(chimera(devices, 2 * devices), chain_edges(devices, 1));
    check(program);
    check_exchanges(program, "chimera", counts);
  }
  EXPECT_GT(counts.faults, 100U);
  std::printf(
      "[ figure  ] %llu programs checked: %llu groups of %llu exchanges; %llu planted "
      "faults found\n",
      static_cast<unsigned long long>(counts.programs),
      static_cast<unsigned long long>(counts.groups),
      static_cast<unsigned long long>(counts.operations),
      static_cast<unsigned long long>(counts.faults));
}

// The groups of 1F1B in its steady state: activations one way and gradients the other in one.
TEST(Communication, GroupsAreWhatLiesBetweenTwoComputations) {
  ScheduleOptions options;
  options.name = "1f1b";
  options.stages = 2;
  options.micro_batches = 3;
  const Program program = lower(generate(options), chain_edges(2, 1));
  const CommunicationPlan plan = plan_communication(program, {0, 1});
  std::vector<std::size_t> sizes;
  for (const auto& group : plan.groups[0]) sizes.push_back(group.size());
  EXPECT_EQ(plan.groups[0], plan.groups[1]);
  std::size_t sum = 0;
  for (const std::size_t size : sizes) sum += size;
  EXPECT_EQ(sum, 6U);
  EXPECT_EQ(*std::max_element(sizes.begin(), sizes.end()), 2U);
}

TEST(Communication, ListsWithoutOneOrderAreRefused) {
  ScheduleOptions options;
  options.name = "gpipe";
  options.stages = 2;
  options.micro_batches = 2;
  Program program = lower(generate(options), chain_edges(2, 1));
  std::vector<Instruction*> receives;
  for (Instruction& instruction : program.device[1]) {
    if (instruction.kind == Kind::kReceive) receives.push_back(&instruction);
  }
  ASSERT_EQ(receives.size(), 2U);
  std::swap(*receives[0], *receives[1]);
  EXPECT_THROW(plan_communication(program, {0, 1}), Error);
}

/// Two devices whose ranks are driven by hand, each by a thread of its own.
class TwoRanks : public testing::Test {
 protected:
  using Body = std::function<void(Communicator&, Stream&, float*)>;

  void run(const Body& zero, const Body& one, double seconds = 5) {
    const CommunicatorId id = machine.collectives().make_id();
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        const DeviceMemory memory = machine.device(rank).allocate(4 * sizeof(float));
        auto* values = reinterpret_cast<float*>(memory.data());
        std::vector<float> begin = {1.0F + static_cast<float>(rank), 20, 30, 40};
        const auto stream = machine.device(rank).make_stream();
        const auto point = machine.device(rank).make_point();
        stream->copy(values, begin.data(), 16);
        const auto communicator = machine.collectives().connect(machine.device(rank), id, rank, 2,
                                                                CommunicatorUse::kEdges);
        while (!communicator->is_settled()) std::this_thread::yield();
        (rank == 0 ? zero : one)(*communicator, *stream, values);
        stream->copy(results[rank], values, 16);
        stream->record(*point);
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
        bool reached = false;
        while (!reached && std::chrono::steady_clock::now() < until) reached = point->reached();
        if (!reached) {
          stuck = true;
          problems = machine.problems();
          communicator->abort();
        }
        stream->synchronize();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!stuck) problems = machine.problems();
  }

  static void in_group(Communicator& communicator, const std::function<void()>& body) {
    communicator.begin_group();
    body();
    communicator.end_group();
  }

  test::RecordedMachine machine{2, 7};
  float results[2][4] = {};
  std::atomic<bool> stuck = false;
  std::vector<std::string> problems;
};

TEST_F(TwoRanks, AddUp) {
  const Body body = [](Communicator& communicator, Stream& stream, float* values) {
    in_group(communicator, [&] { communicator.all_reduce(stream, values, 1); });
  };
  run(body, body);
  EXPECT_FALSE(stuck);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(results[0][0], 3.0F);
  EXPECT_EQ(results[1][0], 3.0F);
}

TEST_F(TwoRanks, BothWaysInOneGroup) {
  const auto both = [](int peer) {
    return [peer](Communicator& communicator, Stream& stream, float* values) {
      in_group(communicator, [&] {
        communicator.send(stream, values, 4, peer);
        communicator.receive(stream, values + 1, 4, peer);
      });
    };
  };
  run(both(1), both(0));
  EXPECT_FALSE(stuck);
  EXPECT_TRUE(problems.empty()) << problems[0];
  EXPECT_EQ(results[0][1], 2.0F);
  EXPECT_EQ(results[1][1], 1.0F);
}

TEST_F(TwoRanks, BothSendFirstAndWaitForEver) {
  const auto one_by_one = [](int peer) {
    return [peer](Communicator& communicator, Stream& stream, float* values) {
      in_group(communicator, [&] { communicator.send(stream, values, 4, peer); });
      in_group(communicator, [&] { communicator.receive(stream, values + 1, 4, peer); });
    };
  };
  run(one_by_one(1), one_by_one(0), 0.3);
  EXPECT_TRUE(stuck);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems[0].find("in an order in which they wait"), std::string::npos) << problems[0];
}

TEST_F(TwoRanks, SizesDiffer) {
  run([](Communicator& c, Stream& s, float* v) { in_group(c, [&] { c.send(s, v, 8, 1); }); },
      [](Communicator& c, Stream& s, float* v) { in_group(c, [&] { c.receive(s, v, 4, 0); }); });
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0], "8 bytes are exchanged for 4");
}

TEST_F(TwoRanks, ReceivesWhatAnotherStreamStillReads) {
  run([](Communicator& c, Stream& s, float* v) { in_group(c, [&] { c.send(s, v, 4, 1); }); },
      [&](Communicator& c, Stream& s, float* v) {
        const auto other = machine.device(1).make_stream();
        static float elsewhere[4];
        other->copy(elsewhere, v, 16);
        in_group(c, [&] { c.receive(s, v, 4, 0); });
        other->synchronize();
      });
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems[0].find("nothing orders"), std::string::npos) << problems[0];
}

TEST_F(TwoRanks, TwoThreadsOfOneDevice) {
  run([](Communicator& c, Stream& s,
         float* v) { std::thread([&] { in_group(c, [&] { c.send(s, v, 4, 1); }); }).join(); },
      [](Communicator& c, Stream& s, float* v) { in_group(c, [&] { c.receive(s, v, 4, 0); }); });
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0], "recorded 0 is given exchanges by two threads");
}

}  // namespace
}  // namespace pipetrain
