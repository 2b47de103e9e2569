#include "pipeline/view/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/simulate/simulate.h"
#include "support/example_programs.h"
#include "support/temporary_directory.h"

namespace pipetrain {
namespace {

using Json = nlohmann::json;

Program round_of(const std::string& name) {
  ScheduleOptions options = options_for(name, 4 * stages_per_device(name, 2), 8);
  if (name == "pipedream") options.replicas = {2, 1, 1, 1};
  return lowered(options);
}

/// Events with transfers that overlap: wires are slow.
Events events_for(const Program& program, double slower = 1) {
  Costs costs =
      uniform_costs(program, {1e-3, 2e-3 * slower, 1e-3 * slower, 1e-3, 1e-3, 1e-4, 2e-4});
  costs.link = {3e-4, 2e3};
  costs.gradient_sync_seconds = 1e-4;
  return simulate(program, costs).events;
}

const std::vector<const char*> kNames = {
    "gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "pipedream", "pipedream-2bw", "forward", "zb-v"};

Json written(const std::filesystem::path& path, const Program& program, const TraceLabels& labels) {
  std::filesystem::remove(path);
  TraceWriter writer(path, labels);
  const Events predicted = events_for(program);
  const Events measured = events_for(program, 1.3);
  const double seconds = timeline_of(program, measured).seconds;
  for (int step = 0; step < 3; ++step) {
    writer.add_step(TraceSide::kPredicted, program, predicted, 1.5 + step * seconds, 10 + step);
    writer.add_step(TraceSide::kMeasured, program, measured, 1.5 + step * seconds, 10 + step);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.end();
  return Json::parse(get_file(path));
}

TEST(Trace, EventsOfATrackDoNotOverlap) {
  const TemporaryDirectory directory;
  for (const char* name : kNames) {
    const Program program = round_of(name);
    const Json trace = written(directory / "trace.json", program, {});
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
    std::map<std::pair<int, int>, std::string> names;
    std::size_t slices = 0;
    for (const Json& event : trace["traceEvents"]) {
      const std::string phase = event["ph"];
      if (phase == "M" && event["name"] == "thread_name")
        names[{event["pid"], event["tid"]}] = event["args"]["name"];
      if (phase != "X") continue;
      ++slices;
      tracks[{event["pid"], event["tid"]}].emplace_back(event["ts"], event["dur"]);
    }
    std::size_t instructions = 0;
    for (const auto& list : program.device) instructions += list.size();
    EXPECT_EQ(slices, 2 * 3 * (instructions + 1)) << name;
    for (auto& [track, events] : tracks) {
      EXPECT_TRUE(names.contains(track)) << name;
      std::sort(events.begin(), events.end());
      for (std::size_t e = 0; e + 1 < events.size(); ++e)
        EXPECT_LE(events[e].first + events[e].second, events[e + 1].first + 5e-4)
            << name << " " << names[track];
    }
  }
}

TEST(Trace, ArrowsGoFromWhatMakesDataToWhatReadsIt) {
  const TemporaryDirectory directory;
  for (const char* name : kNames) {
    const Program program = round_of(name);
    const Json trace = written(directory / "trace.json", program, {});
    struct Slice {
      double begin, end;
      std::string name;
    };
    std::map<std::pair<int, int>, std::vector<Slice>> tracks;
    std::map<int, std::map<std::string, Json>> arrows;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X")
        tracks[{event["pid"], event["tid"]}].push_back(
            {event["ts"], event["ts"].get<double>() + event["dur"].get<double>(), event["name"]});
      if (event["ph"] == "s" || event["ph"] == "f") {
        EXPECT_TRUE(arrows[event["id"]].emplace(event["ph"], event).second);
      }
    }
    EXPECT_EQ(arrows.size(), 2 * 3 * program.transfers.size()) << name;
    const auto slice_at = [&](const Json& end) {
      for (const Slice& slice : tracks[{end["pid"], end["tid"]}]) {
        if (slice.begin - 5e-4 <= end["ts"] && end["ts"] < slice.end) return slice.name;
      }
      return std::string("nothing");
    };
    for (auto& [id, ends] : arrows) {
      ASSERT_EQ(ends.size(), 2U);
      const std::string from = slice_at(ends["s"]);
      const std::string to = slice_at(ends["f"]);
      // A forward sends activations to a forward, a backward gradients to a backward.
      const bool gradient = ends["s"]["name"] == "gradient";
      const std::string kinds = gradient ? "BI" : "F";
      const auto kind_of = [](const std::string& text) {
        return text.substr(text.find_first_not_of("0123456789"), 1);
      };
      EXPECT_NE(kinds.find(kind_of(from)), std::string::npos) << name << " " << from;
      EXPECT_NE(kinds.find(kind_of(to)), std::string::npos) << name << " " << to;
      EXPECT_EQ(std::stoi(to) - std::stoi(from), gradient ? -1 : 1) << name << from << to;
      EXPECT_EQ(from.substr(from.find_first_not_of("0123456789") + 1),
                to.substr(to.find_first_not_of("0123456789") + 1));
      EXPECT_LE(ends["s"]["ts"], ends["f"]["ts"]);
    }
  }
}

TEST(Trace, CountersReachThePeakAndReturnToNothing) {
  const TemporaryDirectory directory;
  const Program program = round_of("1f1b");
  TraceLabels labels;
  labels.bytes_per_micro_batch = {1000, 100, 10, 1};
  labels.device_names = {"left", "d1", "d2", "right"};
  const Json trace = written(directory / "trace.json", program, labels);
  std::map<std::string, std::vector<int>> values;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "C") continue;
    for (const auto& [stage, value] : event["args"].items())
      values[event["name"].get<std::string>() + " " + stage].push_back(value);
  }
  const auto expect_peak = [&](const std::string& name, int peak) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_EQ(*std::max_element(values[name].begin(), values[name].end()), peak) << name;
    EXPECT_EQ(*std::min_element(values[name].begin(), values[name].end()), 0) << name;
    EXPECT_EQ(values[name].back(), 0) << name;
  };
  expect_peak("left activation bytes stage 0", 4000);
  expect_peak("d1 activation bytes stage 1", 300);
  expect_peak("d2 activation bytes stage 2", 20);
  expect_peak("right activation bytes stage 3", 1);
}

TEST(Trace, IsReadAsItWasWritten) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "trace.json";
  for (const char* name : kNames) {
    const Program program = round_of(name);
    TraceLabels labels;
    labels.run = name;
    written(path, program, labels);
    const TraceFile trace = read_trace(path);
    EXPECT_EQ(trace.run, name);
    ASSERT_EQ(trace.programs.size(), 1U);
    EXPECT_EQ(trace.programs[0], program);
    ASSERT_EQ(trace.steps.size(), 6U);
    for (std::size_t s = 0; s < 6; ++s) {
      const TraceStep& step = trace.steps[s];
      EXPECT_EQ(step.side, s % 2 == 0 ? TraceSide::kPredicted : TraceSide::kMeasured);
      EXPECT_EQ(step.step, 10 + static_cast<int>(s / 2));
      const Events expected = events_for(program, s % 2 == 0 ? 1.0 : 1.3);
      for (std::size_t d = 0; d < expected.size(); ++d) {
        for (std::size_t i = 0; i < expected[d].size(); ++i) {
          EXPECT_NEAR(step.events[d][i].start, expected[d][i].start, 3e-9) << name;
          EXPECT_NEAR(step.events[d][i].end, expected[d][i].end, 3e-9) << name;
        }
      }
    }
  }
}

TEST(Trace, BucketsOfGradientsAreReadAsTheyWereWritten) {
  const TemporaryDirectory directory;
  ScheduleOptions options = options_for("1f1b", 1, 2);
  options.replicas = {2};
  const Program program = generate(options);
  Costs costs = uniform_costs(program, {1e-3, 2e-3, 1e-3, 1e-3, 0, 1e-4});
  costs.stage[0].buckets = {{0.5, 5e-4, 1 << 20}, {1, 2e-3, 4 << 20}};
  const Simulation simulated = simulate(program, costs);
  ASSERT_EQ(simulated.buckets.size(), 2U);
  // Two of a second process are under way at the same time.
  std::vector<BucketEvent> measured = simulated.buckets;
  measured.push_back({0, 1, 0, 1 << 20, 1e-3, 4e-3});
  measured.push_back({0, 1, 1, 4 << 20, 2e-3, 5e-3});
  const auto path = directory / "trace.json";
  TraceWriter writer(path, {});
  writer.add_step(TraceSide::kPredicted, program, simulated.events, 0, 7, simulated.buckets);
  writer.add_step(TraceSide::kMeasured, program, simulated.events, 0.5, 7, measured);
  writer.end();
  const TraceFile trace = read_trace(path);
  ASSERT_EQ(trace.steps.size(), 2U);
  for (const TraceStep& step : trace.steps) {
    const auto& expected = step.side == TraceSide::kMeasured ? measured : simulated.buckets;
    ASSERT_EQ(step.buckets.size(), expected.size());
    for (const BucketEvent& bucket : expected) {
      const auto found =
          std::find_if(step.buckets.begin(), step.buckets.end(), [&](const BucketEvent& other) {
            return other.device == bucket.device && other.bucket == bucket.bucket;
          });
      ASSERT_NE(found, step.buckets.end());
      EXPECT_EQ(found->bytes, bucket.bytes);
      EXPECT_NEAR(found->start, bucket.start, 2e-9);
      EXPECT_NEAR(found->end, bucket.end, 2e-9);
    }
  }
}

TEST(Trace, GoldenFileOfOneInstructionEach) {
  const TemporaryDirectory directory;
  const Program program = lowered(options_for("forward", 1, 1));
  TraceLabels labels;
  labels.title = "x \"y\".onnx";
  labels.run = "a \"b\"";
  TraceWriter writer(directory / "trace.json", labels);
  writer.add_step(TraceSide::kMeasured, program, {{{0, 0, 0.5e-6, 2e-3}}}, 1, 7);
  writer.end();
  EXPECT_EQ(get_file(directory / "trace.json"),
            R"({"schema":"pipetrain.trace/1","displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"measured: x \"y\".onnx"}},
{"ph":"M","name":"process_sort_index","pid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":0,"args":{"name":"steps"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":0,"args":{"sort_index":0}},
{"ph":"X","name":"step 7","cat":"step","pid":1,"tid":0,"ts":1000000.000,"dur":2000.000,"args":{"step":7,"bubble":0.000250}},
{"ph":"M","name":"thread_name","pid":1,"tid":64,"args":{"name":"device 0 compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":64,"args":{"sort_index":64}},
{"ph":"X","name":"0F0","cat":"forward","pid":1,"tid":64,"ts":1000000.500,"dur":1999.500,"args":{"stage":0,"micro_batch":0,"version":0,"step":7,"device":0,"index":0}},
{"ph":"C","name":"device 0 activation units","pid":1,"ts":1000000.500,"args":{"stage 0":1}},
{"ph":"C","name":"device 0 activation units","pid":1,"ts":1002000.000,"args":{"stage 0":0}}
],"otherData":{"title":"x \"y\".onnx","run":"a \"b\"","steps":[
{"side":"measured","step":7,"program":0,"start_ns":1000000000}],"programs":[
"pipetrain-schedule 1\nname forward\nrule none\nstages 1\nunits 1\nplacement 0\ntransfers yes\ndevice 0: 0F0\n"]}}
)");
}

TEST(Trace, RefusesWhatIsNotATrace) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "trace.json";
  const Json good = written(path, round_of("1f1b"), {});
  const auto refused = [&](const Json& json, const char* part) {
    put_file(path, json.dump());
    try {
      read_trace(path);
      FAIL() << "accepted: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  };
  Json bad = good;
  bad.erase("otherData");
  refused(bad, "otherData");
  bad = good;
  bad["otherData"]["run"] = 7;
  refused(bad, "otherData.run");
  bad = good;
  bad["otherData"]["steps"][0]["program"] = 1;
  refused(bad, "steps[0].program");
  bad = good;
  bad["otherData"]["programs"][0] = "pipetrain-schedule 1\nname x";
  refused(bad, "program 0");
  std::size_t slice = 0;
  while (good["traceEvents"][slice]["ph"] != "X" ||
         !good["traceEvents"][slice]["args"].contains("index"))
    ++slice;
  bad = good;
  bad["traceEvents"].erase(slice);
  refused(bad, "lacks the time of instruction 0 of device 0");
  const std::string name = fmt::format("traceEvents[{}]", slice);
  bad = good;
  bad["traceEvents"][slice]["args"]["index"] = 1000;
  refused(bad, name.c_str());
  bad["traceEvents"][slice]["args"]["index"] = "x";
  refused(bad, name.c_str());
  bad = good;
  bad["traceEvents"][slice]["ts"] = 1e300;
  refused(bad, name.c_str());
  bad = good;
  bad["traceEvents"][slice] = 3;
  refused(bad, name.c_str());
}

TEST(Trace, AnUnfinishedFileIsNotThere) {
  const TemporaryDirectory directory;
  {
    TraceWriter writer(directory / "trace.json", {});
    const Program program = round_of("1f1b");
    writer.add_step(TraceSide::kMeasured, program, events_for(program), 0, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace pipetrain
