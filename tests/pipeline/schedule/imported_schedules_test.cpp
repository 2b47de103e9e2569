// The schedules of the folder schedules/: read as a user's file is, checked, lowered, timed.
#include "support/imported_schedules.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "pipeline/program/check.h"
#include "pipeline/program/text.h"
#include "pipeline/schedule/capacity.h"
#include "pipeline/schedule/plan_costs.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(PIPETRAIN_SOURCE_DIR) + "/schedules/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Program imported(const std::string& name) {
  const Program program = parse_program(file_text(name), name);
  check(program, ErrorKind::kUsage);
  check(lower(program, chain_edges(program.stages, 1)));
  return program;
}

TEST(ImportedSchedules, Chimera) {
  const Program program = imported("chimera-4x4.schedule");
  EXPECT_EQ(program, chimera(4, 4));
  const auto compute = [&](std::size_t device) {
    std::string text = full_text(program, device);
    return text.substr(0, text.find('A') - 2);
  };
  EXPECT_EQ(compute(0), "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1");
  EXPECT_EQ(compute(1), "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1");
  EXPECT_EQ(compute(2), "1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3");
  EXPECT_EQ(compute(3), "0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3");
  EXPECT_EQ(full_text(program, 0).substr(full_text(program, 0).find('A') - 1), "0A 3A 0U 3U");
}

TEST(ImportedSchedules, DualPipeV) {
  const Program program = imported("dualpipev-4x8.schedule");
  EXPECT_EQ(program, dual_pipe_v(4, 8).program);
  // 24 s of work and (p - 1) / 2 idle; as pairs it would be p - 1 (schedule_forms_test.cpp).
  const StageSeconds seconds = {0.5, 1, 0.5, 0.5, 0, 0};
  EXPECT_NEAR(simulate(program, uniform_costs(program, seconds)).makespan, 25.5, 1e-9);
}

TEST(ImportedSchedules, TakeRecomputeAndGradientSync) {
  for (const char* name : {"chimera-4x4.schedule", "dualpipev-4x8.schedule"}) {
    Program program = imported(name);
    const std::vector<std::vector<Instruction>> before = program.device;
    const auto stages = static_cast<std::size_t>(program.stages);
    set_recompute(program, std::vector<bool>(stages, true));
    add_gradient_sync(program);
    check(program, ErrorKind::kUsage);
    check(lower(program, chain_edges(program.stages, 1)));
    EXPECT_TRUE(program.gradient_sync);
    // One recomputed micro-batch, and another where weight gradients wait.
    for (const int slots : program.slots_per_stage) EXPECT_LE(slots, 2);
    Program plain = program;
    set_recompute(plain, std::vector<bool>(stages, false));
    for (auto& list : plain.device) {
      std::erase_if(list, [](const Instruction& i) { return i.kind == Kind::kGradientSync; });
    }
    plain.gradient_sync = false;
    annotate(plain);
    EXPECT_EQ(plain.device, before);
  }
}

// A stage that updates before others of its device have their gradients must wait for the sync.
TEST(ImportedSchedules, UpdateBehindTheGradientSync) {
  Program program = parse_program(
      "pipetrain-schedule 1\nname early\nrule sync\nstages 4\nunits 2\nplacement 0 1 0 1\n"
      "transfers no\n"
      "device 0: 0F0 0F1 2F0 2F1 2B0 2B1 2U 0B0 0B1 0U\n"
      "device 1: 1F0 1F1 3F0 3F1 3B0 3B1 3U 1B0 1B1 1U\n",
      "early");
  check(program, ErrorKind::kUsage);
  add_gradient_sync(program);
  check(program, ErrorKind::kUsage);
  EXPECT_EQ(full_text(program, 0), "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 G 2U 0U");
}

// Device 0 reads the gradients of micro-batch 0 until its last weight gradient, behind the input
// gradient of micro-batch 5: all six are under way, though those between them have been read.
TEST(ImportedSchedules, EntriesAreTakenInTurnWhoeverReadsThem) {
  const Program program = parse_program(
      "pipetrain-schedule 1\nname uneven\nrule sync\nstages 2\nunits 6\nplacement 0+1 2\n"
      "route 0 1 1 1 1 0\ntransfers no\n"
      "device 0: 0F0 0F5 0I0 0I5 0W0 0W5 0A 0U\n"
      "device 1: 0F1 0B1 0F2 0B2 0F3 0B3 0F4 0B4 0A 0U\n"
      "device 2: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5 1U\n",
      "uneven");
  check(program, ErrorKind::kUsage);
  const std::vector<StageCapacity> capacity = stage_capacities({&program});
  EXPECT_EQ(capacity[1].gradient_entries, 6);
  EXPECT_EQ(capacity[0].forward_entries, 2);  // of the two or four micro-batches of a replica
}

TEST(ImportedSchedules, SumsOfTheirReplicasTakeTime) {
  const Program program = imported("chimera-4x4.schedule");
  Plan plan;
  plan.stages.resize(4);
  for (StagePlan& stage : plan.stages) stage.parameter_bytes = 1000;
  PlanRequest request;
  request.loads.assign(4, {2, 1});
  // The replicas of stage 0 are on devices 0 and 3, those of stage 1 on devices 1 and 2.
  Topology topology;
  topology.levels = {{.name = "near", .count = 3, .bytes_per_second = 100, .latency_seconds = 1},
                     {.name = "far", .count = 2, .bytes_per_second = 10, .latency_seconds = 2}};
  Costs costs = uniform_costs(program, {});
  add_sums(plan, request, topology, program, costs);
  EXPECT_DOUBLE_EQ(costs.stage[0].reduce, 1000 / 10 + 2 * 2);
  EXPECT_DOUBLE_EQ(costs.stage[1].reduce, 1000 / 100 + 2 * 1);
}

TEST(ImportedSchedules, FilesAreWhatTheirGeneratorsWrite) {
  for (const auto& [name, program] :
       {std::pair{"chimera-4x4.schedule", chimera(4, 4)},
        std::pair{"dualpipev-4x8.schedule", dual_pipe_v(4, 8).program}}) {
    std::string text;
    std::istringstream lines(file_text(name));
    for (std::string line; std::getline(lines, line);) {
      if (line[0] != '#') text += line + '\n';
    }
    EXPECT_EQ(text, to_text(program)) << name;
  }
}

}  // namespace
}  // namespace pipetrain
