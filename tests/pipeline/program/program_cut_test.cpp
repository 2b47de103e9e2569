#include "pipeline/program/program_cut.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipeline/program/progress.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"

namespace pipetrain {
namespace {

Program program_of(const std::string& name, int stages, int micro_batches,
                   int micro_batches_per_update = 0) {
  ScheduleOptions options;
  options.name = name;
  options.stages = stages;
  options.micro_batches = micro_batches;
  options.micro_batches_per_update = micro_batches_per_update;
  return generate(options);
}

std::string text_of(const Program& program, int device) {
  std::string text;
  for (const Instruction& instruction : program.device[static_cast<std::size_t>(device)])
    text += (text.empty() ? "" : " ") + to_text(program, instruction);
  return text;
}

TEST(ProgramCut, ForwardsInFlightRunAgain) {
  const Program program = program_of("pipedream", 3, 6);
  ASSERT_EQ(text_of(program, 0),
            "0F0 0F1 0F2 0B0 0U0 0F3 0B1 0U1 0F4 0B2 0U2 0F5 0B3 0U3 0B4 0U4 0B5 0U5");
  const ProgramCut cut = cut_program(program, 2);
  EXPECT_EQ(text_of(cut.rest, 0), "0F2 0F3 0F4 0B2 0U2 0F5 0B3 0U3 0B4 0U4 0B5 0U5");
  EXPECT_EQ(text_of(cut.rest, 1), "1F2 1F3 1B2 1U2 1F4 1B3 1U3 1F5 1B4 1U4 1B5 1U5");
  EXPECT_EQ(text_of(cut.rest, 2), "2F2 2B2 2U2 2F3 2B3 2U3 2F4 2B4 2U4 2F5 2B5 2U5");
  EXPECT_EQ(cut.replayed[0], (std::vector<bool>{false, false, true, true, false, false}));
  EXPECT_EQ(cut.replayed[1], (std::vector<bool>{false, false, true, false, false, false}));
  EXPECT_EQ(cut.replayed[2], std::vector<bool>(6, false));
  // Micro-batch 2 read the weights from the beginning on stage 0, micro-batch 3 those after one
  // update.
  EXPECT_EQ(cut.versions[0], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cut.versions[1], (std::vector<int>{1, 2}));
  EXPECT_EQ(cut.versions[2], (std::vector<int>{2}));
  EXPECT_EQ(cut.rest.device[0][0].version, 0);
  EXPECT_EQ(cut.rest.device[0][1].version, 1);
}

TEST(ProgramCut, PointsAreUpdatesOfAllStages) {
  EXPECT_EQ(cut_points(program_of("pipedream", 3, 6)), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(cut_points(program_of("pipedream-vertical", 4, 5)), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(cut_points(program_of("pipedream-2bw", 3, 15, 4)), (std::vector<int>{4, 8, 12}));
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    EXPECT_TRUE(cut_points(program_of(name, 3, 6)).empty()) << name;
  ScheduleOptions replicas;
  replicas.name = "pipedream";
  replicas.stages = 2;
  replicas.micro_batches = 9;
  replicas.replicas = {2, 1};
  EXPECT_EQ(cut_points(generate(replicas)), (std::vector<int>{2, 4, 6, 8}));
}

TEST(ProgramCut, WhatIsLeftEndsAndDoesTheRestOnce) {
  for (const char* name : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    for (int stages = 1; stages <= 5; ++stages) {
      const Program program =
          lower(program_of(name, stages, 24, name == std::string("pipedream-2bw") ? 6 : 0),
                chain_edges(stages, 8));
      for (const int micro_batches : cut_points(program)) {
        const ProgramCut cut = cut_program(program, micro_batches);
        EXPECT_EQ(find_deadlock(cut.rest, Lanes::kOne), "")
            << name << stages << " after " << micro_batches;
        EXPECT_EQ(find_deadlock(cut.rest, Lanes::kThree), "")
            << name << stages << " after " << micro_batches;
        for (int s = 0; s < stages; ++s) {
          std::vector<int> forwards(24, 0), backwards(24, 0);
          for (const Instruction& i : cut.rest.device[static_cast<std::size_t>(s)]) {
            if (i.kind == Kind::kForward) ++forwards[static_cast<std::size_t>(i.micro_batch)];
            if (i.kind == Kind::kBackward) ++backwards[static_cast<std::size_t>(i.micro_batch)];
          }
          for (int micro_batch = 0; micro_batch < 24; ++micro_batch) {
            EXPECT_EQ(forwards[static_cast<std::size_t>(micro_batch)],
                      micro_batch >= micro_batches ? 1 : 0);
            EXPECT_EQ(backwards[static_cast<std::size_t>(micro_batch)],
                      micro_batch >= micro_batches ? 1 : 0);
          }
        }
      }
    }
  }
}

// A stage may receive a gradient before its update, and read it behind the update.
TEST(ProgramCut, WhatIsSentBehindItIsReceivedBehindIt) {
  for (const char* name : {"pipedream", "pipedream-2bw"}) {
    for (const std::vector<int>& replicas :
         {std::vector<int>{1, 2}, {2, 1}, {2, 2}, {1, 3}, {3, 1}, {1, 2, 1}, {2, 1, 2}}) {
      ScheduleOptions options;
      options.name = name;
      options.stages = static_cast<int>(replicas.size());
      options.micro_batches = 13;
      options.replicas = replicas;
      if (options.name == "pipedream-2bw") options.micro_batches_per_update = 6;
      const Program program = lower(generate(options), chain_edges(options.stages, 8));
      for (const int micro_batches : cut_points(program)) {
        std::vector<int> sent(program.transfers.size(), 0), received(sent);
        const ProgramCut cut = cut_program(program, micro_batches);
        for (const auto& list : cut.rest.device) {
          for (const Instruction& i : list) {
            if (i.kind == Kind::kSend) ++sent[static_cast<std::size_t>(i.transfer)];
            if (i.kind == Kind::kReceive) ++received[static_cast<std::size_t>(i.transfer)];
          }
        }
        EXPECT_EQ(sent, received) << name << " after " << micro_batches;
      }
    }
  }
}

}  // namespace
}  // namespace pipetrain
