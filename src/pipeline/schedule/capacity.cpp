#include "pipeline/schedule/capacity.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/index.h"
#include "base/setting.h"
#include "pipeline/program/compute_table.h"
#include "pipeline/simulate/simulate.h"

namespace pipetrain {
namespace {

/// Maximum number of micro-batches of each stage's replica between two of its instructions, in list
/// order.
struct Held {
  std::vector<int> live;      // from the forward to the last instruction
  std::vector<int> deferred;  // from the input gradient to the weight gradient
};

Held held_micro_batches(const Program& program) {
  const std::size_t stages = at(program.stages);
  Held held{std::vector<int>(stages, 0), std::vector<int>(stages, 0)};
  for (const auto& list : program.device) {
    std::map<int, int> live, deferred;
    for (const Instruction& instruction : list) {
      if (!is_compute(instruction.kind)) continue;
      const std::size_t stage = at(instruction.stage);
      if (instruction.kind == Kind::kForward)
        held.live[stage] = std::max(held.live[stage], ++live[instruction.stage]);
      if (instruction.kind == Kind::kBackwardInput)
        held.deferred[stage] = std::max(held.deferred[stage], ++deferred[instruction.stage]);
      if (adds_gradient(instruction.kind)) --live[instruction.stage];
      if (instruction.kind == Kind::kBackwardWeight) --deferred[instruction.stage];
    }
  }
  return held;
}

/// Most entries that a replica of each stage has in use in a run of unit costs without waiting for
/// entries: from that of its first micro-batch not yet released on, since they are taken in turn.
/// With as many entries no deadlock is possible.
std::vector<int> outstanding(const Program& program, bool gradient) {
  StageSeconds seconds;
  seconds.update = 1;
  const auto events = time_round(program, uniform_costs(program, seconds));
  const auto time_at = [&](const Place& place, bool end) {
    const Event& event = events[at(place.device)][at(place.index)];
    return end ? event.end : event.start;
  };
  const ComputeTable table(program);
  struct Sent {
    double start;     // of the instruction that writes it
    double released;  // after its last reader
  };
  std::map<std::pair<int, int>, std::vector<Sent>> sent;  // of (stage, replica), in order
  for (int stage = 0; stage < program.stages; ++stage) {
    for (int micro_batch = 0; micro_batch < program.micro_batches; ++micro_batch) {
      double released = -1;
      Place producer;
      for (const Edge& edge : program.edges) {
        if (edge.from_stage != stage || edge.gradient != gradient) continue;
        producer = table.producer(edge, micro_batch);
        for (const Kind kind : {Kind::kForward, Kind::kRecompute, Kind::kBackward,
                                Kind::kBackwardInput, Kind::kBackwardWeight}) {
          const Place place = table.at(kind, edge.to_stage, micro_batch);
          if (place.exists()) released = std::max(released, time_at(place, /*end=*/true));
        }
      }
      if (!producer.exists()) continue;
      sent[{stage, program.replica_of(stage, micro_batch)}].push_back(
          {time_at(producer, /*end=*/false), released});
    }
  }
  std::vector<int> most(at(program.stages), 0);
  for (const auto& [key, list] : sent) {
    std::size_t first = 0;  // not yet released
    for (std::size_t n = 0; n < list.size(); ++n) {
      // What is released at the same moment may still be read.
      while (first < n && list[first].released < list[n].start) ++first;
      most[at(key.first)] = std::max(most[at(key.first)], static_cast<int>(n - first) + 1);
    }
  }
  return most;
}

/// Micro-batches of the replica that runs most of them.
int most_of_a_replica(const Program& program, int stage) {
  std::vector<int> counts(at(program.replicas(stage)), 0);
  for (int m = 0; m < program.micro_batches; ++m) ++counts[at(program.replica_of(stage, m))];
  return *std::ranges::max_element(counts);
}

void add_entries(const Program& program, std::vector<StageCapacity>& capacity) {
  const Held held = held_micro_batches(program);
  const bool evaluates = program.rule == UpdateRule::kNone;
  const std::vector<int> forward_run = outstanding(program, /*gradient=*/false);
  const std::vector<int> gradient_run = outstanding(program, /*gradient=*/true);
  for (int stage = 0; stage < program.stages; ++stage) {
    StageCapacity& needs = capacity[at(stage)];
    const int own = most_of_a_replica(program, stage);
    int later = 0, earlier = 0;
    for (const Edge& edge : program.edges) {
      if (edge.from_stage != stage) continue;
      const int receivers = program.replicas(edge.to_stage);
      if (edge.gradient) {
        earlier = std::max(earlier, receivers * held.live[at(edge.to_stage)]);
      } else {
        later = std::max(later, receivers * held.deferred[at(edge.to_stage)]);
      }
    }
    // Activations live until this stage's own backward, or a receiver's deferred weight gradient;
    // gradients until the receiver is done with the micro-batch, or this stage's own weight
    // gradient.
    const int forward = evaluates ? std::max(2, forward_run[at(stage)])
                                  : std::max(held.live[at(stage)] + later, forward_run[at(stage)]);
    const int gradient = std::max({held.deferred[at(stage)], earlier, gradient_run[at(stage)], 1});
    needs.forward_entries = std::max(needs.forward_entries, std::min(own, forward));
    needs.gradient_entries = std::max(needs.gradient_entries, std::min(own, gradient));
  }
}

}  // namespace

std::vector<StageCapacity> stage_capacities(const std::vector<const Program*>& programs) {
  std::vector<StageCapacity> capacity(at(programs.at(0)->stages));
  for (StageCapacity& stage : capacity) stage.one_micro_batch = stage.evaluates_in_one_slot = true;
  for (const Program* program : programs) {
    for (std::size_t s = 0; s < capacity.size(); ++s) {
      if (program->rule != UpdateRule::kNone &&
          (program->micro_batches > 1 || program->replicas(static_cast<int>(s)) > 1 ||
           program->slots_per_stage[s] > 1 || program->versions_per_stage[s] > 1))
        capacity[s].one_micro_batch = false;
      if (program->rule == UpdateRule::kNone && program->slots_per_stage[s] > 1)
        capacity[s].evaluates_in_one_slot = false;
      capacity[s].slots = std::max(capacity[s].slots, program->slots_per_stage[s]);
      capacity[s].versions = std::max(capacity[s].versions, program->versions_per_stage[s]);
      capacity[s].recompute = capacity[s].recompute || program->recompute[s];
      // Devices that share work (pipeline/transport/shared_work.h) defer what reads one set while
      // micro-batches fill the other.
      if (program->devices > 1 && program->replicas(static_cast<int>(s)) == 1)
        capacity[s].batched_sets = 2;
    }
    for (const auto& list : program->device) {
      for (const Instruction& instruction : list) {
        if (instruction.kind == Kind::kBackwardWeight)
          capacity[at(instruction.stage)].split_backward = true;
      }
    }
    add_entries(*program, capacity);
  }
  return capacity;
}

void add_accumulators(const std::vector<const Program*>& programs, int leaves,
                      std::vector<StageCapacity>& capacity) {
  if (leaves == 0) return;
  for (const Program* program : programs) {
    if (program->rule == UpdateRule::kNone) continue;
    PT_CHECK(!is_asynchronous(program->rule), kUsage,
             "{} needs a synchronous schedule such as 1f1b, but {} {} updates stages while others "
             "compute",
             setting("accumulators"), setting("schedule"), printable(program->schedule));
    PT_CHECK(program->route.empty(), kUsage,
             "{} needs replicas that take turns, but {} {} has a route of its own",
             setting("accumulators"), setting("schedule"), printable(program->schedule));
    for (int s = 0; s < program->stages; ++s) {
      const int replicas = program->replicas(s);
      PT_CHECK(leaves % replicas == 0, kUsage,
               "{} {} cannot be divided among the {} replicas of stage {}; give a multiple of {} "
               "that is a power of two, or another number of replicas",
               setting("accumulators"), leaves, replicas, s, replicas);
      const int most = (program->micro_batches + replicas - 1) / replicas;
      int& sets = capacity[static_cast<std::size_t>(s)].accumulator_sets;
      sets = std::max(sets, std::min(leaves / replicas, most));
    }
  }
}

}  // namespace pipetrain
