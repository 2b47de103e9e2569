#include "pipeline/view/render.h"

#include <gtest/gtest.h>

#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

/// The text without its colours.
std::string plain(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      i = text.find('m', i);
      continue;
    }
    result += text[i];
  }
  return result;
}

std::vector<int> widths_of_lines(const std::string& text) {
  std::vector<int> widths = {0};
  for (const char c : text) {
    if (c == '\n') {
      widths.push_back(0);
    } else if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {
      ++widths.back();
    }
  }
  widths.pop_back();
  return widths;
}

TEST(RenderColour, CellsHoldTheNumberOfTheMicroBatch) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  RowsOptions options;
  options.width = 30;
  options.colour = true;
  options.unitless = true;
  const std::string text = render_rows(program, result.events, options);
  EXPECT_EQ(plain(text),
            "device 0 │0 1     0     1   │\n"
            "device 1 │  0 0   1 1       │\n"
            "         0                 9\n");
  // Colours are switched on and off again in every row.
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    const std::size_t last = line.rfind("\033[");
    if (last != std::string::npos) {
      EXPECT_EQ(line.substr(last, 4), "\033[0m") << line;
    }
    begin = end + 1;
  }
}

TEST(RenderColour, ColoursChangeNothingButTheLetters) {
  ScheduleOptions schedule = options_for("interleaved-1f1b", 8, 8);
  const Program program = lowered(schedule);
  const Simulation result = simulate(program, uniform_costs(program, {}));
  for (const int width : {30, 57, 120}) {
    RowsOptions options;
    options.width = width;
    const std::vector<int> without = widths_of_lines(render_rows(program, result.events, options));
    options.colour = true;
    EXPECT_EQ(widths_of_lines(plain(render_rows(program, result.events, options))), without);
    for (const int columns : without) EXPECT_LE(columns, width);
  }
}

TEST(RenderRows, LeavesOutTheMiddleOfManyDevices) {
  const Program program = lowered(options_for("1f1b", 100, 4));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  RowsOptions options;
  options.most_rows = 5;
  const std::string text = render_rows(program, result.events, options);
  EXPECT_EQ(widths_of_lines(text).size(), 5 + 2U);
  for (const char* shown : {"device 0 ", "device 2 ", "⋮ 95 more", "device 98 ", "device 99 "})
    EXPECT_NE(text.find(shown), std::string::npos) << shown;
  EXPECT_EQ(text.find("device 3 "), std::string::npos);
  EXPECT_EQ(text.find("device 97 "), std::string::npos);
}

TEST(RenderRows, ReplicasShareTheMicroBatches) {
  ScheduleOptions schedule = options_for("1f1b", 2, 4);
  schedule.replicas = {2, 1};
  const Program program = lowered(schedule);
  const Simulation result = simulate(program, uniform_costs(program, {2, 2, 1, 1, 2, 0}));
  const std::string text = render_rows(program, result.events, 60);
  const std::string first = text.substr(0, text.find('\n'));
  for (const char* own : {"F0", "F2", "B0", "B2"}) EXPECT_NE(first.find(own), std::string::npos);
  for (const char* other : {"F1", "F3", "B1", "B3"})
    EXPECT_EQ(first.find(other), std::string::npos);
}

TEST(RenderRows, AreEmptyWhereOnlyTransfersTakeTime) {
  const Program program = lowered(options_for("1f1b", 2, 2));
  const Costs costs = uniform_costs(program, {0, 0, 0, 0, 0, 0}, {.latency_seconds = 0.001});
  const std::string text = render_rows(program, simulate(program, costs).events, 40);
  EXPECT_EQ(widths_of_lines(text), (std::vector<int>{40, 40, 39})) << text;
  EXPECT_EQ(text.find_first_of("FB"), std::string::npos) << text;
}

TEST(RenderLegend, NamesWhatIsDrawn) {
  const Program program = lowered(options_for("zb-h1", 2, 4));
  const Simulation result = simulate(program, uniform_costs(program, {}));
  EXPECT_EQ(render_legend(program, result.events, /*colour=*/false),
            "F░ forward  I▓ input gradient  W▒ weight gradient\n");
  EXPECT_EQ(plain(render_legend(program, result.events, /*colour=*/true)),
            " F  forward   I  input gradient   W  weight gradient\n");
}

}  // namespace
}  // namespace pipetrain
