#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"
#include "pipeline/program/check.h"
#include "pipeline/program/text.h"
#include "pipeline/view/trace.h"

namespace pipetrain {
namespace {

constexpr double kMostBuckets = 1e6;
constexpr double kMostMicroseconds = 1e15;  // thirty years: the sums stay exact to a nanosecond

TraceSide side_of(const DocumentField& field) {
  const std::string text = field.text();
  for (const TraceSide side : {TraceSide::kMeasured, TraceSide::kPredicted}) {
    if (text == to_text(side)) return side;
  }
  field.fail(fmt::format("must be \"measured\" or \"predicted\", got \"{}\"", printable(text)));
}

/// Fills the steps' events from the slices of the compute and communication tracks.
class SliceReader {
 public:
  explicit SliceReader(TraceFile& trace) : trace_(trace) {
    for (std::size_t s = 0; s < trace.steps.size(); ++s) {
      TraceStep& step = trace.steps[s];
      by_step_[{step.side, step.step}] = s;
      for (const auto& list : trace.programs[step.program].device)
        step.events.emplace_back(list.size(), Event{-1, -1, 0, 0});
    }
  }

  void read(const Json& slice, const DocumentField& events, std::size_t index) {
    // Most of a file is slices, so a path for errors is only made where one is wrong.
    const auto fail = [&] { events.item(index).fail("is not a slice of a pipetrain trace"); };
    const auto number = [&](const Json& object, const char* key) {
      const auto found = object.find(key);
      if (found == object.end() || !found->is_number()) fail();
      const double value = found->get<double>();
      if (!(std::abs(value) <= kMostMicroseconds)) fail();
      return value;
    };
    if (!slice.contains("args") || !slice["args"].is_object()) fail();
    const Json& what = slice["args"];
    const bool is_bucket = what.contains("bucket");
    if (!what.contains("index") && !is_bucket) return;  // the span of a whole step
    const TraceSide side = number(slice, "pid") == 1 ? TraceSide::kMeasured : TraceSide::kPredicted;
    const auto found = by_step_.find({side, static_cast<std::int64_t>(number(what, "step"))});
    if (found == by_step_.end()) fail();
    TraceStep& step = trace_.steps[found->second];
    const double device = number(what, "device");
    if (!(device >= 0) || device >= static_cast<double>(step.events.size())) fail();
    const double start = number(slice, "ts") * 1e-6 - step.start_seconds;
    const double end = start + number(slice, "dur") * 1e-6;
    if (is_bucket) {
      const double stage = number(what, "stage"), bucket = number(what, "bucket");
      const double bytes = number(what, "bytes");
      const int stages = trace_.programs[step.program].stages;
      if (!(stage >= 0 && stage < stages && bucket >= 0 && bucket <= kMostBuckets && bytes >= 0))
        fail();
      step.buckets.push_back({static_cast<int>(stage), static_cast<int>(device),
                              static_cast<int>(bucket), static_cast<std::int64_t>(bytes), start,
                              end});
      return;
    }
    auto& list = step.events[static_cast<std::size_t>(device)];
    const double place = number(what, "index");
    if (!(place >= 0) || place >= static_cast<double>(list.size())) fail();
    list[static_cast<std::size_t>(place)] = {static_cast<int>(device), static_cast<int>(place),
                                             start, end};
  }

 private:
  TraceFile& trace_;
  std::map<std::pair<TraceSide, std::int64_t>, std::size_t> by_step_;
};

}  // namespace

TraceFile read_trace(const std::filesystem::path& path) {
  const Document document = Document::read(path, "pipetrain.trace/1");
  const DocumentField other = document.root().at("otherData");
  TraceFile trace;
  if (other.has("run")) trace.run = other.at("run").text();
  const DocumentField programs = other.at("programs");
  for (std::size_t p = 0; p < programs.size(); ++p) {
    trace.programs.push_back(
        parse_program(programs.item(p).text(), fmt::format("{}: program {}", path.string(), p)));
    check(trace.programs.back(), ErrorKind::kUsage);
  }
  const DocumentField steps = other.at("steps");
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const DocumentField item = steps.item(s);
    TraceStep& step = trace.steps.emplace_back();
    step.side = side_of(item.at("side"));
    step.step = item.at("step").integer();
    const auto most = static_cast<std::int64_t>(trace.programs.size()) - 1;
    step.program = static_cast<std::size_t>(item.at("program").integer(0, most));
    step.start_seconds = static_cast<double>(item.at("start_ns").integer()) * 1e-9;
  }
  SliceReader reader(trace);
  const DocumentField events = document.root().at("traceEvents");
  const Json& list = document.json()["traceEvents"];
  for (std::size_t e = 0; e < events.size(); ++e) {
    const Json& event = list[e];
    if (!event.is_object()) events.item(e).fail("must be an object");
    const auto phase = event.find("ph");
    if (phase != event.end() && *phase == "X") reader.read(event, events, e);
  }
  for (const TraceStep& step : trace.steps) {
    for (std::size_t d = 0; d < step.events.size(); ++d) {
      for (std::size_t i = 0; i < step.events[d].size(); ++i) {
        PT_CHECK(step.events[d][i].index >= 0, kUsage,
                 "{}: step {} lacks the time of instruction {} of device {}",
                 printable(path.string()), step.step, i, d);
      }
    }
  }
  return trace;
}

}  // namespace pipetrain
