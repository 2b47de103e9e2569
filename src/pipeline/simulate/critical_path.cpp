#include "pipeline/simulate/critical_path.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/index.h"
#include "base/units.h"
#include "pipeline/program/compute_table.h"

namespace pipetrain {
namespace {

/// Walks from the last event back to time 0. Tasks are instructions: a send is the time on the
/// wire, a buffered receive the moment of arrival; a rendezvous is its send.
class Backtrack {
 public:
  Backtrack(const Program& program, const Costs& costs,
            const std::vector<std::vector<Event>>& events)
      : program_(program),
        costs_(costs),
        events_(events),
        rendezvous_(costs.transfers == TransferMode::kRendezvous),
        table_(program),
        inputs_(2 * at(program.stages)),
        send_(program.transfers.size()),
        receive_(program.transfers.size()),
        transfer_of_(program.edges.size() * at(program.micro_batches), -1) {
    for (std::size_t e = 0; e < program.edges.size(); ++e) {
      const Edge& edge = program.edges[e];
      inputs_[2 * at(edge.to_stage) + (edge.gradient ? 1 : 0)].push_back(static_cast<int>(e));
    }
    for (std::size_t t = 0; t < program.transfers.size(); ++t) {
      const Transfer& transfer = program.transfers[t];
      transfer_of_[micro_batch_key(transfer.edge, transfer.micro_batch)] = static_cast<int>(t);
    }
    for (std::size_t d = 0; d < program.device.size(); ++d) {
      for (std::size_t i = 0; i < program.device[d].size(); ++i) {
        const Instruction& now = program.device[d][i];
        const Place place{static_cast<int>(d), static_cast<int>(i)};
        if (now.kind == Kind::kSend) send_[at(now.transfer)] = place;
        if (now.kind == Kind::kReceive) receive_[at(now.transfer)] = place;
        if (now.kind == Kind::kReduce) reduces_[{now.stage, now.micro_batch}].push_back(place);
        if (now.kind == Kind::kGradientSync) syncs_.push_back(place);
      }
    }
  }

  /// The steps from the end of a task back to 0, last first.
  std::vector<CriticalStep> steps(Place place) {
    std::vector<CriticalStep> steps;
    while (place.exists()) {
      const auto [start, end] = span(place);
      if (end > start) steps.push_back(step(place, start, end));
      collect(place);
      place = go_back(start, place, steps);
    }
    return steps;
  }

 private:
  /// What a task waited for. Data moves on the edge between the end of `place` and `ready`.
  struct Candidate {
    Place place;
    double ready = 0;
    int edge = -1;
  };

  std::size_t micro_batch_key(int edge, int micro_batch) const {
    return at(edge) * at(program_.micro_batches) + at(micro_batch);
  }
  const Instruction& instruction(const Place& place) const {
    return program_.device[at(place.device)][at(place.index)];
  }
  std::pair<double, double> span(const Place& place) const {
    const Event& event = events_[at(place.device)][at(place.index)];
    const bool arrival = !rendezvous_ && instruction(place).kind == Kind::kReceive;
    return {arrival ? event.end : event.start, event.end};
  }
  const Transfer& transfer(const Instruction& moved) const {
    return program_.transfers[at(moved.transfer)];
  }
  const LinkCost& link(int edge) const {
    return costs_.edge_link.empty() ? costs_.link : costs_.edge_link[at(edge)];
  }

  CriticalStep step(const Place& place, double start, double end) const {
    const Instruction& now = instruction(place);
    CriticalStep step{place.device, place.index, start, end};
    if (is_transfer(now.kind)) {
      step.cause = Cause::kLink;
      step.edge = transfer(now).edge;
      return step;
    }
    step.stage = now.stage;
    step.cause = now.kind == Kind::kReduce         ? Cause::kReduce
                 : now.kind == Kind::kGradientSync ? Cause::kSync
                 : now.kind == Kind::kUpdate       ? Cause::kUpdate
                                                   : Cause::kCompute;
    return step;
  }

  void offer(const Place& place, double delay = 0, int edge = -1) {
    if (place.exists()) candidates_.push_back({place, span(place).second + delay, edge});
  }

  void collect(const Place& place) {
    candidates_.clear();
    const Instruction& now = instruction(place);
    switch (now.kind) {
      case Kind::kReduce:
        for (const Place& other : reduces_.at({now.stage, now.micro_batch})) offer(before(other));
        return;
      case Kind::kGradientSync:
        for (const Place& other : syncs_) offer(before(other));
        return;
      case Kind::kSend:
      case Kind::kReceive:
        return collect_transfer(place, now);
      default:
        offer(before(place));
        collect_inputs(place, now);
    }
  }

  void collect_transfer(const Place& place, const Instruction& now) {
    const Transfer& moved = transfer(now);
    const Place send = send_[at(now.transfer)], receive = receive_[at(now.transfer)];
    if (rendezvous_) {
      offer(before(send));
      offer(before(receive));
      return;
    }
    if (now.kind == Kind::kReceive) offer(send, link(moved.edge).latency_seconds, moved.edge);
    if (now.kind == Kind::kSend) {
      offer(table_.producer(program_.edges[at(moved.edge)], moved.micro_batch));
    }
    offer(before_on_channel(place));
  }

  void collect_inputs(const Place& place, const Instruction& now) {
    const bool backward = now.kind == Kind::kBackward || now.kind == Kind::kBackwardInput;
    if (!backward && now.kind != Kind::kForward) return;
    for (const int e : inputs_[2 * at(now.stage) + (backward ? 1 : 0)]) {
      const int moved = transfer_of_[micro_batch_key(e, now.micro_batch)];
      if (moved >= 0) {
        if (!rendezvous_) offer(receive_[at(moved)]);  // else it stands before this in the lane
        continue;
      }
      const Edge& edge = program_.edges[at(e)];
      const Place producer = table_.producer(edge, now.micro_batch);
      if (!producer.exists() || producer.device == place.device) continue;
      const double scale =
          costs_.micro_batch_scale.empty() ? 1 : costs_.micro_batch_scale[at(now.micro_batch)];
      const double wire =
          static_cast<double>(edge.bytes_per_micro_batch) * scale / link(e).bytes_per_second;
      offer(producer, wire + link(e).latency_seconds, e);
    }
  }

  /// The task before one in its lane: compute, or everything where there is one lane.
  Place before(Place place) const {
    for (--place.index; place.exists(); --place.index) {
      if (rendezvous_ || !is_transfer(instruction(place).kind)) break;
    }
    return place;
  }

  Place before_on_channel(Place place) const {
    const Instruction& now = instruction(place);
    const Transfer& moved = transfer(now);
    for (--place.index; place.exists(); --place.index) {
      const Instruction& other = instruction(place);
      if (other.kind != now.kind) continue;
      const Transfer& earlier = transfer(other);
      if (earlier.from_device == moved.from_device && earlier.to_device == moved.to_device &&
          earlier.gradient == moved.gradient) {
        break;
      }
    }
    return place;
  }

  /// Moves to the candidate that was ready last (ties: the first).
  Place go_back(double start, const Place& from, std::vector<CriticalStep>& steps) const {
    const Candidate* latest = nullptr;
    for (const Candidate& candidate : candidates_) {
      if (latest == nullptr || candidate.ready > latest->ready) latest = &candidate;
    }
    const double ready = latest == nullptr ? 0 : std::min(latest->ready, start);
    constexpr double kRounding = 1e-9;
    if (start - ready > kRounding * start) {
      steps.push_back({from.device, from.index, ready, start,
                       !costs_.cores.core.empty() ? Cause::kCore : Cause::kWait});
    }
    if (latest == nullptr) return {};
    const double end = span(latest->place).second;
    if (ready > end) {
      steps.push_back({latest->place.device, latest->place.index, end, ready, Cause::kLink,
                       Phase::kSteady, -1, latest->edge});
    }
    return end > 0 ? latest->place : Place{};
  }

  const Program& program_;
  const Costs& costs_;
  const std::vector<std::vector<Event>>& events_;
  const bool rendezvous_;
  const ComputeTable table_;
  std::vector<std::vector<int>> inputs_;  // edges that (stage, gradient) reads
  std::vector<Place> send_, receive_;     // [transfers]
  std::vector<int> transfer_of_;          // (edge, micro-batch); -1: handed over inside a device
  std::map<std::pair<int, int>, std::vector<Place>> reduces_;  // (stage, micro-batch)
  std::vector<Place> syncs_;
  std::vector<Candidate> candidates_;
};

/// The device that computes longest, and from when to when.
struct Bottleneck {
  int device = 0;
  double first = 0, last = 0;
};

Bottleneck find_bottleneck(const Program& program, const std::vector<std::vector<Event>>& events) {
  Bottleneck bottleneck;
  double most = -1;
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    double busy = 0, first = 0, last = 0;
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      if (!is_compute(program.device[d][i].kind)) continue;
      const Event& event = events[d][i];
      if (busy == 0) first = event.start;
      busy += event.end - event.start;
      last = event.end;
    }
    // Sums of equal times differ in the last bits; ties: the first.
    if (busy <= most * (1 + 1e-9)) continue;
    most = busy;
    bottleneck = {static_cast<int>(d), first, last};
  }
  return bottleneck;
}

Place latest_task(const std::vector<std::vector<Event>>& events) {
  Place latest;
  double end = 0;
  for (const auto& list : events) {
    for (const Event& event : list) {
      if (event.end <= end && latest.exists()) continue;
      end = event.end;
      latest = {event.device, event.index};
    }
  }
  return latest;
}

const char* to_text(Cause cause) {
  switch (cause) {
    case Cause::kCompute:
      return "compute of other stages";
    case Cause::kLink:
      return "links";
    case Cause::kReduce:
      return "sums over replicas";
    case Cause::kSync:
      return "gradient sync";
    case Cause::kUpdate:
      return "updates";
    case Cause::kCore:
      return "waking threads, waiting for a core";
    case Cause::kWait:
      return "unexplained idle time";
  }
  return "?";
}

const char* to_text(Phase phase) {
  switch (phase) {
    case Phase::kWarmUp:
      return " while the pipeline fills";
    case Phase::kDrain:
      return " while the pipeline drains";
    case Phase::kSteady:
      return "";
  }
  return "?";
}

}  // namespace

CriticalPath critical_path(const Program& program, const Costs& costs,
                           const std::vector<std::vector<Event>>& events) {
  bool fits = events.size() == program.device.size();
  for (std::size_t d = 0; fits && d < events.size(); ++d) {
    fits = events[d].size() == program.device[d].size();
  }
  PT_CHECK(fits, kInternal, "the events are not those of the schedule '{}'",
           printable(program.schedule));
  CriticalPath path;
  path.steps = Backtrack(program, costs, events).steps(latest_task(events));
  std::reverse(path.steps.begin(), path.steps.end());
  if (path.steps.empty()) return path;
  path.makespan = path.steps.back().end;
  const Bottleneck bottleneck = find_bottleneck(program, events);
  path.bottleneck = bottleneck.device;
  std::map<std::tuple<Cause, Phase, int, int>, double> seconds;
  for (CriticalStep& step : path.steps) {
    const double middle = (step.start + step.end) / 2;
    step.phase = middle < bottleneck.first  ? Phase::kWarmUp
                 : middle > bottleneck.last ? Phase::kDrain
                                            : Phase::kSteady;
    // The end of the round is not time spent draining.
    const bool ends_round =
        step.cause == Cause::kReduce || step.cause == Cause::kSync || step.cause == Cause::kUpdate;
    if (ends_round || step.cause == Cause::kCore) step.phase = Phase::kSteady;
    seconds[{step.cause, step.phase, step.stage, step.edge}] += step.end - step.start;
  }
  for (const auto& [key, sum] : seconds) {
    path.blame.push_back(
        {std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), sum});
  }
  std::stable_sort(path.blame.begin(), path.blame.end(),
                   [](const Blame& a, const Blame& b) { return a.seconds > b.seconds; });
  return path;
}

std::string to_text(const Program& program, const Blame& blame) {
  switch (blame.cause) {
    case Cause::kCompute:
      return fmt::format("compute of stage {}{}", blame.stage, to_text(blame.phase));
    case Cause::kLink: {
      const Edge& edge = program.edges.at(static_cast<std::size_t>(blame.edge));
      return fmt::format("link from stage {} to stage {}{}", edge.from_stage, edge.to_stage,
                         to_text(blame.phase));
    }
    case Cause::kReduce:
      return fmt::format("sum over the replicas of stage {}", blame.stage);
    case Cause::kSync:
      return "gradient sync";
    case Cause::kUpdate:
      return fmt::format("update of stage {}", blame.stage);
    case Cause::kCore:
    case Cause::kWait:
      return to_text(blame.cause);
  }
  return "?";
}

std::string to_text(const Program& program, const CriticalPath& path, std::size_t most) {
  std::string text;
  const auto line = [&](double seconds, const std::string& what) {
    text += fmt::format("{:5.1f} %  {:>9}  {}\n", 100 * seconds / path.makespan,
                        seconds_text(seconds), what);
  };
  struct Rest {
    double seconds = 0;
    int causes = 0;
  };
  std::map<std::pair<Cause, Phase>, Rest> rests;
  for (std::size_t n = 0; n < path.blame.size(); ++n) {
    const Blame& blame = path.blame[n];
    if (n < most) {
      line(blame.seconds, to_text(program, blame));
      continue;
    }
    Rest& rest = rests[{blame.cause, blame.phase}];
    rest.seconds += blame.seconds;
    ++rest.causes;
  }
  for (const auto& [kind, rest] : rests) {
    line(rest.seconds,
         fmt::format("{}{} ({})", to_text(kind.first), to_text(kind.second), rest.causes));
  }
  return text;
}

}  // namespace pipetrain
