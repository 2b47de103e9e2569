#include "pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "pipeline/compute_table.h"
#include "pipeline/timed_graph.h"

namespace pipetrain {
namespace {

/// The timed graph of a program, and which task each instruction became. Instructions that only
/// happen together (a rendezvous, a gradient sync) share one task.
class ProgramGraph {
 public:
  ProgramGraph(const Program& program, const Costs& costs)
      : program_(program), costs_(costs), table_(program) {
    add_tasks();
    add_lanes();
    program.lowered ? add_transfer_arcs() : add_edge_arcs();
  }

  TimedGraph& graph() { return graph_; }
  int task(std::size_t device, std::size_t index) const { return task_[device][index]; }
  /// First and last task of every lane: a chained round starts where these ended.
  const std::vector<std::pair<int, int>>& lanes() const { return lanes_; }

 private:
  double scale(int unit) const {
    return costs_.unit_scale.empty() || unit < 0
               ? 1.0
               : costs_.unit_scale[static_cast<std::size_t>(unit)];
  }
  const LinkCost& link(int edge) const {
    return costs_.edge_link.empty() ? costs_.link
                                    : costs_.edge_link[static_cast<std::size_t>(edge)];
  }
  double wire_seconds(int edge, int unit) const {
    const Edge& e = program_.edges[static_cast<std::size_t>(edge)];
    return static_cast<double>(e.bytes_per_unit) * scale(unit) / link(edge).bytes_per_second;
  }
  bool rendezvous() const { return costs_.transfers == TransferMode::kRendezvous; }

  double seconds(const Instruction& instruction) const {
    if (instruction.kind == Kind::kGradientSync) return costs_.gradient_sync_seconds;
    if (is_transfer(instruction.kind)) {
      const int edge = transfer(instruction).edge;
      const double wire = wire_seconds(edge, instruction.unit);
      if (rendezvous()) return wire + link(edge).latency_seconds;
      return instruction.kind == Kind::kSend ? wire : 0;
    }
    const StageSeconds& stage = costs_.stage[static_cast<std::size_t>(instruction.stage)];
    switch (instruction.kind) {
      case Kind::kForward:
        return stage.forward * scale(instruction.unit);
      case Kind::kBackward:
        return stage.backward * scale(instruction.unit);
      case Kind::kBackwardInput:
        return stage.backward_input * scale(instruction.unit);
      case Kind::kBackwardWeight:
        return stage.backward_weight * scale(instruction.unit);
      case Kind::kRecompute:
        return stage.recompute * scale(instruction.unit);
      default:
        return stage.update;
    }
  }
  const Transfer& transfer(const Instruction& instruction) const {
    return program_.transfers[static_cast<std::size_t>(instruction.transfer)];
  }

  void add_tasks() {
    int sync = -1;
    send_.assign(program_.transfers.size(), -1);
    receive_.assign(program_.transfers.size(), -1);
    for (const auto& list : program_.device) {
      std::vector<int>& tasks = task_.emplace_back();
      for (const Instruction& instruction : list) {
        int* shared = nullptr;
        if (instruction.kind == Kind::kGradientSync) shared = &sync;
        if (is_transfer(instruction.kind)) {
          const auto t = static_cast<std::size_t>(instruction.transfer);
          shared = instruction.kind == Kind::kSend || rendezvous() ? &send_[t] : &receive_[t];
        }
        if (shared != nullptr && *shared >= 0) {
          tasks.push_back(*shared);
          continue;
        }
        tasks.push_back(graph_.add_task(seconds(instruction)));
        if (shared != nullptr) *shared = tasks.back();
      }
    }
  }

  /// In-order lanes: compute, and one each for the sending and the receiving end of every channel.
  void add_lanes() {
    using Lane = std::tuple<int, int, int>;  // -1 compute, 0 send, 1 receive; peer; gradient
    for (std::size_t d = 0; d < task_.size(); ++d) {
      std::map<Lane, std::pair<int, int>> ends;
      for (std::size_t i = 0; i < task_[d].size(); ++i) {
        const Instruction& instruction = program_.device[d][i];
        Lane lane = {-1, 0, 0};
        if (is_transfer(instruction.kind) && !rendezvous()) {
          const Transfer& moved = transfer(instruction);
          const bool send = instruction.kind == Kind::kSend;
          lane = {send ? 0 : 1, send ? moved.to_device : moved.from_device, moved.gradient};
        }
        const auto [entry, first] = ends.try_emplace(lane, task_[d][i], task_[d][i]);
        if (!first) graph_.add_arc(entry->second.second, task_[d][i]);
        entry->second.second = task_[d][i];
      }
      for (const auto& [lane, tasks] : ends) lanes_.push_back(tasks);
    }
  }

  int task_at(const Place& place) const {
    return task_[static_cast<std::size_t>(place.device)][static_cast<std::size_t>(place.index)];
  }

  void add_transfer_arcs() {
    for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
      const Transfer& moved = program_.transfers[t];
      const Edge& edge = program_.edges[static_cast<std::size_t>(moved.edge)];
      const Place producer = table_.producer(edge, moved.unit);
      const Place consumer = table_.consumer(edge, moved.unit);
      const int received = rendezvous() ? send_[t] : receive_[t];
      PT_CHECK(producer.exists() && consumer.exists() && send_[t] >= 0 && received >= 0, kInternal,
               "the schedule to simulate lacks an end of transfer {}", t);
      graph_.add_arc(task_at(producer), send_[t]);
      if (!rendezvous()) graph_.add_arc(send_[t], received, link(moved.edge).latency_seconds);
      graph_.add_arc(received, task_at(consumer));
    }
  }

  void add_edge_arcs() {
    for (std::size_t e = 0; e < program_.edges.size(); ++e) {
      const int edge = static_cast<int>(e);
      for (int unit = 0; unit < program_.units; ++unit) {
        const Place producer = table_.producer(program_.edges[e], unit);
        const Place consumer = table_.consumer(program_.edges[e], unit);
        if (!producer.exists() || !consumer.exists()) continue;
        const double delay = producer.device == consumer.device
                                 ? 0
                                 : wire_seconds(edge, unit) + link(edge).latency_seconds;
        graph_.add_arc(task_at(producer), task_at(consumer), delay);
      }
    }
  }

  const Program& program_;
  const Costs& costs_;
  ComputeTable table_;
  TimedGraph graph_;
  std::vector<std::vector<int>> task_;
  std::vector<int> send_, receive_;  // [transfers]
  std::vector<std::pair<int, int>> lanes_;
};

void check_costs(const Program& program, const Costs& costs) {
  PT_CHECK(costs.stage.size() == static_cast<std::size_t>(program.stages), kInternal,
           "costs are given for {} stages, but the schedule has {}", costs.stage.size(),
           program.stages);
  PT_CHECK(costs.unit_scale.empty() ||
               costs.unit_scale.size() == static_cast<std::size_t>(program.units),
           kInternal, "sizes are given for {} units, but the schedule has {}",
           costs.unit_scale.size(), program.units);
  PT_CHECK(costs.edge_link.empty() || costs.edge_link.size() == program.edges.size(), kInternal,
           "link costs are given for {} edges, but the schedule has {}", costs.edge_link.size(),
           program.edges.size());
}

double latest_end(const TimedGraph& graph) {
  double end = 0;
  for (int task = 0; task < graph.size(); ++task) end = std::max(end, graph.end(task));
  return end;
}

std::vector<std::vector<Event>> events_of(const Program& program, ProgramGraph& tasks) {
  TimedGraph& graph = tasks.graph();
  PT_CHECK(graph.relax(), kInternal,
           "the schedule '{}' can never finish: {} of {} steps wait for each other",
           printable(program.schedule), graph.unfinished().size(), graph.size());
  std::vector<std::vector<Event>> events;
  std::vector<double> sent(program.transfers.size(), 0);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    auto& list = events.emplace_back();
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const int task = tasks.task(d, i);
      list.push_back(
          {static_cast<int>(d), static_cast<int>(i), graph.start(task), graph.end(task)});
      const Instruction& instruction = program.device[d][i];
      if (instruction.kind == Kind::kSend) {
        sent[static_cast<std::size_t>(instruction.transfer)] = graph.start(task);
      }
    }
  }
  // A receive is shown from when its data leaves to when it is there.
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const Instruction& instruction = program.device[d][i];
      if (instruction.kind != Kind::kReceive) continue;
      Event& event = events[d][i];
      event.start = std::min(event.start, sent[static_cast<std::size_t>(instruction.transfer)]);
    }
  }
  return events;
}

std::vector<double> busy_seconds(const Program& program, const ProgramGraph& tasks,
                                 const TimedGraph& graph) {
  std::vector<double> busy(program.device.size(), 0);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      if (!is_transfer(program.device[d][i].kind)) busy[d] += graph.seconds(tasks.task(d, i));
    }
  }
  return busy;
}

/// Chains rounds, each lane going on where it stopped, until the distance between rounds is
/// settled.
double chained_period(ProgramGraph& tasks, double first_end) {
  constexpr int kRounds = 24;
  TimedGraph& graph = tasks.graph();
  std::vector<double> ends = {first_end};
  for (int round = 1; round < kRounds; ++round) {
    std::vector<double> lane_end;
    for (const auto& [first, last] : tasks.lanes()) lane_end.push_back(graph.end(last));
    for (std::size_t lane = 0; lane < lane_end.size(); ++lane) {
      graph.set_ready(tasks.lanes()[lane].first, 0);
    }
    for (std::size_t lane = 0; lane < lane_end.size(); ++lane) {
      // Lanes may share their first task (a rendezvous): the later one decides.
      const int first = tasks.lanes()[lane].first;
      graph.set_ready(first, std::max(graph.ready(first), lane_end[lane]));
    }
    graph.relax();
    ends.push_back(latest_end(graph));
  }
  const std::size_t middle = ends.size() / 2;
  return (ends.back() - ends[middle]) / static_cast<double>(ends.size() - 1 - middle);
}

/// Largest number of units that hold activations at once, in list order.
std::vector<int> peak_live(const Program& program) {
  std::vector<int> live(static_cast<std::size_t>(program.stages), 0);
  std::vector<int> peak = live;
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      const bool keeps =
          program.rule != UpdateRule::kNone && !static_cast<bool>(program.recompute[stage]);
      const bool opens = instruction.kind == Kind::kForward || instruction.kind == Kind::kRecompute;
      if (opens) peak[stage] = std::max(peak[stage], ++live[stage]);
      if (instruction.kind == Kind::kForward && !keeps) --live[stage];
      if (adds_gradient(instruction.kind)) --live[stage];
    }
  }
  return peak;
}

/// Distance of forward starts on the first stage in the later half of the round.
double unit_period(const Program& program, const Simulation& result) {
  if (program.units < 4) return 0;
  std::vector<double> starts(static_cast<std::size_t>(program.units), 0);
  const auto device = static_cast<std::size_t>(program.placement[0][0]);
  for (std::size_t i = 0; i < program.device[device].size(); ++i) {
    const Instruction& instruction = program.device[device][i];
    if (instruction.kind == Kind::kForward && instruction.stage == 0) {
      starts[static_cast<std::size_t>(instruction.unit)] = result.events[device][i].start;
    }
  }
  const std::size_t middle = starts.size() / 2;
  return (starts.back() - starts[middle]) / static_cast<double>(starts.size() - 1 - middle);
}

}  // namespace

Costs uniform_costs(const Program& program, const StageSeconds& seconds, const LinkCost& link) {
  Costs costs;
  costs.stage.assign(static_cast<std::size_t>(program.stages), seconds);
  costs.link = link;
  return costs;
}

std::vector<std::vector<Event>> time_round(const Program& program, const Costs& costs) {
  check_costs(program, costs);
  ProgramGraph tasks(program, costs);
  return events_of(program, tasks);
}

Simulation simulate(const Program& program, const Costs& costs) {
  check_costs(program, costs);
  ProgramGraph tasks(program, costs);
  Simulation result;
  result.events = events_of(program, tasks);
  result.makespan = latest_end(tasks.graph());
  result.busy = busy_seconds(program, tasks, tasks.graph());
  double idle = 0;
  for (const double busy : result.busy) {
    result.idle.push_back(result.makespan - busy);
    idle += result.idle.back();
  }
  const double available = result.makespan * static_cast<double>(program.devices);
  result.bubble = available > 0 ? idle / available : 0;
  result.peak_live = peak_live(program);
  result.unit_period = unit_period(program, result);
  result.period = chained_period(tasks, result.makespan);
  return result;
}

}  // namespace pipetrain
