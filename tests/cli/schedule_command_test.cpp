#include "cli/commands/schedule_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands/trace_command.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/schedule_file.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/view/trace.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

using Json = nlohmann::json;

ScheduleCommandOptions options_for(std::vector<std::string> arguments) {
  ScheduleCommandOptions options;
  options.arguments = std::move(arguments);
  options.width = 60;
  return options;
}

std::string output_of(const ScheduleCommandOptions& options) {
  testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(schedule_command(options), 0);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

std::string refusal_of(const ScheduleCommandOptions& options) {
  try {
    output_of(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.message();
  }
  return "accepted";
}

TEST(ScheduleCommand, ShowsRowsAndASummary) {
  ScheduleCommandOptions options = options_for({"show", "1f1b"});
  options.stages = 2;
  options.micro_batches = 3;
  EXPECT_EQ(output_of(options),
            "device 0 │F0░░F1░░        B0▓▓▓▓▓▓F2░░B1▓▓▓▓▓▓    B2▓▓▓▓▓▓│\n"
            "device 1 │    F0░░B0▓▓▓▓▓▓F1░░B1▓▓▓▓▓▓F2░░B2▓▓▓▓▓▓        │\n"
            "         0                                              12\n"
            "F░ forward  B▓ backward\n"
            "1f1b · 2 stages on 2 devices · 3 micro-batches\n"
            "makespan 12 · bubble 25.0 % (theory: 25.0 %)\n"
            "in flight 2 1 · weight copies 1 1 · staleness 0 0\n");
}

TEST(ScheduleCommand, SummaryAsJson) {
  // Makespans with f=1, b=2 (i=w=1) on 4 devices, 8 micro-batches; half of f a stage where there
  // are two on a device.
  for (const auto& [name, makespan] :
       std::vector<std::pair<const char*, double>>{{"gpipe", 33},
                                                   {"1f1b", 33},
                                                   {"interleaved-1f1b", 28.5},
                                                   {"zb-h1", 27},
                                                   {"zb-v", 25.5},
                                                   {"v-half", 30},
                                                   {"v-min", 29.5}}) {
    ScheduleCommandOptions options = options_for({"show", name});
    options.json = true;
    const Json json = Json::parse(output_of(options));
    EXPECT_EQ(json["schema"], "pipetrain.schedule/1");
    EXPECT_EQ(json["devices"], 4);
    EXPECT_DOUBLE_EQ(json["makespan"], makespan) << name;
    EXPECT_NEAR(json["bubble"], 1 - 24 / makespan, 1e-12) << name;
    EXPECT_NEAR(json["theoretical_bubble"], 1 - 24 / makespan, 1e-12) << name;
  }
  ScheduleCommandOptions options = options_for({"show", "pipedream"});
  options.json = true;
  const Json json = Json::parse(output_of(options));
  EXPECT_EQ(json["staleness"], Json({3, 2, 1, 0}));
  EXPECT_EQ(json["weight_copies"], Json({4, 3, 2, 1}));
  EXPECT_EQ(json["micro_batch_period"], 3);
}

// Of 8 micro-batches of 3 s on 4 devices, the last of which starts 3 s after the first.
TEST(ScheduleCommand, ShowsWhatABarrierCosts) {
  ScheduleCommandOptions options = options_for({"show", "zb-h2"});
  options.times = "1,1,1";
  EXPECT_NE(output_of(options).find(
                "\nmakespan 27 (24 without a barrier between steps) · bubble 11.1 % (theory"),
            std::string::npos)
      << output_of(options);
  options.arguments[1] = "forward";
  EXPECT_NE(output_of(options).find("\nmakespan 11 (8 without a barrier between rounds) · "),
            std::string::npos)
      << output_of(options);
  // A full pipeline has another micro-batch every 3 s.
  options.arguments[1] = "pipedream";
  EXPECT_NE(output_of(options).find("\nmakespan 33 · period 3 per micro-batch · "),
            std::string::npos)
      << output_of(options);
  // 8 devices are not full before the 8 micro-batches end.
  options.stages = 8;
  EXPECT_NE(output_of(options).find("\nmakespan 45 · bubble "), std::string::npos)
      << output_of(options);
  options.json = true;
  EXPECT_TRUE(Json::parse(output_of(options))["micro_batch_period"].is_null());
}

TEST(ScheduleCommand, HasNoTheoryOfAFileThatOnlyHasTheName) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "one.schedule").string();
  std::string text = output_of(options_for({"export", "gpipe"}));
  put_file(file, text);
  ScheduleCommandOptions options = options_for({"show", file});
  EXPECT_NE(output_of(options).find("(theory: "), std::string::npos);
  const std::string name = "\nname gpipe\n";
  const std::size_t place = text.find(name);
  ASSERT_NE(place, std::string::npos);
  put_file(file, text.replace(place, name.size(), "\nname zb-h1\n"));
  EXPECT_EQ(output_of(options).find("(theory: "), std::string::npos);
  options.json = true;
  EXPECT_FALSE(Json::parse(output_of(options)).contains("theoretical_bubble"));
}

TEST(ScheduleCommand, ListsEverySchedule) {
  ScheduleCommandOptions options = options_for({"list"});
  const std::string text = output_of(options);
  options.json = true;
  const Json json = Json::parse(output_of(options));
  ASSERT_EQ(json["schedules"].size(), schedules().size());
  for (const Json& schedule : json["schedules"]) {
    const std::string name = schedule["name"];
    EXPECT_NE(("\n" + text).find("\n" + name + " "), std::string::npos) << name;
  }
}

TEST(ScheduleCommand, TimesWithUnits) {
  ScheduleCommandOptions options = options_for({"show", "1f1b"});
  options.json = true;
  options.stages = 2;
  options.micro_batches = 1;
  options.times = "10ms,12ms,8000us";
  options.latency = "500us";
  EXPECT_DOUBLE_EQ(Json::parse(output_of(options))["makespan"], 2 * 0.030 + 2 * 500e-6);
  options.latency = "5";
  EXPECT_NE(refusal_of(options).find("--latency"), std::string::npos);
  options.latency = "";
  for (const char* wrong : {"1", "1,2,3,4", "x,2", "-1,2", "1,2m", "0,0", "1,nan", "1,2ms"}) {
    options.times = wrong;
    EXPECT_NE(refusal_of(options).find("--times"), std::string::npos) << wrong;
  }
}

TEST(ScheduleCommand, ExportsAndReadsBack) {
  const TemporaryDirectory directory;
  ScheduleCommandOptions options = options_for({"export", "zb-h1"});
  const std::string text = output_of(options);
  EXPECT_EQ(text.rfind("pipetrain-schedule 1\nname zb-h1\n", 0), 0U) << text;
  options.output = (directory / "a.schedule").string();
  options.csv = (directory / "a.csv").string();
  EXPECT_EQ(output_of(options), "");
  EXPECT_EQ(get_file(options.output), text);
  for (const std::string& file : {options.output, options.csv}) {
    ScheduleCommandOptions read = options_for({"show", file});
    read.json = true;
    EXPECT_EQ(Json::parse(output_of(read))["makespan"], 27) << file;
    EXPECT_NE(output_of(options_for({"check", file})).find("valid, "), std::string::npos);
  }
  options = options_for({"show", "1f1b"});
  options.svg = (directory / "a.svg").string();
  EXPECT_NE(output_of(options).find("makespan 33"), std::string::npos);
  EXPECT_EQ(get_file(options.svg).rfind("<svg ", 0), 0U);
}

TEST(ScheduleCommand, DrawsTransfersThatTakeTime) {
  const TemporaryDirectory directory;
  ScheduleCommandOptions options = options_for({"show", "1f1b"});
  options.stages = 2;
  options.costs = (directory / "costs.json").string();
  options.svg = (directory / "a.svg").string();
  for (const int bytes : {0, 1}) {
    const std::string edge = R"({"from": 0, "to": 1, "bytes": )" + std::to_string(bytes) + "}";
    put_file(options.costs, R"({"schema": "pipetrain.costs/1",
                                "stages": [{"forward": 1, "backward": 2}],
                                "link": {"bytes_per_second": 1}, "edges": [)" +
                                edge + "]}");
    output_of(options);
    EXPECT_EQ(get_file(options.svg).find(">send</text>") != std::string::npos, bytes > 0) << bytes;
  }
}

TEST(ScheduleCommand, ANameIsNotShadowedByAFile) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  put_file("1f1b", "no schedule");
  put_file("auto", "no schedule");
  EXPECT_FALSE(names_schedule_file("auto"));
  EXPECT_TRUE(names_schedule_file("./auto"));
  put_file("mine", output_of(options_for({"export", "zb-h1"})));
  EXPECT_NE(output_of(options_for({"show", "1f1b"})).find("makespan 33"), std::string::npos);
  EXPECT_NE(output_of(options_for({"show", "mine"})).find("makespan 27"), std::string::npos);
  EXPECT_NE(refusal_of(options_for({"show", "./1f1b"})).find("./1f1b"), std::string::npos);
  std::filesystem::current_path(before);
}

TEST(ScheduleCommand, RefusesWithASentence) {
  const TemporaryDirectory directory;
  EXPECT_NE(refusal_of(options_for({})).find("show, export or check"), std::string::npos);
  EXPECT_NE(refusal_of(options_for({"draw", "1f1b"})).find("show, export"), std::string::npos);
  EXPECT_NE(refusal_of(options_for({"show"})).find("one schedule"), std::string::npos);
  EXPECT_NE(refusal_of(options_for({"show", "1f1a"})).find("1f1b"), std::string::npos);
  EXPECT_NE(refusal_of(options_for({"show", "none.schedule"})).find("none.schedule"),
            std::string::npos);
  ScheduleCommandOptions options = options_for({"show", "1f1b"});
  options.replicas = "2,1";
  EXPECT_NE(refusal_of(options).find("--replicas"), std::string::npos);
  options.replicas = "2,x,1,1";
  EXPECT_NE(refusal_of(options).find("--replicas"), std::string::npos);
  // A schedule that breaks a rule: the second backward is missing.
  const std::string file = (directory / "bad.schedule").string();
  put_file(file,
           "pipetrain-schedule 1\nname bad\nrule sync\nstages 1\nunits 2\nplacement 0\n"
           "transfers no\ndevice 0: 0F0 0B0 0F1 0U\n");
  EXPECT_NE(refusal_of(options_for({"check", file})).find("micro-batch 1 on stage 0"),
            std::string::npos)
      << refusal_of(options_for({"check", file}));
}

TEST(TraceCommand, ComparesOneFileOrTwo) {
  const TemporaryDirectory directory;
  ScheduleOptions schedule;
  schedule.stages = 3;
  schedule.micro_batches = 6;
  const Program program = lower(generate(schedule), chain_edges(3, 1));
  Costs costs = uniform_costs(program, {1e-3, 2e-3, 1e-3, 1e-3, 1e-3, 1e-4});
  const Events predicted = time_round(program, costs);
  costs.stage[2].forward *= 1.4;
  const Events measured = time_round(program, costs);
  const auto write = [&](const char* name, bool with_predicted, bool with_measured) {
    TraceWriter writer(directory / name, {});
    if (with_predicted) writer.add_step(TraceSide::kPredicted, program, predicted, 0, 0);
    for (int step = 10; with_measured && step < 12; ++step)
      writer.add_step(TraceSide::kMeasured, program, measured, step, step);
    writer.end();
    return (directory / name).string();
  };
  const std::string both = write("both.json", true, true);
  const std::string before = write("before.json", true, false);
  const std::string after = write("after.json", false, true);
  const auto run = [&](std::vector<std::string> files, bool json) {
    TraceCommandOptions options;
    options.arguments = {"diff"};
    options.arguments.insert(options.arguments.end(), files.begin(), files.end());
    options.json = json;
    testing::internal::CaptureStdout();
    EXPECT_EQ(trace_command(options), 0);
    return testing::internal::GetCapturedStdout();
  };
  const std::string text = run({both}, false);
  EXPECT_NE(text.find("(mean of 2 steps)"), std::string::npos) << text;
  EXPECT_NE(text.find("stage 2 forward 40.0 % slower (1.40 ms, predicted 1.00 ms)"),
            std::string::npos)
      << text;
  EXPECT_EQ(run({before, after}, false), text);
  const Json json = Json::parse(run({before, after}, true));
  EXPECT_EQ(json["schema"], "pipetrain.difference/1");
  EXPECT_EQ(json["causes"][0]["stage"], 2);
  EXPECT_EQ(json["causes"][0]["cause"], "instruction");
  EXPECT_NEAR(json["causes"][0]["seconds"],
              json["measured_seconds"].get<double>() - json["predicted_seconds"].get<double>(),
              1e-7);
  TraceCommandOptions options;
  for (const auto& words : std::vector<std::vector<std::string>>{{},
                                                                 {"diff"},
                                                                 {"show", both},
                                                                 {"diff", before},
                                                                 {"diff", after},
                                                                 {"diff", "none.json"}}) {
    options.arguments = words;
    EXPECT_THROW(trace_command(options), Error);
  }
}

}  // namespace
}  // namespace pipetrain
