#include "pipeline/schedule/closed_forms.h"

#include <gtest/gtest.h>

#include "pipeline/program/text.h"
#include "pipeline/schedule/schedule_table.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"

namespace pipetrain {
namespace {

/// Predicted and by the form: a device's work of one micro-batch is f + i + w, whatever its stages.
void expect_form(const std::string& name, int devices, int micro_batches, double f, double i,
                 double w, int chunks = 2) {
  ScheduleOptions options = options_for(name, devices, micro_batches);
  options.chunks = chunks;
  const int stages_each = stages_per_device(name, chunks);
  options.stages = devices * stages_each;
  const Program program = generate(options);
  const double v = stages_each;
  const Simulation simulation =
      simulate(program, uniform_costs(program, {f / v, (i + w) / v, i / v, w / v, f / v, 0}));
  const auto theory =
      theoretical_bubble(program, mean_micro_batch_seconds(program, simulation.events));
  ASSERT_TRUE(theory.has_value()) << name << " " << devices << " " << micro_batches;
  EXPECT_NEAR(*theory, simulation.bubble, 1e-9)
      << name << " p " << devices << " m " << micro_batches;
}

TEST(ClosedForms, EqualTheSimulation) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {2 * p, 3 * p, 4 * p}) {
      for (const char* name :
           {"gpipe", "1f1b", "1f1b-eager", "pipedream", "pipedream-2bw", "forward"})
        expect_form(name, p, m, 1, 1.5, 0.5);
      expect_form("interleaved-1f1b", p, m, 1, 1, 1, 2);
      expect_form("interleaved-1f1b", p, m, 3, 2, 2, 3);
      expect_form("zb-h1", p, m, 1, 1, 1);
      expect_form("zb-h1", p, m, 3, 2, 1);
      expect_form("zb-h2", p, m, 1, 1, 1);
      expect_form("interleaved-zb", p, m, 1, 1, 1, 2);
      expect_form("zb-v", p, m, 1, 1, 1);
      expect_form("v-half", p, m, 1, 1, 1);
      expect_form("v-min", p, m, 1, 1, 1);
    }
  }
}

TEST(ClosedForms, OfEveryRowEqualTheSimulation) {
  int forms = 0;
  for (const schedule::Schedule& row : schedule::table()) {
    if (row.idle_seconds == nullptr) continue;
    ++forms;
    for (int p = 2; p <= 5; ++p) expect_form(row.description.name, p, 3 * p, 1, 1, 1);
  }
  EXPECT_GE(forms, 15);
}

// Devices hold p to 3p micro-batches. The form is too low between p and 2p-1 where w < i < 2w, and
// above 2p-1 where i > 2w.
TEST(ClosedForms, OfZeroBubblesAreGivenWhereTheyEqualTheSimulation) {
  for (int p = 2; p <= 5; ++p) {
    for (int held = p; held <= 3 * p; ++held) {
      for (const auto& [f, i, w] : {MicroBatchSeconds{1, 1, 1}, {2, 3, 2}, {2, 4, 2}, {3, 7, 2}}) {
        ScheduleOptions options = options_for("zb", p, 3 * p);
        options.memory_units = held;
        const Program program = generate(options);
        const Simulation simulation =
            simulate(program, uniform_costs(program, {f, i + w, i, w, f, 0}));
        const auto theory =
            theoretical_bubble(program, mean_micro_batch_seconds(program, simulation.events));
        const bool too_low =
            held < 2 * p - 1 ? held > p && w < i && i < 2 * w : held > 2 * p - 1 && i > 2 * w;
        ASSERT_EQ(theory.has_value(), !too_low) << p << " " << held << " " << i;
        if (theory) {
          EXPECT_NEAR(*theory, simulation.bubble, 1e-9) << p << " " << held << " " << i;
        }
      }
    }
  }
}

TEST(ClosedForms, TheirNumbersAreThoseOfThePapers) {
  // 1F1B: (p-1)/(m+p-1); makespan of ZB-H1 with unit costs 3m + p - 1.
  EXPECT_DOUBLE_EQ(*theoretical_bubble(generate(options_for("1f1b", 4, 8)), {1, 1, 1}), 3.0 / 11);
  EXPECT_DOUBLE_EQ(*theoretical_bubble(generate(options_for("zb-h1", 4, 8)), {1, 1, 1}), 3.0 / 27);
}

TEST(ClosedForms, SayNothingWhereNoneIsKnown) {
  Program program = generate(options_for("zb-v", 4, 8));
  EXPECT_FALSE(theoretical_bubble(program, {3, 1, 1}).has_value());
  program.schedule = "by hand";
  EXPECT_FALSE(theoretical_bubble(program, {1, 1, 1}).has_value());
  ScheduleOptions options = options_for("1f1b", 2, 4);
  options.replicas = {2, 1};
  EXPECT_FALSE(theoretical_bubble(generate(options), {1, 1, 1}).has_value());
  // Fewer micro-batches than devices.
  for (const char* name : {"interleaved-1f1b", "interleaved-zb"}) {
    EXPECT_FALSE(theoretical_bubble(generate(options_for(name, 8, 3)), {1, 1, 1}).has_value());
    EXPECT_TRUE(theoretical_bubble(generate(options_for(name, 8, 4)), {1, 1, 1}).has_value());
  }
  // Fewer than a device may hold.
  EXPECT_FALSE(theoretical_bubble(generate(options_for("zb-h2", 4, 6)), {1, 1, 1}).has_value());
  EXPECT_TRUE(theoretical_bubble(generate(options_for("zb-h2", 4, 7)), {1, 1, 1}).has_value());
  options = options_for("zb", 4, 4);
  options.memory_units = 5;
  EXPECT_FALSE(theoretical_bubble(generate(options), {1, 1, 1}).has_value());
}

TEST(ClosedForms, SayNothingWhereMemoryKeepsStagesFromRunningAhead) {
  for (const char* name : {"1f1b", "1f1b-eager", "pipedream", "pipedream-vertical"}) {
    ScheduleOptions options = options_for(name, 4, 8);
    options.memory_units = 3;
    EXPECT_FALSE(theoretical_bubble(generate(options), {1, 1, 1}).has_value()) << name;
    options.memory_units = 4;
    EXPECT_DOUBLE_EQ(*theoretical_bubble(generate(options), {1, 1, 1}), 3.0 / 11) << name;
    options.memory_units = options.micro_batches = 2;
    EXPECT_DOUBLE_EQ(*theoretical_bubble(generate(options), {1, 1, 1}), 3.0 / 5) << name;
  }
}

TEST(ClosedForms, AreOfTheListsAndNotOfTheName) {
  Program program = generate(options_for("1f1b", 4, 8));
  program.schedule = "zb-h1";
  EXPECT_FALSE(theoretical_bubble(program, {1, 1, 1}).has_value());
  program.schedule = "interleaved-1f1b";
  EXPECT_FALSE(theoretical_bubble(program, {1, 1, 1}).has_value());
  Program stream = generate(options_for("pipedream", 4, 8));
  stream.schedule = "by hand";
  EXPECT_FALSE(theoretical_bubble(stream, {1, 1, 1}).has_value());
  for (const char* name : {"1f1b", "zb-h2", "zb-v", "pipedream-2bw"}) {
    const Program generated = lowered(options_for(name, 4, 8));
    const Program read = parse_program(to_text(generated), name);
    ASSERT_TRUE(theoretical_bubble(read, {1, 1, 1}).has_value()) << name;
    EXPECT_EQ(theoretical_bubble(read, {1, 1, 1}), theoretical_bubble(generated, {1, 1, 1}));
  }
  ScheduleOptions options = options_for("1f1b", 4, 8);
  options.recompute.assign(4, true);
  EXPECT_TRUE(theoretical_bubble(generate(options), {1, 2, 1}).has_value());
}

}  // namespace
}  // namespace pipetrain
