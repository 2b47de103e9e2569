#include "pipeline/simulate/timeline.h"

#include <algorithm>

#include "base/error.h"
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
