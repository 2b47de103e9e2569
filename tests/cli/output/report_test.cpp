#include "cli/output/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>
#include <sstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/output/line_chart.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

constexpr const char* kEvents =
    R"({"event":"run_start","schema":"pipetrain.events/1","run":"a <b>","version":"1","config":{"lr":"0.5","model":"m.onnx"},"model":{"file":"m.onnx","parameters":12,"ops":3},"data":{"format":"npz","samples":40}})"
    "\n"
    R"({"event":"plan","stages":[{"first_op":"x","last_op":"y&z","params":12,"fwd_ms":1.5,"bwd_ms":2,"mem_bytes":2048}],"micro_batches":4,"micro_batch_size":2,"schedule":"gpipe","predicted":{"step_ms":14,"bubble":0.25}})"
    "\n"
    R"({"event":"step","step":1,"epoch":0.5,"loss":2.5,"lr":0.5,"step_ms":20,"data_ms":0.5,"bubble":0.5,"stage_busy":[0.5]})"
    "\n"
    R"({"event":"step","step":2,"epoch":1.0,"loss":null,"nonfinite":["loss"],"lr":0.25,"step_ms":16,"data_ms":0,"bubble":0.3,"stage_busy":[0.75]})"
    "\n"
    R"({"event":"val","step":2,"epoch":1.0,"loss":2.25,"accuracy":0.875,"samples":8})"
    "\n";

RecordedRun record_of(const std::string& events) {
  const TemporaryDirectory folder;
  write_file(folder.path() / "events.jsonl", events);
  return read_run(folder.path());
}

TEST(Report, ReadsARunThatGoesOn) {
  const RecordedRun run = record_of(std::string(kEvents) + R"({"event":"step","st)");
  EXPECT_EQ(run.name, "a <b>");
  EXPECT_EQ(run.option("lr"), "0.5");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_DOUBLE_EQ(run.steps[0].loss, 2.5);
  EXPECT_TRUE(std::isnan(run.steps[1].loss));
  ASSERT_EQ(run.validations.size(), 1u);
  EXPECT_DOUBLE_EQ(run.validations[0].accuracy, 0.875);
  ASSERT_EQ(run.stages.size(), 1u);
  EXPECT_EQ(run.stages[0].memory_bytes, 2048);
  EXPECT_DOUBLE_EQ(run.predicted_step_ms, 14);
  EXPECT_FALSE(run.ended);
}

TEST(Report, OfARunThatWentOnTheLatestPartCounts) {
  const std::string failed = R"({"event":"error","message":"no memory"})"
                             "\n"
                             R"({"event":"run_end","status":"error","exit_code":5})"
                             "\n";
  const RecordedRun run = record_of(kEvents + failed + kEvents);
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.validations.size(), 1u);
  EXPECT_EQ(run.config.size(), 2u);
  EXPECT_EQ(run.error, "");
  EXPECT_FALSE(run.ended);
  EXPECT_EQ(run.exit_code, 0);
}

// The first part was killed 7.5 s after it began, the second says that it took 20 s.
TEST(Report, TheWholeRunIsAllItsParts) {
  const std::string killed = R"({"event":"step","step":3,"el":7.5})"
                             "\n";
  const auto ended = [](const char* seconds, const char* elapsed) {
    return fmt::format(R"({{"event":"run_end","status":"ok","exit_code":0,"seconds":{},"el":{}}})"
                       "\n",
                       seconds, elapsed);
  };
  const std::string begin(kEvents);
  const RecordedRun run =
      record_of(begin + killed + begin + ended("20", "21") + begin + ended("2", "3"));
  EXPECT_DOUBLE_EQ(run.seconds, 2);
  EXPECT_DOUBLE_EQ(run.whole_seconds(), 29.5);
  EXPECT_NE(
      report_html(run, {}, std::nullopt).find("<span class=\"soft\">whole run</span><b>29.5 s"),
      std::string::npos);
  EXPECT_NE(comparison_html({run, run}).find("<td class=\"num\">29.5 s"), std::string::npos);
  EXPECT_TRUE(std::isnan(record_of(begin + killed + begin).whole_seconds()));
}

// The run has gone back to a step before the validation.
TEST(Report, ValidationsOfStepsThatAreDoneAgainAreVoid) {
  const std::string start(kEvents, std::string_view(kEvents).find('\n') + 1);
  const RecordedRun run =
      record_of(kEvents + start + R"({"event":"step","step":2,"loss":2})" + "\n");
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.validations.empty());
}

TEST(Report, NamesTheLineThatIsNoEvent) {
  try {
    record_of(std::string(kEvents) + "nonsense\n{}\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 6"), std::string::npos) << error.what();
  }
  EXPECT_THROW(record_of("{\"event\":\"step\"}\n"), Error);
  EXPECT_THROW(record_of(""), Error);
  EXPECT_THROW(read_run("/nowhere/at/all"), Error);
}

TEST(Report, PageStandsAloneAndQuotesWhatItShows) {
  const std::string page = report_html(record_of(kEvents), {{"lr", "0.5"}}, std::nullopt);
  EXPECT_NE(page.find("a &lt;b&gt;"), std::string::npos);
  EXPECT_NE(page.find("y&amp;z"), std::string::npos);
  EXPECT_NE(page.find("87.5 %"), std::string::npos);
  EXPECT_NE(page.find("75.0 %"), std::string::npos)
      << "share of work, without the step that warms up";
  for (const char* outside : {"<script", "http", "src=", "nan", "@import"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

/// A run of two stages on the devices that are given, as JSON.
std::string page_of_stages(const char* first, const char* second, const char* busy) {
  const std::string stage = R"("first_op":"x","last_op":"y","params":1,"mem_bytes":1)";
  const std::string start(kEvents, std::string_view(kEvents).find('\n') + 1);
  return report_html(
      record_of(start + fmt::format(R"({{"event":"plan","stages":[{{{0}{1}}},{{{0}{2}}}]}})"
                                    "\n"
                                    R"({{"event":"step","step":1,"stage_busy":{3}}})"
                                    "\n",
                                    stage, first, second, busy)),
      {}, std::nullopt);
}

TEST(Report, BusyTimesAreThoseOfTheDevices) {
  const std::string column = "<th class=\"num\">busy";
  // The stages lie on the devices in the opposite order.
  const std::string own = page_of_stages(R"(,"devices":[1])", R"(,"devices":[0])", "[0.25,0.5]");
  EXPECT_NE(own.find(column), std::string::npos);
  EXPECT_LT(own.find("50.0 %"), own.find("25.0 %"));
  // Earlier versions recorded no devices.
  const std::string earlier = page_of_stages("", "", "[0.25,0.5]");
  EXPECT_NE(earlier.find(column), std::string::npos);
  EXPECT_LT(earlier.find("25.0 %"), earlier.find("50.0 %"));
  const auto in_a_line = [&](const std::string& page, const char* line) {
    EXPECT_EQ(page.find(column), std::string::npos) << line;
    EXPECT_NE(page.find(line), std::string::npos) << line;
  };
  in_a_line(page_of_stages(R"(,"devices":[0,1])", R"(,"devices":[2])", "[0.25,0.5,0.75]"),
            "Busy: device 0 25.0 %, device 1 50.0 %, device 2 75.0 %<");
  in_a_line(page_of_stages(R"(,"devices":[0])", R"(,"devices":[0])", "[0.25]"),
            "Busy: device 0 25.0 %<");
  // As many devices as stages.
  in_a_line(page_of_stages(R"(,"devices":[0,1])", R"(,"devices":[0,1])", "[0.25,0.5]"),
            "Busy: device 0 25.0 %, device 1 50.0 %<");
}

TEST(Report, KernelsCountAsOftenAsTheyRun) {
  const TemporaryDirectory folder;
  write_file(folder.path() / "events.jsonl", kEvents);
  write_file(folder.path() / "profile.json",
             R"({"schema":"pipetrain.profile/1","nodes":[
{"op":"MatMul","name":"a","part":"batch gradient","seconds":8e-3,"runs":0.25},
{"op":"PackMatrix","name":"b","part":"prepare","seconds":5e-3,"runs":0},
{"op":"MatMul","name":"c","part":"forward","seconds":3e-3}]})");
  const RecordedRun run = read_run(folder.path());
  ASSERT_EQ(run.kernels.size(), 3u);
  EXPECT_EQ(run.kernels[0].name, "c");
  EXPECT_DOUBLE_EQ(run.kernels[0].seconds, 3e-3);
  EXPECT_EQ(run.kernels[1].name, "a");
  EXPECT_DOUBLE_EQ(run.kernels[1].seconds, 2e-3);
  EXPECT_EQ(run.kernels[2].seconds, 0);
}

// A round of m micro-batches of 1f1b on p devices takes (m + p - 1)(F + B). The first measured step
// is shorter than the predicted one, as the last of an epoch may be.
TEST(Report, ShowsAMeasuredStepOfThePredictedProgram) {
  TraceFile trace;
  trace.programs = {lowered(options_for("1f1b", 2, 4)), lowered(options_for("1f1b", 2, 2))};
  const auto add = [&](TraceSide side, std::int64_t number, std::size_t program, double forward) {
    TraceStep& step = trace.steps.emplace_back();
    step.side = side;
    step.step = number;
    step.program = program;
    const StageSeconds seconds = {forward, 2 * forward, forward, forward, forward, 0};
    step.events =
        time_round(trace.programs[program], uniform_costs(trace.programs[program], seconds));
  };
  add(TraceSide::kPredicted, 5, 0, 1e-3);
  add(TraceSide::kMeasured, 5, 1, 2e-3);
  const RecordedRun run = record_of(kEvents);
  EXPECT_EQ(report_html(run, {}, trace).find("Why it differs"), std::string::npos);
  EXPECT_NE(report_html(run, {}, trace).find("A step, predicted and measured"), std::string::npos);
  add(TraceSide::kMeasured, 6, 0, 2e-3);
  EXPECT_NE(report_html(run, {}, trace).find("predicted step 15.0 ms, measured 30.0 ms"),
            std::string::npos);
}

TEST(Report, SharesOfKernelsAreOfAllOfThem) {
  RecordedRun run = record_of(kEvents);
  run.kernels = {{"MatMul", "a", "forward", 6e-3},
                 {"MatMul", "b", "forward", 3e-3},
                 {"Tanh", "c", "forward", 1e-3}};
  const std::string page = report_html(run, {}, std::nullopt);
  for (const char* share : {"60.0 %", "30.0 %", "10.0 %"})
    EXPECT_NE(page.find(share), std::string::npos) << share;
}

TEST(Report, CurvesAsATable) {
  EXPECT_EQ(curves_csv(record_of(kEvents)),
            "step,epoch,loss,accuracy,lr,grad_norm,step_ms,data_ms,samples_per_s,bubble,val_loss,"
            "val_accuracy\n"
            "1,0.5,2.5,,0.5,,20,0.5,,0.5,,\n"
            "2,1,,,0.25,,16,0,,0.3,2.25,0.875\n");
}

TEST(Report, CurvesOfManyRunsHaveColors) {
  const std::vector<RecordedRun> runs(14, record_of(kEvents));
  const std::string page = comparison_html(runs);
  const std::string style = page.substr(0, page.find("</style>"));
  std::set<std::string> looks;  // of lines
  const std::regex drawn("<(polyline|line|circle) class=\"([^\"]*)\"");
  for (std::sregex_iterator i(page.begin(), page.end(), drawn), end; i != end; ++i) {
    if (i->str(1) == "line") looks.insert(i->str(2));
    std::istringstream classes(i->str(2));
    for (std::string name; classes >> name;)
      EXPECT_TRUE(std::regex_search(style, std::regex("\\." + name + "[{,]"))) << name;
  }
  EXPECT_GE(looks.size(), 12U);
}

TEST(LineChart, KeepsOutliersAndBreaksAtGaps) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 54321 ? 100.0 : i >= 80000 && i < 81000 ? NAN : 1.0);
  }
  const std::string svg = line_chart({"loss", "step", {curve}});
  EXPECT_LT(svg.size(), 30000u);
  EXPECT_NE(svg.find(",30.0 "), std::string::npos) << "the outlier touches the top";
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1))
    ++lines;
  EXPECT_EQ(lines, 2u);
  EXPECT_EQ(line_chart({"loss", "step", {{"", {1, 2}, {NAN, NAN}}}}), "");
}

TEST(LineChart, ValuesThatHardlyDifferHaveFewTicks) {
  for (const double value : {0.0, 1.0, -3e-7, 1e308}) {
    for (const double next : {value, std::nextafter(value, 2.0)}) {
      const std::string svg = line_chart({"loss", "step", {{"", {1, 2}, {value, next}}}});
      EXPECT_NE(svg, "") << value;
      EXPECT_LT(svg.size(), 20000u) << value;
    }
  }
}

TEST(LineChart, LongNamesLieBelowTheTitle) {
  LineChart chart{"training loss", "step", {}};
  for (const char* name : {"a", "b", "c"}) chart.curves.push_back({name, {1, 2}, {1, 2}});
  const auto texts_at = [](const std::string& svg, const std::string& y) {
    std::size_t count = 0;
    const std::string place = "y=\"" + y + "\">";
    for (std::size_t at = svg.find(place); at != std::string::npos; at = svg.find(place, at + 1))
      ++count;
    return count;
  };
  EXPECT_EQ(texts_at(line_chart(chart), "16"), 4u);  // the title and three names
  for (Curve& curve : chart.curves) curve.name += "-of-a-run-with-a-long-name";
  const std::string svg = line_chart(chart);
  EXPECT_EQ(texts_at(svg, "16"), 1u);
  EXPECT_EQ(texts_at(svg, "32"), 2u);
  EXPECT_EQ(texts_at(svg, "48"), 1u);
  EXPECT_NE(svg.find("height=\"272\""), std::string::npos);
}

TEST(LineChart, SmoothingIsAWeightedMean) {
  const std::vector<double> mean = smoothed({1, NAN, 3}, 0.5);
  EXPECT_DOUBLE_EQ(mean[0], 1);
  EXPECT_DOUBLE_EQ(mean[1], 1);
  EXPECT_DOUBLE_EQ(mean[2], (0.25 * 1 + 0.5 * 3) / 0.75);
}

}  // namespace
}  // namespace pipetrain
