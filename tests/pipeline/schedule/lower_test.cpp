#include "pipeline/schedule/lower.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/program/progress.h"
#include "pipeline/schedule/warm_up.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"
#include "support/symbolic_run.h"

namespace pipetrain {
namespace {

/// What a careless author writes: receive before use, send after production.
Program lower_naively(const Program& program) {
  Program result = program;
  for (std::size_t e = 0; e < result.edges.size(); ++e) {
    const Edge& edge = result.edges[e];
    for (int micro_batch = 0; micro_batch < result.micro_batches; ++micro_batch) {
      result.transfers.push_back({static_cast<int>(e), edge.from_stage, edge.to_stage,
                                  result.device_of(edge.from_stage, micro_batch),
                                  result.device_of(edge.to_stage, micro_batch), micro_batch,
                                  edge.gradient});
    }
  }
  for (auto& list : result.device) {
    std::vector<Instruction> merged;
    for (const Instruction& instruction : list) {
      const bool compute = is_compute(instruction.kind);
      const bool gradient = instruction.kind != Kind::kForward;
      const auto add = [&](bool send) {
        for (std::size_t t = 0; compute && t < result.transfers.size(); ++t) {
          const Transfer& transfer = result.transfers[t];
          const int stage = send ? transfer.from_stage : transfer.to_stage;
          if (stage == instruction.stage && transfer.micro_batch == instruction.micro_batch &&
              transfer.gradient == gradient) {
            merged.push_back({send ? Kind::kSend : Kind::kReceive, stage, transfer.micro_batch,
                              static_cast<int>(t)});
          }
        }
      };
      add(/*send=*/false);
      merged.push_back(instruction);
      add(/*send=*/true);
    }
    list = merged;
  }
  result.lowered = true;
  annotate(result);
  return result;
}

TEST(Lower, GoldenTwoStages) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  std::string text;
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) text += to_text(program, instruction) + " ";
    text += "/ ";
  }
  EXPECT_EQ(text,
            "0F0 0SF0>1 0F1 0SF1>1 0RB0<1 0B0 0RB1<1 0B1 0U / "
            "1RF0<0 1F0 1RF1<0 1B0 1SB0>0 1F1 1B1 1SB1>0 1U / ");
}

TEST(Lower, EverySendFollowsItsProducerBeforeOtherWork) {
  // So that an output can be handed over at once.
  const Program program = lowered(options_for("1f1b", 4, 9));
  for (const auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Kind::kSend) continue;
      std::size_t j = i;
      while (is_transfer(list[j].kind)) --j;
      EXPECT_EQ(list[j].micro_batch, list[i].micro_batch) << to_text(program, list[i]);
    }
  }
}

/// Replicas, warm-up, recompute and gradient sync by chance, where the schedule takes them.
ScheduleOptions random_options(const ScheduleDescription& schedule, int devices, int micro_batches,
                               int variant, std::mt19937& random) {
  ScheduleOptions options = options_for(schedule.name, devices, micro_batches);
  options.chunks = 1 + static_cast<int>(random() % 3);
  options.stages = devices * stages_per_device(schedule.name, options.chunks);
  const auto stages = static_cast<std::size_t>(options.stages);
  if (variant >= 2 && schedule.takes_replicas) {
    for (std::size_t s = 0; s < stages; ++s) options.replicas.push_back(1 + random() % 3);
  }
  if (variant >= 2 && schedule.takes_warm_up && options.replicas.empty()) {
    options.warm = random_warm_up(options.stages, random);
  }
  if (variant >= 1 && schedule.takes_memory) options.memory_units = static_cast<int>(random() % 6);
  if (variant >= 2 && schedule.rule != UpdateRule::kNone) {
    for (std::size_t s = 0; s < stages; ++s) options.recompute.push_back(random() % 2 == 0);
  }
  options.gradient_sync = variant == 3 && schedule.rule == UpdateRule::kSync;
  return options;
}

/// Forwards that each stage runs ahead, for the schedules whose weight versions depend on it.
std::vector<int> effective_warm_up(const ScheduleOptions& options) {
  std::vector<int> replicas = options.replicas;
  if (replicas.empty()) replicas.assign(static_cast<std::size_t>(options.stages), 1);
  std::vector<int> warm = options.warm.empty() ? standard_warm_up(replicas) : options.warm;
  if (options.memory_units > 0) warm = limited_warm_up(warm, replicas, options.memory_units);
  return warm;
}

TEST(Lower, SweepNeverDeadlocksAndComputesWhatASerialLoopDoes) {
  std::mt19937 random(7);
  int programs = 0;
  std::size_t instructions = 0;
  for (const ScheduleDescription& schedule : schedules()) {
    for (int p = 1; p <= 6; ++p) {
      for (const int m : {1, 2, 3, 5, 8, 13}) {
        for (int variant = 0; variant < 4; ++variant) {
          const ScheduleOptions options = random_options(schedule, p, m, variant, random);
          std::vector<Edge> edges = chain_edges(options.stages, 3);
          if (variant >= 1) edges = random_edges(options.stages, random);
          const auto what = fmt::format("{} p={} m={} variant {}", schedule.name, p, m, variant);
          const Program program = lower(generate(options), edges);
          ASSERT_NO_THROW(check(program)) << what;
          const symbolic::Result expected =
              symbolic::serial_round(program, effective_warm_up(options));
          EXPECT_EQ(symbolic::Run(program, static_cast<std::uint32_t>(programs)).run(), expected)
              << what;
          ++programs;
          for (const auto& list : program.device) instructions += list.size();
          if (variant != 0) continue;
          const Program evaluation = lower(forward_program(program, m), edges);
          ASSERT_NO_THROW(check(evaluation)) << what;
          EXPECT_EQ(symbolic::Run(evaluation, 3).run(), symbolic::serial_round(evaluation, {}));
        }
      }
    }
  }
  std::printf("lowered, checked and run: %d programs, %zu instructions\n", programs, instructions);
}

TEST(Lower, ImportedSchedulesComputeWhatASerialLoopDoes) {
  for (const int p : {2, 4, 6}) {
    for (const int rounds : {1, 2, 3}) {
      for (const Program& bare : {chimera(p, p * rounds), dual_pipe_v(p / 2, p * rounds).program}) {
        check(bare);
        const Program program = lower(bare, chain_edges(bare.stages, 1));
        check(program);
        EXPECT_EQ(symbolic::Run(program, 11).run(), symbolic::serial_round(program, {}))
            << program.schedule << " " << p << " " << rounds;
        const Program evaluation = lower(forward_program(program, 5), chain_edges(bare.stages, 1));
        check(evaluation);
        EXPECT_EQ(symbolic::Run(evaluation, 3).run(), symbolic::serial_round(evaluation, {}));
      }
    }
  }
}

TEST(Lower, SkipsGoDirectly) {
  const std::vector<Edge> edges = {{0, 2, 8, false}, {2, 0, 8, true},  {1, 2, 8, false},
                                   {2, 1, 8, true},  {1, 3, 8, false}, {3, 1, 8, true},
                                   {2, 3, 8, false}, {3, 2, 8, true}};
  const Program program = lower(generate(options_for("1f1b", 4, 5)), edges);
  check(program);
  EXPECT_EQ(program.transfers.size(), edges.size() * 5);
  for (const Transfer& transfer : program.transfers) {
    EXPECT_EQ(transfer.to_device - transfer.from_device,
              edges[static_cast<std::size_t>(transfer.edge)].to_stage -
                  edges[static_cast<std::size_t>(transfer.edge)].from_stage);
  }
}

TEST(Lower, HandMadeListsNeedNoGenerator) {
  for (const Program& program : {zero_bubble_h1(), interleaved(2, 4, 2), interleaved(3, 6, 2)}) {
    check(program);
    const Program result = lower(program, chain_edges(program.stages, 1));
    check(result);
    EXPECT_EQ(symbolic::Run(result, 5).run(), symbolic::serial_round(result, {}));
  }
}

TEST(Lower, NaivePlacementDeadlocksAndIsCaught) {
  for (int p = 2; p <= 5; ++p) {
    for (int m = 1; m <= 6; ++m) {
      const Program naive = lower_naively(generate(options_for("1f1b", p, m)));
      // One micro-batch cannot block another, and GPipe's directions never meet.
      EXPECT_EQ(find_deadlock(naive, Lanes::kOne).empty(), m == 1) << p << " " << m;
      EXPECT_TRUE(find_deadlock(naive, Lanes::kThree).empty());
      EXPECT_NO_THROW(check(lower_naively(generate(options_for("gpipe", p, m)))));
      if (m == 1) continue;
      try {
        check(naive);
        ADD_FAILURE() << "accepted, p=" << p << " m=" << m;
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("(progress with blocking sends)"), std::string::npos) << text;
        EXPECT_NE(text.find("waits for device"), std::string::npos) << text;
      }
      Costs costs = uniform_costs(naive, {});
      EXPECT_NO_THROW(simulate(naive, costs));
      costs.transfers = TransferMode::kRendezvous;
      EXPECT_THROW(simulate(naive, costs), Error);
    }
  }
}

TEST(Lower, RefusesEdgesThatCannotBe) {
  const Program program = generate(options_for("1f1b", 3, 2));
  EXPECT_THROW(lower(program, {{0, 3, 1, false}}), Error);
  EXPECT_THROW(lower(program, {{1, 0, 1, false}}), Error);
  EXPECT_THROW(lower(program, {{0, 1, 1, true}}), Error);
  EXPECT_THROW(lower(program, {{0, 1, -1, false}}), Error);
  EXPECT_THROW(lower(program, {{0, 1, 1, false}, {0, 1, 2, false}}), Error);
  EXPECT_THROW(lower(lower(program, chain_edges(3)), chain_edges(3)), Error);
}

}  // namespace
}  // namespace pipetrain
