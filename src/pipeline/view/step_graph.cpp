#include "pipeline/view/step_graph.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "pipeline/program/compute_table.h"
#include "pipeline/program/palette.h"

namespace pipetrain {
namespace {

/// Resolution of the clock: a shorter receive did not wait.
constexpr double kNothing = 2e-6;

bool is_collective(Kind kind) { return kind == Kind::kGradientSync || kind == Kind::kReduce; }

DifferenceCause between(CauseKind kind, int device) {
  DifferenceCause cause;
  cause.kind = kind;
  cause.device = device;
  return cause;
}

DifferenceCause of_instruction(const Instruction& instruction) {
  DifferenceCause cause;
  cause.kind = is_collective(instruction.kind) ? CauseKind::kCollective : CauseKind::kInstruction;
  cause.instruction = instruction.kind;
  cause.stage = instruction.stage;
  return cause;
}

DifferenceCause of_edge(const Edge& edge) {
  DifferenceCause cause;
  cause.kind = CauseKind::kReceive;
  cause.stage = edge.to_stage;
  cause.from_stage = edge.from_stage;
  return cause;
}

}  // namespace

StepGraph::StepGraph(const Program& program) : program_(program) {
  add_devices();
  add_edges();
  order_nodes();
}

int StepGraph::cause(const DifferenceCause& wanted) {
  causes_.push_back(wanted);
  return static_cast<int>(causes_.size()) - 1;
}

int StepGraph::add_node(int cause) {
  nodes_.push_back({cause, {}});
  return static_cast<int>(nodes_.size()) - 1;
}

void StepGraph::add_arc(const Arc& arc) {
  nodes_[static_cast<std::size_t>(arc.to)].arcs.push_back(static_cast<int>(arcs_.size()));
  arcs_.push_back(arc);
}

void StepGraph::add_devices() {
  std::map<std::pair<Kind, int>, int> known;           // kind, stage: cause
  std::map<std::tuple<Kind, int, int>, int> meetings;  // kind, stage, micro-batch: node
  for (std::size_t d = 0; d < program_.device.size(); ++d) {
    const int start_up = cause(between(CauseKind::kStartUp, static_cast<int>(d)));
    const int gaps = cause(between(CauseKind::kBetween, static_cast<int>(d)));
    std::vector<Nodes>& placed = placed_.emplace_back();
    int last = -1;
    for (const Instruction& instruction : program_.device[d]) {
      Nodes& nodes = placed.emplace_back();
      if (is_transfer(instruction.kind)) continue;
      const auto [entry, fresh] = known.try_emplace({instruction.kind, instruction.stage}, 0);
      if (fresh) entry->second = cause(of_instruction(instruction));
      const bool collective = is_collective(instruction.kind);
      nodes.begin = nodes.end = add_node(collective ? -1 : entry->second);
      add_arc({last, nodes.begin, last < 0 ? start_up : gaps});
      if (collective) {
        const auto [meeting, first] = meetings.try_emplace(
            {instruction.kind, instruction.stage, instruction.micro_batch}, -1);
        if (first) meeting->second = add_node(-1);
        nodes.meeting = meeting->second;
        nodes.end = add_node(entry->second);
        add_arc({nodes.begin, nodes.meeting, entry->second});
        add_arc({nodes.meeting, nodes.end, entry->second});
      }
      last = nodes.end;
    }
  }
}

void StepGraph::add_edges() {
  const ComputeTable table(program_);
  std::map<std::pair<int, int>, Place> receives;  // edge, micro-batch
  for (std::size_t d = 0; d < program_.device.size(); ++d) {
    for (std::size_t i = 0; i < program_.device[d].size(); ++i) {
      const Instruction& instruction = program_.device[d][i];
      if (instruction.kind != Kind::kReceive) continue;
      const Transfer& moved = program_.transfers[static_cast<std::size_t>(instruction.transfer)];
      receives[{moved.edge, moved.micro_batch}] = {static_cast<int>(d), static_cast<int>(i)};
    }
  }
  for (std::size_t e = 0; e < program_.edges.size(); ++e) {
    const Edge& edge = program_.edges[e];
    const int late = cause(of_edge(edge));
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      const Place producer = table.producer(edge, micro_batch);
      const Place consumer = table.consumer(edge, micro_batch);
      if (!producer.exists() || !consumer.exists() || producer.device == consumer.device) continue;
      const auto node_at = [&](const Place& place) {
        return placed_[static_cast<std::size_t>(place.device)]
                      [static_cast<std::size_t>(place.index)];
      };
      Arc arc{node_at(producer).end, node_at(consumer).begin, late};
      const auto received = receives.find({static_cast<int>(e), micro_batch});
      if (received != receives.end()) {
        arc.receive_device = received->second.device;
        arc.receive_index = received->second.index;
      }
      add_arc(arc);
    }
  }
}

void StepGraph::order_nodes() {
  std::vector<std::vector<int>> leaving(nodes_.size());
  std::vector<std::size_t> waiting(nodes_.size(), 0);
  for (const Arc& arc : arcs_) {
    if (arc.from < 0) continue;
    leaving[static_cast<std::size_t>(arc.from)].push_back(arc.to);
    ++waiting[static_cast<std::size_t>(arc.to)];
  }
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (waiting[n] == 0) order_.push_back(static_cast<int>(n));
  }
  for (std::size_t next = 0; next < order_.size(); ++next) {
    for (const int to : leaving[static_cast<std::size_t>(order_[next])]) {
      if (--waiting[static_cast<std::size_t>(to)] == 0) order_.push_back(to);
    }
  }
  PT_CHECK(order_.size() == nodes_.size(), kInternal,
           "the schedule '{}' can never finish: its instructions wait for each other",
           printable(program_.schedule));
}

StepGraph::Times StepGraph::times_of(const Events& events) const {
  timeline_of(program_, events);  // checks that they belong together
  Times times{std::vector<double>(nodes_.size(), 0), std::vector<double>(nodes_.size(), 0)};
  for (std::size_t d = 0; d < placed_.size(); ++d) {
    for (std::size_t i = 0; i < placed_[d].size(); ++i) {
      const Nodes& nodes = placed_[d][i];
      if (nodes.begin < 0) continue;
      times.start[static_cast<std::size_t>(nodes.begin)] = events[d][i].start;
      times.end[static_cast<std::size_t>(nodes.end)] = events[d][i].end;
    }
  }
  time_meetings(events, times);
  return times;
}

/// A collective starts when the last device arrives. The simulator lets all arrive at that moment,
/// the runtime records each arrival. So equal starts mean that arrivals are unknown, and each
/// device is assumed to arrive right after its previous instruction.
void StepGraph::time_meetings(const Events& events, Times& times) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> first(nodes_.size(), kNever), last(nodes_.size(), -kNever);
  for (std::size_t d = 0; d < placed_.size(); ++d) {
    for (std::size_t i = 0; i < placed_[d].size(); ++i) {
      if (placed_[d][i].meeting < 0) continue;
      const auto meeting = static_cast<std::size_t>(placed_[d][i].meeting);
      first[meeting] = std::min(first[meeting], events[d][i].start);
      last[meeting] = std::max(last[meeting], events[d][i].start);
    }
  }
  for (std::size_t d = 0; d < placed_.size(); ++d) {
    double before = 0;
    for (std::size_t i = 0; i < placed_[d].size(); ++i) {
      const Nodes& nodes = placed_[d][i];
      if (nodes.begin < 0) continue;
      if (nodes.meeting >= 0) {
        const auto begin = static_cast<std::size_t>(nodes.begin);
        const auto meeting = static_cast<std::size_t>(nodes.meeting);
        if (first[meeting] == last[meeting]) times.start[begin] = std::min(before, last[meeting]);
        times.end[begin] = times.start[begin];
        times.start[meeting] = times.end[meeting] = last[meeting];
        times.start[static_cast<std::size_t>(nodes.end)] = last[meeting];
      }
      before = events[d][i].end;
    }
  }
}

StepGraph::Delays StepGraph::fit(const Events& events, const Delays* expected) const {
  const Times times = times_of(events);
  Delays delays(nodes_.size() + arcs_.size(), 0);
  const auto end_before = [&](const Arc& arc) {
    return arc.from < 0 ? 0.0 : times.end[static_cast<std::size_t>(arc.from)];
  };
  const auto expected_of = [&](std::size_t a) {
    const Arc& arc = arcs_[a];
    if (arc.receive_device < 0) return 0.0;
    const Event& received = events[static_cast<std::size_t>(arc.receive_device)]
                                  [static_cast<std::size_t>(arc.receive_index)];
    if (expected && received.end - received.start <= kNothing)
      return (*expected)[nodes_.size() + a];
    return std::max(0.0, received.end - end_before(arc));
  };
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    delays[n] = times.end[n] - times.start[n];
    int binding = -1;
    double latest = 0;
    for (const int a : nodes_[n].arcs) {
      const double ready =
          end_before(arcs_[static_cast<std::size_t>(a)]) + expected_of(static_cast<std::size_t>(a));
      if (binding < 0 || ready > latest) {
        binding = a;
        latest = ready;
      }
    }
    for (const int a : nodes_[n].arcs) {
      const auto arc = static_cast<std::size_t>(a);
      const double most = times.start[n] - end_before(arcs_[arc]);
      delays[nodes_.size() + arc] = a == binding ? most : std::min(most, expected_of(arc));
    }
  }
  return delays;
}

StepGraph::Path StepGraph::longest_path(const Delays& from, const Delays& to,
                                        double position) const {
  const auto delay = [&](std::size_t k) { return from[k] + position * (to[k] - from[k]); };
  std::vector<double> end(nodes_.size(), 0);
  std::vector<int> through(nodes_.size(), -1);  // the arc that decides the start
  int last = -1;
  for (const int node : order_) {
    const auto n = static_cast<std::size_t>(node);
    double start = 0;
    for (const int a : nodes_[n].arcs) {
      const Arc& arc = arcs_[static_cast<std::size_t>(a)];
      const double ready = (arc.from < 0 ? 0.0 : end[static_cast<std::size_t>(arc.from)]) +
                           delay(nodes_.size() + static_cast<std::size_t>(a));
      if (through[n] < 0 || ready > start) {
        through[n] = a;
        start = ready;
      }
    }
    end[n] = start + delay(n);
    if (last < 0 || end[n] > end[static_cast<std::size_t>(last)]) last = node;
  }
  Path path;
  path.per_cause.assign(causes_.size(), 0);
  if (last < 0) return path;
  path.seconds = end[static_cast<std::size_t>(last)];
  const auto count = [&](int cause, std::size_t k) {
    if (cause >= 0) path.per_cause[static_cast<std::size_t>(cause)] += to[k] - from[k];
    path.slope += to[k] - from[k];
  };
  for (int node = last; node >= 0;) {
    const auto n = static_cast<std::size_t>(node);
    count(nodes_[n].cause, n);
    const auto a = static_cast<std::size_t>(through[n]);
    count(arcs_[a].cause, nodes_.size() + a);
    node = arcs_[a].from;
  }
  return path;
}

std::vector<double> StepGraph::mean_durations(const Delays& delays) const {
  std::vector<double> sum(causes_.size(), 0);
  std::vector<int> count(causes_.size(), 0);
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].cause < 0) continue;
    sum[static_cast<std::size_t>(nodes_[n].cause)] += delays[n];
    ++count[static_cast<std::size_t>(nodes_[n].cause)];
  }
  for (std::size_t c = 0; c < sum.size(); ++c) sum[c] /= std::max(count[c], 1);
  return sum;
}

}  // namespace pipetrain
