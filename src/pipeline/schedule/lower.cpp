#include "pipeline/schedule/lower.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "pipeline/program/annotate.h"
#include "pipeline/program/compute_table.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {
namespace {

void check_edges(const Program& program, const std::vector<Edge>& edges) {
  std::set<std::tuple<int, int, bool>> seen;
  for (const Edge& edge : edges) {
    const auto in_range = [&](int stage) { return stage >= 0 && stage < program.stages; };
    PT_CHECK(in_range(edge.from_stage) && in_range(edge.to_stage), kInternal,
             "an edge from stage {} to stage {} does not fit {} stages", edge.from_stage,
             edge.to_stage, program.stages);
    PT_CHECK(edge.gradient ? edge.from_stage > edge.to_stage : edge.from_stage < edge.to_stage,
             kInternal, "an edge with {} cannot go from stage {} to stage {}",
             edge.gradient ? "gradients" : "activations", edge.from_stage, edge.to_stage);
    PT_CHECK(edge.bytes_per_micro_batch >= 0, kInternal,
             "the edge from stage {} to stage {} has {} bytes", edge.from_stage, edge.to_stage,
             edge.bytes_per_micro_batch);
    PT_CHECK(seen.emplace(edge.from_stage, edge.to_stage, edge.gradient).second, kInternal,
             "the edge from stage {} to stage {} is given twice", edge.from_stage, edge.to_stage);
  }
}

/// Costs under which every instruction takes time, so that what follows it has a later key.
Costs unit_costs(const Program& program) {
  StageSeconds seconds;
  seconds.update = 1;
  seconds.reduce = 1;
  Costs costs = uniform_costs(program, seconds);
  costs.gradient_sync_seconds = 1;
  return costs;
}

struct KeyedTransfer {
  double made;  // when its producer ends
  int index;    // into Program::transfers
};

using Events = std::vector<std::vector<Event>>;

/// Fills Program::transfers and returns them in the global order.
std::vector<KeyedTransfer> add_transfers(Program& program, const Events& micro_batch_run) {
  const ComputeTable table(program);
  std::vector<KeyedTransfer> keyed;
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    const Edge& edge = program.edges[e];
    for (int micro_batch = 0; micro_batch < program.micro_batches; ++micro_batch) {
      const int from = program.device_of(edge.from_stage, micro_batch);
      const int to = program.device_of(edge.to_stage, micro_batch);
      if (from == to) continue;  // handed over inside the device
      const Place place = table.producer(edge, micro_batch);
      PT_CHECK(place.exists(), kInternal, "stage {} never produces micro-batch {} for stage {}",
               edge.from_stage, micro_batch, edge.to_stage);
      const Event& event = micro_batch_run[static_cast<std::size_t>(place.device)]
                                          [static_cast<std::size_t>(place.index)];
      keyed.push_back({event.end, static_cast<int>(program.transfers.size())});
      program.transfers.push_back({static_cast<int>(e), edge.from_stage, edge.to_stage, from, to,
                                   micro_batch, edge.gradient});
    }
  }
  std::sort(keyed.begin(), keyed.end(), [](const KeyedTransfer& a, const KeyedTransfer& b) {
    return std::tie(a.made, a.index) < std::tie(b.made, b.index);
  });
  return keyed;
}

}  // namespace

Program lower(const Program& program, const std::vector<Edge>& edges) {
  PT_CHECK(!program.lowered, kInternal, "the schedule '{}' has its transfers already",
           printable(program.schedule));
  check_edges(program, edges);
  Program result = program;
  result.edges.clear();
  for (const Edge& edge : edges) {
    if (!edge.gradient || program.rule != UpdateRule::kNone) result.edges.push_back(edge);
  }
  const Events micro_batch_run = time_round(result, unit_costs(result));

  std::vector<std::vector<std::pair<double, Instruction>>> moves(result.device.size());
  for (const auto& [made, index] : add_transfers(result, micro_batch_run)) {
    const Transfer& transfer = result.transfers[static_cast<std::size_t>(index)];
    moves[static_cast<std::size_t>(transfer.from_device)].push_back(
        {made, {Kind::kSend, transfer.from_stage, transfer.micro_batch, index}});
    moves[static_cast<std::size_t>(transfer.to_device)].push_back(
        {made, {Kind::kReceive, transfer.to_stage, transfer.micro_batch, index}});
  }
  // A transfer made by the time a compute instruction starts comes before it.
  for (std::size_t d = 0; d < result.device.size(); ++d) {
    std::vector<Instruction> merged;
    std::size_t next = 0;
    for (std::size_t i = 0; i < result.device[d].size(); ++i) {
      for (; next < moves[d].size() && moves[d][next].first <= micro_batch_run[d][i].start;
           ++next) {
        merged.push_back(moves[d][next].second);
      }
      merged.push_back(result.device[d][i]);
    }
    for (; next < moves[d].size(); ++next) merged.push_back(moves[d][next].second);
    result.device[d] = std::move(merged);
  }
  result.lowered = true;
  annotate(result);
  return result;
}

}  // namespace pipetrain
