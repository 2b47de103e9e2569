#include "cli/output/progress_line.h"

#include <gtest/gtest.h>

namespace pipetrain {
namespace {

StepReport some_step() {
  StepReport report;
  report.step = 120;
  report.total_steps = 1560;
  report.epoch = 0.25;
  report.loss = 0.43118;
  report.accuracy = 0.875;
  report.gradient_norm = 1.42;
  report.learning_rate = 9.1e-4;
  report.seconds = 0.1824;
  report.data_seconds = 0.02;
  report.samples_per_second = 351;
  report.utilisation = 0.318;
  report.bubble = 0.149;
  report.stage_busy = {0.94, 0.5};
  return report;
}

TEST(ProgressLine, SaysEverythingWithoutALimit) {
  EXPECT_EQ(progress_line(some_step(), 262, 0),
            "step  120/1560  ep   0.25  loss  0.4312  acc  87.50%  gnorm     1.42  lr 9.1e-04   "
            "182.4 ms   "
            "  351 samples/s  MFU  31.8%  bubble 14.9%  data 11%  ETA 4m22s");
}

TEST(ProgressLine, LeavesOutTheLeastImportantFieldsUntilItFits) {
  struct Case {
    std::size_t width;
    const char* line;
  };
  for (const Case& c :
       {Case{79, "step  120/1560  loss  0.4312  acc  87.50%     351 samples/s  ETA 4m22s"},
        Case{39, "step  120/1560  loss  0.4312  ETA 4m22s"},
        Case{30, "step  120/1560  loss  0.4312"}, Case{20, "step  120/1560"},
        Case{10, "step  120/"}}) {
    EXPECT_EQ(progress_line(some_step(), 262, c.width), c.line);
  }
}

TEST(ProgressLine, SaysThatAStepWasLeftOut) {
  StepReport report = some_step();
  report.loss_scale = 65536;
  EXPECT_EQ(progress_line(report, 262, 0), progress_line(some_step(), 262, 0));
  report.skipped = true;
  const std::string line = progress_line(report, 262, 0);
  EXPECT_NE(line.find("  skipped at scale 65536"), std::string::npos) << line;
  report.step = report.total_steps;
  EXPECT_EQ(progress_line(report, 0, 55), "step 1560/1560  loss  0.4312  skipped at scale 65536");
}

TEST(ProgressLine, KnowsNoEtaAtTheEndsOfARun) {
  StepReport report = some_step();
  report.step = 1560;
  EXPECT_EQ(progress_line(report, 0, 41), "step 1560/1560  loss  0.4312  acc  87.50%");
  report.step = 1;
  report.stage_busy.clear();
  const std::string first = progress_line(report, -1, 0);
  EXPECT_NE(first.find("(first step: start-up)"), std::string::npos);
  EXPECT_EQ(first.find("ETA"), std::string::npos);
  EXPECT_EQ(first.find("bubble"), std::string::npos);
}

TEST(ProgressLine, TimesOfStepsHaveUnitsThatSuitThem) {
  StepReport report = some_step();
  const auto time = [&](double seconds) {
    report.seconds = seconds;
    const std::string line = progress_line(report, 262, 0);
    const std::size_t at = line.find("9.1e-04") + 9;
    return line.substr(at, 9);
  };
  EXPECT_EQ(time(7.6e-5), "    76 us");
  EXPECT_EQ(time(9.9e-4), "   990 us");
  EXPECT_EQ(time(9.997e-4), "   1.0 ms");
  EXPECT_EQ(time(9.5), "9500.0 ms");
  EXPECT_EQ(time(125), "  125.0 s");
}

TEST(ProgressLine, KeepsItsColumns) {
  StepReport report = some_step();
  const std::string line = progress_line(report, 262, 0);
  for (const double loss : {0.00012, 12.5, 655.9078, 123456.0, 3.2e9}) {
    report.loss = loss;
    report.epoch = 12.5;
    report.accuracy = 1;
    report.seconds = 1.5;
    EXPECT_EQ(progress_line(report, 262, 0).find("  lr "), line.find("  lr ")) << loss;
    EXPECT_EQ(progress_line(report, 262, 0).find("  MFU "), line.find("  MFU ")) << loss;
  }
  EXPECT_EQ(loss_text(3.2e9), "3.2e+09");
  EXPECT_EQ(loss_text(655.9078), "655.908");
}

TEST(ProgressLine, PutsValidationsIntoTheSameColumns) {
  EvaluationReport report;
  report.step = 120;
  report.epoch = 0.25;
  report.loss = 0.43118;
  report.accuracy = 0.875;
  report.samples = 64;
  EXPECT_EQ(validation_line(report, 1560),
            "val   120/1560  ep   0.25  loss  0.4312  acc  87.50%  (64 samples, 0.00 s)");
}

TEST(StageBars, FillTheWindow) {
  const std::vector<double> busy = {0.94, 0.5};
  EXPECT_EQ(stage_bars(busy, 79, false), "busy 0 ███████████████░  94% 1 ████████░░░░░░░░  50%");
  EXPECT_EQ(stage_bars(busy, 39, false), "busy 0 ████████▌  94% 1 ████▌░░░░  50%");
  EXPECT_EQ(stage_bars({0, 0.5, 1, 2}, 39, false), "busy ▁▅██");
  EXPECT_EQ(stage_bars({0, 0.5, 1, 2}, 7, false), "busy ▁▅");
  EXPECT_EQ(stage_bars({0.9}, 79, false), "");
  EXPECT_EQ(stage_bars(busy, 39, true),
            "busy 0 \033[34m████████▌\033[0m  94% 1 \033[34m████▌░░░░\033[0m  50%");
  for (std::size_t stages = 2; stages < 40; ++stages) {
    for (const std::size_t width : {10, 39, 79, 200})
      EXPECT_LE(columns_of(stage_bars(std::vector<double>(stages, 0.7), width, false)), width);
  }
}

}  // namespace
}  // namespace pipetrain
