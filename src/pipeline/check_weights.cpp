// Rules on weights: which version each unit reads, and when a stage updates.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "pipeline/checker.h"

namespace pipetrain {

void Checker::check_versions() const {
  const bool stash = program_.rule == UpdateRule::kStash;
  std::vector<int> latest(at(program_.stages), 0);
  std::vector<int> read(unit_keys(), -1);
  std::vector<std::set<std::pair<int, int>>> in_flight(at(program_.stages));  // version, unit
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const auto require = [&](int version) {
      if (instruction.version == version) return;
      fail(CheckRule::kVersions, "{} has weight version {}, must be {}", where(d, i),
           instruction.version, version);
    };
    if (instruction.kind == Kind::kUpdate) {
      int& newest = latest[at(instruction.stage)];
      require(++newest);
      const auto& flying = in_flight[at(instruction.stage)];
      const int oldest = flying.empty() ? newest : flying.begin()->first;
      const int copies = program_.versions_per_stage[at(instruction.stage)];
      if (stash && newest - oldest + 1 > copies) {
        fail(CheckRule::kVersions,
             "{} makes version {} while version {} is in use: {} copies, "
             "but stage {} has {}",
             where(d, i), newest, oldest, newest - oldest + 1, instruction.stage, copies);
      }
      if (!stash && !flying.empty()) {
        fail(CheckRule::kVersions, "{} comes while unit {} is in flight", where(d, i),
             flying.begin()->second);
      }
    }
    if (!is_compute(instruction.kind)) return;
    int& version = read[unit_key(instruction.stage, instruction.unit)];
    auto& flying = in_flight[at(instruction.stage)];
    if (instruction.kind == Kind::kForward) {
      version = stash ? latest[at(instruction.stage)] : 0;
      if (program_.rule != UpdateRule::kNone) flying.emplace(version, instruction.unit);
    }
    require(version);
    if (adds_gradient(instruction.kind)) flying.erase({version, instruction.unit});
  });
}

void Checker::check_updates() const {
  if (program_.rule == UpdateRule::kNone) return;
  const bool stash = program_.rule == UpdateRule::kStash;
  struct Counts {
    int gradients = 0;
    int updates = 0;
  };
  std::vector<Counts> counts(at(program_.stages));
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (adds_gradient(instruction.kind)) {
      Counts& count = counts[at(instruction.stage)];
      ++count.gradients;
      if (count.gradients > count.updates + (stash ? 1 : program_.units)) {
        fail(CheckRule::kUpdates, "{} comes before the update with the gradient before it",
             where(d, i));
      }
    }
    if (instruction.kind != Kind::kUpdate) return;
    Counts& count = counts[at(instruction.stage)];
    if (stash && instruction.unit != count.updates) {
      fail(CheckRule::kUpdates, "{} must be the update of unit {}", where(d, i), count.updates);
    }
    if (!stash && count.updates > 0) {
      fail(CheckRule::kUpdates, "{} is a second update in the round", where(d, i));
    }
    ++count.updates;
    if (count.gradients < (stash ? count.updates : program_.units)) {
      fail(CheckRule::kUpdates, "{} comes before its gradients are complete", where(d, i));
    }
  });
  for (int stage = 0; stage < program_.stages; ++stage) {
    if (counts[at(stage)].updates == (stash ? program_.units : 1)) continue;
    fail(CheckRule::kUpdates, "device {} has {} updates of stage {}, must be {}",
         program_.device_of_stage[at(stage)], counts[at(stage)].updates, stage,
         stash ? program_.units : 1);
  }
}

void Checker::check_gradient_sync() const {
  if (!program_.gradient_sync) return;
  std::vector<Place> syncs(program_.device.size());
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (instruction.kind == Kind::kGradientSync) {
      if (syncs[d].exists()) {
        fail(CheckRule::kGradientSync, "{} is a second gradient sync", where(d, i));
      }
      syncs[d] = {static_cast<int>(d), static_cast<int>(i)};
    }
    if (adds_gradient(instruction.kind) && syncs[d].exists()) {
      fail(CheckRule::kGradientSync, "{} comes after {}", where(d, i), where(syncs[d]));
    }
    if (instruction.kind == Kind::kUpdate && !syncs[d].exists()) {
      fail(CheckRule::kGradientSync, "{} comes before the gradient sync", where(d, i));
    }
  });
  for (std::size_t d = 0; d < syncs.size(); ++d) {
    if (!syncs[d].exists()) fail(CheckRule::kGradientSync, "device {} has none", d);
  }
}

}  // namespace pipetrain
