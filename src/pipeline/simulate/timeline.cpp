#include "pipeline/simulate/timeline.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "pipeline/program/palette.h"

namespace pipetrain {
namespace {

/// Whether an instruction opens and closes the activations of its micro-batch.
struct Holding {
  bool opens = false;
  bool closes = false;
};

Holding holding_of(const Program& program, const Instruction& instruction) {
  if (!is_compute(instruction.kind)) return {};
  const bool keeps = program.rule != UpdateRule::kNone &&
                     !program.recompute[static_cast<std::size_t>(instruction.stage)];
  const bool forward = instruction.kind == Kind::kForward;
  return {forward || instruction.kind == Kind::kRecompute,
          (forward && !keeps) || adds_gradient(instruction.kind)};
}

}  // namespace

Timeline timeline_of(const Program& program, const Events& events) {
  PT_CHECK(events.size() == program.device.size(), kInternal,
           "events of {} devices for a schedule of {}", events.size(), program.device.size());
  Timeline timeline;
  double busy = 0;
  for (std::size_t d = 0; d < events.size(); ++d) {
    PT_CHECK(events[d].size() == program.device[d].size(), kInternal,
             "device {} has {} events for {} instructions", d, events[d].size(),
             program.device[d].size());
    double& own = timeline.busy.emplace_back(0);
    for (std::size_t i = 0; i < events[d].size(); ++i) {
      timeline.seconds = std::max(timeline.seconds, events[d][i].end);
      if (is_work(program.device[d][i].kind)) own += events[d][i].end - events[d][i].start;
    }
    busy += own;
  }
  const double available = timeline.seconds * static_cast<double>(events.size());
  if (available > 0) timeline.bubble = 1 - busy / available;
  return timeline;
}

std::optional<double> overlapped_share(const Program& program, const Events& events,
                                       std::span<const BucketEvent> buckets) {
  struct Span {
    double start = 0, end = 0, backward_end = 0;
  };
  std::map<std::pair<int, int>, std::vector<Span>> groups;  // by stage and device
  for (const BucketEvent& bucket : buckets) {
    const auto d = static_cast<std::size_t>(bucket.device);
    // Of the sums of a round, the one that waits for this bucket.
    double backward_end = bucket.end;
    for (std::size_t i = 0; d < events.size() && i < events[d].size(); ++i) {
      const Instruction& instruction = program.device[d][i];
      if (instruction.kind != Kind::kReduce || instruction.stage != bucket.stage) continue;
      backward_end = events[d][i].start;
      if (events[d][i].end >= bucket.end) break;
    }
    groups[{bucket.stage, bucket.device}].push_back({bucket.start, bucket.end, backward_end});
  }
  double all = 0, before = 0;
  for (auto& [place, spans] : groups) {
    std::ranges::sort(spans, {}, &Span::start);
    double until = spans.front().start;  // buckets may be under way together
    for (const Span& span : spans) {
      const double start = std::max(span.start, until);
      if (span.end <= start) continue;
      all += span.end - start;
      before += std::max(0.0, std::min(span.end, span.backward_end) - start);
      until = span.end;
    }
  }
  if (all <= 0) return {};
  return before / all;
}

std::string buckets_text(const Program& program, const Events& events,
                         std::span<const BucketEvent> buckets) {
  const std::optional<double> share = overlapped_share(program, events, buckets);
  if (!share) return {};
  std::int64_t bytes = 0;
  int count = 0;
  for (const BucketEvent& bucket : buckets) {
    // Every process sees those of its replicas.
    const bool is_first = std::ranges::none_of(buckets, [&](const BucketEvent& other) {
      return other.stage == bucket.stage && other.device < bucket.device;
    });
    if (!is_first) continue;
    bytes += bucket.bytes;
    ++count;
  }
  return fmt::format("{} bucket{} of gradients, {}, {:.0f} % of their time during the backward",
                     count, count == 1 ? "" : "s", bytes_text(static_cast<std::size_t>(bytes)),
                     100 * *share);
}

std::vector<LiveChange> live_changes(const Program& program, const Events& events, int device) {
  const auto d = static_cast<std::size_t>(device);
  std::vector<LiveChange> changes;
  for (std::size_t i = 0; i < program.device[d].size(); ++i) {
    const Instruction& instruction = program.device[d][i];
    const Holding holding = holding_of(program, instruction);
    if (holding.opens) changes.push_back({events[d][i].start, instruction.stage, 1});
    if (holding.closes) changes.push_back({events[d][i].end, instruction.stage, -1});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const LiveChange& a, const LiveChange& b) { return a.seconds < b.seconds; });
  return changes;
}

std::vector<int> peak_in_flight(const Program& program) {
  std::vector<int> peak(static_cast<std::size_t>(program.stages), 0);
  for (const auto& list : program.device) {
    std::vector<int> live(peak.size(), 0);
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      const Holding holding = holding_of(program, instruction);
      if (holding.opens) peak[stage] = std::max(peak[stage], ++live[stage]);
      if (holding.closes) --live[stage];
    }
  }
  return peak;
}

}  // namespace pipetrain
