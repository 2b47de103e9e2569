#include "pipeline/program/check.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "pipeline/program/checker.h"

namespace pipetrain {

void Checker::run() const {
  check_sizes();
  check_instructions();
  check_edges();
  check_coverage();
  const ReplicaRows rows(program_);
  check_placement(rows);
  {
    const ComputeTable table(program_);
    check_local_order(table);
    check_micro_batch_order(rows);
    check_updates(rows);
    check_gradient_sync();
    check_collectives();
    check_transfers();
    check_transfer_places(table);
  }
  check_channels();
  check_progress();
  check_activations(rows);
  check_receive_buffers();
  check_versions(rows);
}

void Checker::check_sizes() const {
  const auto require = [&](bool condition, const char* what) {
    if (!condition) fail(CheckRule::kForm, "{}", what);
  };
  require(program_.stages >= 1, "must have a stage");
  require(program_.devices >= 1, "must have a device");
  require(program_.micro_batches >= 1, "must have a micro-batch");
  const std::size_t stages = at(program_.stages);
  require(program_.device.size() == at(program_.devices), "must have one list per device");
  require(program_.placement.size() == stages, "each stage must have a device");
  require(program_.recompute.size() == stages, "each stage must say whether it recomputes");
  require(program_.slots_per_stage.size() == stages, "each stage must say its activation slots");
  require(program_.versions_per_stage.size() == stages, "each stage must say its weight copies");
  require(program_.slots_per_edge.size() == program_.edges.size(),
          "each edge must say its receive buffers");
  const auto counts = [](const std::vector<int>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](int number) { return number >= 0; });
  };
  require(counts(program_.slots_per_stage) && counts(program_.slots_per_edge),
          "a number of slots or buffers cannot be negative");
  require(program_.route.empty() || program_.route.size() == at(program_.micro_batches),
          "the route must name a replica for each micro-batch");
  for (const int replica : program_.route) {
    require(replica >= 0, "the route must name a replica for each micro-batch");
  }
  require(program_.micro_batches_per_update >= 1, "an update needs a micro-batch");
  require(
      program_.micro_batches_per_update == 1 || program_.rule == UpdateRule::kDoubleBuffer,
      "only rule double-buffer accumulates several micro-batches on a replica before an update");
  for (const int copies : program_.versions_per_stage) {
    require(copies >= 1, "each stage must have a copy of its weights");
  }
  require(program_.rule == UpdateRule::kSync || !program_.gradient_sync,
          "only rule sync can have a gradient sync");
  std::size_t instructions = 0;
  for (const auto& list : program_.device) instructions += list.size();
  // The coverage check would find it too, but its tables must not be larger than the program.
  require(instructions / stages >= at(program_.micro_batches),
          "there are fewer instructions than forwards to run");
  check_replicas();
}

void Checker::check_replicas() const {
  std::vector<int> stage_on(program_.device.size(), -1);  // last stage seen on each device
  for (std::size_t s = 0; s < program_.placement.size(); ++s) {
    const std::vector<int>& replicas = program_.placement[s];
    if (replicas.empty()) fail(CheckRule::kForm, "stage {} must have a device", s);
    for (const int device : replicas) {
      if (!inside(device, program_.device.size())) {
        fail(CheckRule::kForm, "stage {} is on device {}, which does not exist", s, device);
      }
      if (stage_on[at(device)] == static_cast<int>(s)) {
        fail(CheckRule::kPlacement, "device {} has two replicas of stage {}", device, s);
      }
      stage_on[at(device)] = static_cast<int>(s);
    }
    // A version counts the updates of its stage; along a micro-batch's path it must mean the same.
    if (program_.rule == UpdateRule::kVertical && replicas.size() != program_.placement[0].size()) {
      fail(CheckRule::kForm,
           "with vertical sync all stages must have the same number of replicas, but stage 0 has "
           "{} and stage {} has {}",
           program_.placement[0].size(), s, replicas.size());
    }
  }
}

bool Checker::kind_is_known(Kind kind) const {
  switch (kind) {
    case Kind::kForward:
      return true;
    case Kind::kBackward:
    case Kind::kBackwardInput:
    case Kind::kBackwardWeight:
    case Kind::kRecompute:
    case Kind::kReduce:
    case Kind::kUpdate:
      return program_.rule != UpdateRule::kNone;
    case Kind::kGradientSync:
      return program_.gradient_sync;
    case Kind::kSend:
    case Kind::kReceive:
      return program_.lowered;
  }
  return false;
}

void Checker::check_instructions() const {
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const auto require = [&](bool condition, const char* what) {
      if (!condition) fail(CheckRule::kForm, "{} {}", where(d, i), what);
    };
    const Kind kind = instruction.kind;
    require(kind_is_known(kind), "is of a kind that this schedule cannot have");
    if (kind == Kind::kGradientSync) {
      require(instruction.stage == -1 && instruction.micro_batch == -1,
              "must name no stage and no micro-batch");
    } else {
      require(inside(instruction.stage, at(program_.stages)), "names a stage that does not exist");
      const bool whole_round =
          (kind == Kind::kReduce || kind == Kind::kUpdate) && program_.rule == UpdateRule::kSync;
      require(whole_round ? instruction.micro_batch == -1
                          : inside(instruction.micro_batch, at(program_.micro_batches)),
              "names a micro-batch that does not exist");
    }
    require(is_transfer(kind) ? inside(instruction.transfer, program_.transfers.size())
                              : instruction.transfer == -1,
            "names a transfer that does not exist");
  });
}

void Checker::check_edges() const {
  std::set<std::tuple<int, int, bool>> seen;
  for (const Edge& edge : program_.edges) {
    const std::size_t stages = at(program_.stages);
    const bool fits =
        inside(edge.from_stage, stages) && inside(edge.to_stage, stages) &&
        edge.bytes_per_micro_batch >= 0 &&
        (edge.gradient ? edge.from_stage > edge.to_stage : edge.from_stage < edge.to_stage) &&
        !(edge.gradient && program_.rule == UpdateRule::kNone);
    if (!fits || !seen.emplace(edge.from_stage, edge.to_stage, edge.gradient).second) {
      fail(CheckRule::kForm, "the {} edge from stage {} to stage {} is impossible",
           edge.gradient ? "gradient" : "activation", edge.from_stage, edge.to_stage);
    }
  }
  if (!program_.lowered && !program_.transfers.empty()) {
    fail(CheckRule::kForm, "there are {} transfers, but no sends and receives yet",
         program_.transfers.size());
  }
}

const char* to_text(CheckRule rule) {
  switch (rule) {
    case CheckRule::kForm:
      return "form";
    case CheckRule::kCoverage:
      return "coverage";
    case CheckRule::kPlacement:
      return "placement";
    case CheckRule::kLocalOrder:
      return "local order";
    case CheckRule::kMicroBatchOrder:
      return "micro-batch order";
    case CheckRule::kReduces:
      return "reduces";
    case CheckRule::kUpdates:
      return "updates";
    case CheckRule::kGradientSync:
      return "gradient sync";
    case CheckRule::kCollectives:
      return "collectives";
    case CheckRule::kTransfers:
      return "transfers";
    case CheckRule::kTransferPlace:
      return "place of transfers";
    case CheckRule::kChannelOrder:
      return "order on channels";
    case CheckRule::kLanes:
      return "progress";
    case CheckRule::kRendezvous:
      return "progress with blocking sends";
    case CheckRule::kActivations:
      return "activation slots";
    case CheckRule::kReceiveBuffers:
      return "receive buffers";
    case CheckRule::kVersions:
      return "weight versions";
  }
  return "?";
}

void check(const Program& program, ErrorKind blame) { Checker(program, blame).run(); }

}  // namespace pipetrain
