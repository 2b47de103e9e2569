#include "pipeline/program/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/view/render.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

constexpr const char* kTwoStages =
    "pipetrain-schedule 1\n"
    "name 1f1b\n"
    "rule sync\n"
    "stages 2\n"
    "units 2\n"
    "placement 0 1\n"
    "transfers yes\n"
    "edge 0>1 4096\n"
    "edge 1>0 4096\n"
    "device 0: 0F0 0SF0>1 0F1 0SF1>1 0RB0<1 0B0 0RB1<1 0B1 0U\n"
    "device 1: 1RF0<0 1F0 1RF1<0 1B0 1SB0>0 1F1 1B1 1SB1>0 1U\n";

TEST(Text, GoldenTwoStages) {
  const Program program = lower(generate(options_for("1f1b", 2, 2)), chain_edges(2, 4096));
  EXPECT_EQ(to_text(program), kTwoStages);
  EXPECT_EQ(parse_program(kTwoStages, "a.txt"), program);
}

TEST(Text, RoundTripOfEverySchedule) {
  std::mt19937 random(5);
  for (const ScheduleDescription& schedule : schedules()) {
    for (int p = 1; p <= 6; ++p) {
      for (const int m : {1, 4, 9}) {
        const int stages = p * stages_per_device(schedule.name, 2);
        ScheduleOptions options = options_for(schedule.name, stages, m);
        options.recompute.assign(static_cast<std::size_t>(stages), false);
        options.recompute[0] = true;
        options.gradient_sync = schedule.rule == UpdateRule::kSync;
        if (schedule.takes_replicas && p > 1) {
          for (int s = 0; s < p; ++s)
            options.replicas.push_back(1 + static_cast<int>(random() % 3));
        }
        const Program bare = generate(options);
        EXPECT_EQ(parse_program(to_text(bare), "x"), bare) << to_text(bare);
        const Program full = lower(bare, random_edges(stages, random));
        EXPECT_EQ(parse_program(to_text(full), "x"), full) << to_text(full);
        EXPECT_NO_THROW(check(parse_program(to_text(full), "x")));
      }
    }
  }
  const Program split = lower(zero_bubble_h1(), chain_edges(3, 5));
  EXPECT_EQ(parse_program(to_text(split), "x"), split);
}

TEST(Text, GoldenReplicasAndRoute) {
  const std::string text =
      "pipetrain-schedule 1\nname mine\nrule sync\nstages 2\nunits 3\nplacement 0+1 2\n"
      "route 1 0 1\ntransfers no\nedge 0>1 8\nedge 1>0 8\n"
      "device 0: 0F1 0B1 0A 0U\n"
      "device 1: 0F0 0F2 0B0 0B2 0A 0U\n"
      "device 2: 1F0 1B0 1F1 1B1 1F2 1B2 1U\n";
  const Program program = parse_program(text, "mine.txt");
  check(program, ErrorKind::kUsage);
  EXPECT_EQ(to_text(program), text);
  EXPECT_EQ(program.device_of(0, 1), 0);
  EXPECT_EQ(program.device_of(0, 2), 1);
  EXPECT_NO_THROW(check(lower(program, chain_edges(2, 8))));
}

TEST(Text, GoldenDoubleBuffering) {
  ScheduleOptions options = options_for("pipedream-2bw", 1, 3);
  options.micro_batches_per_update = 2;
  EXPECT_EQ(to_text(generate(options)),
            "pipetrain-schedule 1\nname pipedream-2bw\nrule double-buffer\nstages 1\nunits 3\n"
            "units-per-update 2\nplacement 0\ntransfers no\n"
            "device 0: 0F0 0B0 0F1 0B1 0U1 0F2 0B2 0U2\n");
}

TEST(Text, AUserWritesComputeOnly) {
  const Program program = parse_program(
      "pipetrain-schedule 1\r\n"
      "# two stages, all forwards first\r\n"
      "name mine\nrule sync\nstages 2\nunits 1\nplacement 0 1\ntransfers no\n\n"
      "device 0: 0F0 0B0 0U   # first\n"
      "device 1:\t1F0 1B0 1U",
      "mine.txt");
  check(program, ErrorKind::kUsage);
  EXPECT_NO_THROW(check(lower(program, chain_edges(2, 8))));
}

/// The message of a text that cannot be read.
std::string message_of(const std::string& text) {
  try {
    parse_program(text, "s.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Text, ErrorsNameLineAndWord) {
  const std::string good = kTwoStages;
  const auto expect = [&](const std::string& from, const std::string& to,
                          const std::string& message) {
    const std::string text = message_of(replaced(good, from, to));
    EXPECT_NE(text.find(message), std::string::npos) << text;
  };
  EXPECT_EQ(message_of(""), "s.txt:0: the schedule is empty");
  expect("schedule 1", "schedule 2", "s.txt:1: must be 'pipetrain-schedule 1'");
  expect("rule sync", "rule maybe",
         "s.txt:3: 'rule' is none, sync, stash, vertical or double-buffer, not 'maybe'");
  expect("stages 2", "stages two", "s.txt:4: 'stages' needs a number, not 'two'");
  expect("stages 2", "stages -2", "s.txt:4: 'stages' needs a number");
  expect("stages 2", "stages 99999999999999999999", "s.txt:4: 'stages' needs a number");
  expect("units 2", "units 2 3", "s.txt:5: more than 'units' takes");
  expect("units 2", "unit 2", "s.txt:5: unknown entry 'unit'");
  expect("transfers yes", "transfers some", "'transfers' is yes or no");
  expect("edge 0>1 4096", "edge 0-1 4096", "an edge is written like");
  expect("edge 0>1 4096", "edge 0>7 4096", "does not fit 2 stages");
  expect("edge 0>1 4096", "edge 0>1 4096\nedge 0>1 1", "s.txt:9: the edge 0>1 is given twice");
  expect("device 1:", "device 2:", "the list of device 1 must come here");
  expect("0B0", "0Q0", "s.txt:10: '0Q0' is not an instruction");
  expect("0SF0>1", "0SF0<1", "'0SF0<1' is not an instruction");
  expect("0SF0>1", "0SB0>1", "there is no edge between devices for '0SB0>1'");
  expect("0SF0>1", "0SF0>0", "there is no edge between devices");
  expect("0F1 ", "0F7 ", "names a stage or micro-batch that does not exist");
  expect("units 2", "units 1000000", "need more instructions");
  expect("placement 0 1", "placement 0 5", "'placement' names device 5");
  expect("placement 0 1", "placement 0+0 1", "'0+0' names device 0 twice");
  expect("placement 0 1", "placement 0+ 1", "written like 0 or 0+1, not '0+'");
  expect("placement 0 1", "placement 0-1", "written like 0 or 0+1, not '0-1'");
  expect("placement 0 1", "placement 0 1\nroute 0",
         "'route' must name the replica of 2 micro-batches");
  expect("placement 0 1", "placement 0 1\nroute 0 x", "'route' needs a number, not 'x'");
  expect("placement 0 1", "placement 0 1\nunits-per-update 2", "needs rule double-buffer");
  expect("placement 0 1", "placement 0 1\nunits-per-update 0", "must be at least 1");
  expect("placement 0 1", "placement 0", "'placement' must name the devices of 2 stages");
  expect("placement 0 1", "placement 0 1\nrecompute 2", "'recompute' names stage 2 of 2");
}

TEST(Text, ManyEdgesNeedManyInstructions) {
  constexpr int kStages = 100;
  std::string text = "pipetrain-schedule 1\nrule none\nstages 100\nunits 4\nplacement";
  for (int s = 0; s < kStages; ++s) text += " 0";
  for (int s = 0; s < kStages; ++s) {
    for (int to = s + 1; to < kStages; ++to) text += fmt::format("\nedge {}>{} 0", s, to);
  }
  const auto forwards = [&](int micro_batches) {
    std::string list = "\ndevice 0:";
    for (int s = 0; s < kStages; ++s) {
      for (int m = 0; m < micro_batches; ++m) list += fmt::format(" {}F{}", s, m);
    }
    return list;
  };
  EXPECT_NO_THROW(parse_program(text + forwards(4), "s.txt"));  // 4950 edges
  for (int s = 0; s < kStages; ++s) {
    for (int to = 0; to < s; ++to) text += fmt::format("\nedge {}>{} 0", s, to);
  }
  try {
    parse_program(text + forwards(4), "s.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("9900 edges and 4 micro-batches need more instructions"),
              std::string::npos)
        << error.message();
  }
}

TEST(Text, BrokenSchedulesAreReadAndThenRefused) {
  const std::string text = replaced(kTwoStages, "0B0 0RB1<1 0B1", "0RB1<1 0B1 0B0");
  const Program program = parse_program(text, "s.txt");
  try {
    check(program, ErrorKind::kUsage);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.message().find("(micro-batch order): device 0, instruction 7 (0B0)"),
              std::string::npos)
        << error.message();
  }
}

TEST(Text, SurvivesRandomDamage) {
  // Whatever a file holds, it is read or refused: run under a sanitizer this finds bad indexing.
  std::mt19937 random(9);
  const std::string letters = "0123456789FBIWRUSAG<>:+ \n#-edgunits";
  int refused = 0;
  for (int n = 0; n < 3000; ++n) {
    std::string text = kTwoStages;
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t c = 0; c < changes; ++c) {
      const std::size_t at = 20 + random() % (text.size() - 20);
      const char letter = letters[random() % letters.size()];
      if (random() % 3 == 0) {
        text.erase(at, 1);
      } else if (random() % 2 == 0) {
        text.insert(at, 1, letter);
      } else {
        text[at] = letter;
      }
    }
    try {
      check(parse_program(text, "s.txt"), ErrorKind::kUsage);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(Render, GoldenRows) {
  const Program program = lowered(options_for("1f1b", 3, 4));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  EXPECT_EQ(render_rows(program, result.events, 60),
            "device 0 │F0F1F2        B0▓▓F3B1▓▓  B2▓▓  B3▓▓│\n"
            "device 1 │  F0F1    B0▓▓F2B1▓▓F3B2▓▓  B3▓▓    │\n"
            "device 2 │    F0B0▓▓F1B1▓▓F2B2▓▓F3B3▓▓        │\n"
            "         0                                18 s\n");
}

TEST(Render, FitsTheWidth) {
  const Program program = lowered(options_for("pipedream", 12, 40));
  const Simulation result = simulate(program, uniform_costs(program, {1e-4, 2e-4, 0, 0, 0, 3e-5}));
  for (const int width : {30, 80, 200}) {
    const std::string text = render_rows(program, result.events, width);
    int rows = 0;
    int columns = 0;
    for (const char c : text) {
      if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) ++columns;
      if (c != '\n') continue;
      EXPECT_LE(columns - 1, width);
      columns = 0;
      ++rows;
    }
    EXPECT_EQ(rows, 13);
  }
  EXPECT_EQ(render_rows(program, {}, 80), "");
}

}  // namespace
}  // namespace pipetrain
