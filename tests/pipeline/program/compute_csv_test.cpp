#include "pipeline/program/compute_csv.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/program/text.h"
#include "support/example_programs.h"
#include "support/imported_schedules.h"

namespace pipetrain {
namespace {

TEST(ComputeCsv, GoldenTwoStages) {
  EXPECT_EQ(to_compute_csv(lowered(options_for("1f1b", 2, 3))),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(to_compute_csv(generate(options_for("zb-h1", 1, 2))), "0F0,0I0,0W0,0F1,0I1,0W1\n");
}

TEST(ComputeCsv, ReadsWhatPyTorchWrites) {
  // Steps in columns, with empty cells where a device waits; quotes and blanks as csv writers and
  // people put them.
  const Program program = parse_compute_csv(
      "0F0,0F1,,,,0I0,0W0,0B1\r\n"
      ",1F0,\"1I0\", 1W0 ,1F1,,1B1,\r\n\r\n",
      "a.csv");
  EXPECT_EQ(full_text(program, 0), "0F0 0F1 0I0 0W0 0B1 0U");
  EXPECT_EQ(full_text(program, 1), "1F0 1I0 1W0 1F1 1B1 1U");
  EXPECT_EQ(program.rule, UpdateRule::kSync);
  EXPECT_EQ(program.stages, 2);
  EXPECT_EQ(program.micro_batches, 2);
  EXPECT_NO_THROW(check(program, ErrorKind::kUsage));
  EXPECT_NO_THROW(check(lower(program, chain_edges(2, 8))));
}

TEST(ComputeCsv, OlderFilesCallTheInputGradientB) {
  const Program program = parse_compute_csv("0F0,0B0,0W0,0F1,0B1\n", "a.csv");
  EXPECT_EQ(full_text(program, 0), "0F0 0I0 0W0 0F1 0B1 0U");
  EXPECT_NO_THROW(check(program, ErrorKind::kUsage));
}

TEST(ComputeCsv, OverlappedPartsFollowEachOther) {
  const Program program =
      parse_compute_csv("0F0,1F0,1B0,(0F1;0B0)OVERLAP_F_B,1F1,1B1,0B1\n", "a.csv");
  EXPECT_EQ(full_text(program, 0), "0F0 1F0 1B0 0F1 0B0 1F1 1B1 0B1 0U 1U");
  EXPECT_NO_THROW(check(program, ErrorKind::kUsage));
}

TEST(ComputeCsv, RoundTripOfEverySynchronousSchedule) {
  for (const ScheduleDescription& schedule : schedules()) {
    if (schedule.rule != UpdateRule::kSync) continue;
    for (int p = 1; p <= 4; ++p) {
      ScheduleOptions options =
          options_for(schedule.name, p * stages_per_device(schedule.name, 2), 2 * p);
      options.gradient_sync = p % 2 == 0;
      options.recompute.assign(static_cast<std::size_t>(options.stages), p == 3);
      Program program = generate(options);
      const RoundSettings settings = {options.recompute, options.gradient_sync};
      Program read = parse_compute_csv(to_compute_csv(program), "x", settings);
      EXPECT_EQ(read.schedule, "csv");
      read.schedule = program.schedule;
      EXPECT_EQ(read, program) << schedule.name << " " << p;
    }
  }
  Program both_ways = dual_pipe_v(3, 8).program;
  both_ways.schedule = "csv";
  EXPECT_EQ(parse_compute_csv(to_compute_csv(both_ways), "x"), both_ways);
}

std::string import_message(const std::string& text, const RoundSettings& settings = {}) {
  try {
    parse_compute_csv(text, "a.csv", settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "accepted";
}

TEST(ComputeCsv, ErrorsNameRowAndColumn) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_NE(import_message(text).find(message), std::string::npos) << import_message(text);
  };
  expect("", "a.csv: the schedule is empty");
  expect(",,\n\n", "a.csv: the schedule is empty");
  expect("0F0,0B0\n1F0,1X0\n", "a.csv: row 2, column 2: '1X0' is no action");
  expect("0F0,,0SEND_F0\n", "a.csv: row 1, column 3: '0SEND_F0' is no action");
  expect("0F0,0F\n", "row 1, column 2: '0F' is no action");
  expect("0F0 0B0\n", "row 1, column 1: '0F0 0B0' is no action");
  expect("0F0,F1\n", "row 1, column 2: 'F1' is no action");
  expect("0F0,-1F1\n", "row 1, column 2: '-1F1' is no action");
  expect("0F99999999999\n", "row 1, column 1: '0F99999999999' is no action");
  expect("(0F0;1Q0)OVERLAP_F_B\n", "row 1, column 1: '1Q0' is no action");
  expect("0F0,0B0\n0F1,0B1\n", "row 2, column 1: stage 0 is also in row 1");
  expect("0F0,0B0\n2F0,2B0\n", "stage 1 is in no row, but stage 2 is");
  expect("0F0,0B1000\n", "1 stages and 1001 micro-batches need more actions");
  EXPECT_NE(import_message("0F0,0B0\n", {{true, true}, false}).find("recompute is set for 2"),
            std::string::npos);
}

TEST(ComputeCsv, WhatItCannotSayIsRefused) {
  try {
    to_compute_csv(chimera(4, 4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("stage 0 has 2 replicas"), std::string::npos);
  }
}

TEST(ComputeCsv, SurvivesRandomDamage) {
  const std::string good = to_compute_csv(generate(options_for("zb-h1", 2, 3)));
  std::mt19937 random(3);
  const std::string letters = "0123456789FBIW,;()\n ";
  for (int n = 0; n < 3000; ++n) {
    std::string text = good;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      text.replace(at, random() % 2, 1, letters[random() % letters.size()]);
    }
    try {
      check(parse_compute_csv(text, "a.csv"), ErrorKind::kUsage);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
}

}  // namespace
}  // namespace pipetrain
