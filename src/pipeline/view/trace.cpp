#include "pipeline/view/trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/program/compute_table.h"
#include "pipeline/program/palette.h"
#include "pipeline/program/text.h"

namespace pipetrain {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr int kTracksPerDevice = 64;
// A device's tracks: compute, communication, buckets of gradients.
constexpr int kCommunicationTracks = 55, kBucketTracks = 8;

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

/// The unit of the format is the microsecond; three decimals keep the nanoseconds.
std::string microseconds(std::int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int process_of(TraceSide side) { return side == TraceSide::kMeasured ? 1 : 2; }
int track_of(int device, int lane) { return (device + 1) * kTracksPerDevice + lane; }

}  // namespace

const char* to_text(TraceSide side) {
  return side == TraceSide::kMeasured ? "measured" : "predicted";
}

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceLabels labels)
    : file_(path), labels_(std::move(labels)) {
  buffer_ = R"({"schema":"pipetrain.trace/1","displayTimeUnit":"ms","traceEvents":[)";
}

void TraceWriter::flush(std::size_t at_least) {
  if (buffer_.size() < at_least) return;
  file_.write(buffer_);
  buffer_.clear();
}

void TraceWriter::put(const std::string& event) {
  buffer_ += first_ ? "\n" : ",\n";
  first_ = false;
  buffer_ += event;
  flush(kBufferBytes);
}

std::string TraceWriter::device_name(std::size_t device) const {
  return device < labels_.device_names.size() ? labels_.device_names[device]
                                              : fmt::format("device {}", device);
}

void TraceWriter::name_side(TraceSide side) {
  const std::string name =
      labels_.title.empty() ? to_text(side) : fmt::format("{}: {}", to_text(side), labels_.title);
  put(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                  process_of(side), json_text(name)));
  put(fmt::format(
      R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
      process_of(side)));
  name_track(side, 0, "steps");
}

void TraceWriter::name_track(TraceSide side, int track, const std::string& name) {
  put(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                  process_of(side), track, json_text(name)));
  put(fmt::format(
      R"({{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}})",
      process_of(side), track));
}

std::size_t TraceWriter::number_of(const Program& program) {
  const auto found = std::find(programs_.begin(), programs_.end(), program);
  if (found != programs_.end()) return static_cast<std::size_t>(found - programs_.begin());
  programs_.push_back(program);
  return programs_.size() - 1;
}

void TraceWriter::add_slice(TraceSide side, const Program& program, const Event& event,
                            std::int64_t origin, std::int64_t step) {
  const auto d = static_cast<std::size_t>(event.device);
  const Instruction& instruction = program.device[d][static_cast<std::size_t>(event.index)];
  DeviceTracks& tracks = sides_[static_cast<std::size_t>(side)].devices[d];
  std::int64_t start = origin + nanoseconds(event.start);
  std::int64_t end = std::max(start, origin + nanoseconds(event.end));
  int lane = 0;
  if (is_work(instruction.kind)) {
    start = std::max(start, tracks.compute_end);  // rounding, or a clock that is not quite steady
    tracks.compute_end = end = std::max(start, end);
  } else {
    auto& ends = tracks.communication_end;
    lane = free_lane(side, event.device, ends, 1, kCommunicationTracks, "communication", start);
    ends[static_cast<std::size_t>(lane - 1)] = end = std::max(start, end);
  }
  const KindLook& look = look_of(instruction.kind);
  std::string what;
  if (instruction.stage >= 0) what += fmt::format(R"("stage":{},)", instruction.stage);
  if (instruction.micro_batch >= 0)
    what += fmt::format(R"("micro_batch":{},)", instruction.micro_batch);
  if (instruction.version >= 0) what += fmt::format(R"("version":{},)", instruction.version);
  put(fmt::format(
      R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}"step":{},"device":{},"index":{}}}}})",
      to_text(program, instruction), look.word, process_of(side), track_of(event.device, lane),
      microseconds(start), microseconds(end - start), what, step, event.device, event.index));
}

/// A track on which nothing runs at `start`. With more at once than tracks, one begins where
/// another ends.
int TraceWriter::free_lane(TraceSide side, int device, std::vector<std::int64_t>& ends, int first,
                           int most, const char* name, std::int64_t& start) {
  auto free =
      std::find_if(ends.begin(), ends.end(), [&](std::int64_t last) { return last <= start; });
  if (free == ends.end() && static_cast<int>(ends.size()) < most) {
    free = ends.insert(free, start);
    name_track(side, track_of(device, first + static_cast<int>(ends.size()) - 1),
               fmt::format("{} {}{}", device_name(static_cast<std::size_t>(device)), name,
                           ends.size() > 1 ? fmt::format(" {}", ends.size()) : ""));
  }
  if (free == ends.end()) free = std::min_element(ends.begin(), ends.end());
  start = std::max(start, *free);
  return first + static_cast<int>(free - ends.begin());
}

void TraceWriter::add_buckets(TraceSide side, std::span<const BucketEvent> buckets,
                              std::int64_t origin, std::int64_t step) {
  std::vector<BucketEvent> ordered(buckets.begin(), buckets.end());
  std::ranges::stable_sort(ordered, {}, &BucketEvent::start);
  for (const BucketEvent& bucket : ordered) {
    auto& ends = sides_[static_cast<std::size_t>(side)]
                     .devices[static_cast<std::size_t>(bucket.device)]
                     .buckets_end;
    std::int64_t start = origin + nanoseconds(bucket.start);
    constexpr int kFirst = 1 + kCommunicationTracks;
    const int lane =
        free_lane(side, bucket.device, ends, kFirst, kBucketTracks, "buckets of gradients", start);
    const std::int64_t end = std::max(start, origin + nanoseconds(bucket.end));
    ends[static_cast<std::size_t>(lane - kFirst)] = end;
    put(fmt::format(
        R"({{"ph":"X","name":"bucket {2} of stage {1}","cat":"bucket","pid":{3},"tid":{4},"ts":{5},"dur":{6},"args":{{"stage":{1},"bucket":{2},"bytes":{7},"step":{8},"device":{0}}}}})",
        bucket.device, bucket.stage, bucket.bucket, process_of(side), track_of(bucket.device, lane),
        microseconds(start), microseconds(end - start), bucket.bytes, step));
  }
}

void TraceWriter::add_flows(TraceSide side, const Program& program, const Events& events,
                            std::int64_t origin) {
  const ComputeTable table(program);
  for (const Transfer& transfer : program.transfers) {
    const Edge& edge = program.edges[static_cast<std::size_t>(transfer.edge)];
    const Place from = table.producer(edge, transfer.micro_batch);
    const Place to = table.consumer(edge, transfer.micro_batch);
    if (!from.exists() || !to.exists()) continue;
    const auto event_at = [&](const Place& place) -> const Event& {
      return events[static_cast<std::size_t>(place.device)][static_cast<std::size_t>(place.index)];
    };
    // An arrow is tied to the slice that lies around its end, so both ends stand just inside.
    const std::int64_t made = std::max(origin + nanoseconds(event_at(from).start),
                                       origin + nanoseconds(event_at(from).end) - 1);
    const std::int64_t read = std::max(made, origin + nanoseconds(event_at(to).start));
    const char* name = transfer.gradient ? "gradient" : "activation";
    put(fmt::format(
        R"({{"ph":"s","id":{},"name":"{}","cat":"transfer","pid":{},"tid":{},"ts":{}}})",
        next_flow_, name, process_of(side), track_of(from.device, 0), microseconds(made)));
    put(fmt::format(
        R"({{"ph":"f","bp":"e","id":{},"name":"{}","cat":"transfer","pid":{},"tid":{},"ts":{}}})",
        next_flow_, name, process_of(side), track_of(to.device, 0), microseconds(read)));
    ++next_flow_;
  }
}

void TraceWriter::add_counters(TraceSide side, const Program& program, const Events& events,
                               std::int64_t origin) {
  const bool bytes =
      labels_.bytes_per_micro_batch.size() == static_cast<std::size_t>(program.stages);
  for (int device = 0; device < program.devices; ++device) {
    std::vector<std::pair<int, std::int64_t>> live;  // stage, micro-batches
    for (int s = 0; s < program.stages; ++s) {
      if (program.replica_on(s, device) >= 0) live.emplace_back(s, 0);
    }
    const std::string name =
        fmt::format("{} activation {}", device_name(static_cast<std::size_t>(device)),
                    bytes ? "bytes" : "units");
    const std::vector<LiveChange> changes = live_changes(program, events, device);
    for (std::size_t c = 0; c < changes.size(); ++c) {
      for (auto& [stage, micro_batches] : live) {
        if (stage == changes[c].stage) micro_batches += changes[c].change;
      }
      // Of several changes at one moment the sum counts.
      if (c + 1 < changes.size() && changes[c + 1].seconds == changes[c].seconds) continue;
      std::string values;
      for (const auto& [stage, micro_batches] : live) {
        const std::int64_t size =
            bytes ? labels_.bytes_per_micro_batch[static_cast<std::size_t>(stage)] : 1;
        values += fmt::format(R"({}"stage {}":{})", values.empty() ? "" : ",", stage,
                              micro_batches * size);
      }
      put(fmt::format(R"({{"ph":"C","name":{},"pid":{},"ts":{},"args":{{{}}}}})", json_text(name),
                      process_of(side), microseconds(origin + nanoseconds(changes[c].seconds)),
                      values));
    }
  }
}

void TraceWriter::add_step(TraceSide side, const Program& program, const Events& events,
                           double start_seconds, std::int64_t step,
                           std::span<const BucketEvent> buckets) {
  const Timeline timeline = timeline_of(program, events);
  SideState& state = sides_[static_cast<std::size_t>(side)];
  if (!state.named) name_side(side);
  state.named = true;
  const std::int64_t origin = nanoseconds(start_seconds);
  const std::int64_t begin = std::max(origin, state.steps_end);
  const std::optional<double> overlap = overlapped_share(program, events, buckets);
  state.steps_end = std::max(begin, origin + nanoseconds(timeline.seconds));
  put(fmt::format(
      R"({{"ph":"X","name":"step {0}","cat":"step","pid":{1},"tid":0,"ts":{2},"dur":{3},"args":{{"step":{0},"bubble":{4:.6f}{5}}}}})",
      step, process_of(side), microseconds(begin), microseconds(state.steps_end - begin),
      timeline.bubble, overlap ? fmt::format(R"(,"reduce_overlap":{:.6f})", *overlap) : ""));
  state.devices.resize(std::max(state.devices.size(), events.size()));
  for (std::size_t d = 0; d < events.size(); ++d) {
    if (!state.devices[d].named) {
      name_track(side, track_of(static_cast<int>(d), 0), device_name(d) + " compute");
      state.devices[d].named = true;
    }
    // A lane takes an event only after its last one, so events come in the order of their starts.
    std::vector<Event> ordered = events[d];
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const Event& a, const Event& b) { return a.start < b.start; });
    for (const Event& event : ordered) add_slice(side, program, event, origin, step);
  }
  add_buckets(side, buckets, origin, step);
  if (program.lowered) add_flows(side, program, events, origin);
  add_counters(side, program, events, origin);
  steps_.push_back(fmt::format(R"({{"side":"{}","step":{},"program":{},"start_ns":{}}})",
                               to_text(side), step, number_of(program), origin));
}

void TraceWriter::end() {
  std::string programs;
  for (const Program& program : programs_)
    programs += (programs.empty() ? "\n" : ",\n") + json_text(to_text(program));
  std::string steps;
  for (const std::string& step : steps_) steps += (steps.empty() ? "\n" : ",\n") + step;
  buffer_ += fmt::format(
      "\n],\"otherData\":{{\"title\":{},\"run\":{},\"steps\":[{}],\"programs\":[{}]}}}}\n",
      json_text(labels_.title), json_text(labels_.run), steps, programs);
  flush(0);
  file_.commit();
}

}  // namespace pipetrain
