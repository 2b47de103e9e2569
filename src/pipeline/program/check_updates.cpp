// Rules on reduces, updates and the gradient sync, and the order of collectives.
#include <algorithm>
#include <string>
#include <vector>

#include "pipeline/program/checker.h"

namespace pipetrain {

void Checker::check_updates(const ReplicaRows& rows) const {
  if (program_.rule == UpdateRule::kNone) return;
  // How many micro-batches of each group a replica runs, by row and group.
  std::vector<std::vector<int>> left(at(rows.count()));
  for (int row = 0; row < rows.count(); ++row) {
    left[at(row)].assign(at(program_.updates(rows.stage_of(row))), 0);
  }
  for (int stage = 0; stage < program_.stages; ++stage) {
    const int size = program_.group_size(stage);
    for (int micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      ++left[at(rows.running(stage, micro_batch))][at(micro_batch / size)];
    }
  }
  struct Progress {
    int group = 0;
    bool reduced = false;
  };
  std::vector<Progress> progress(at(rows.count()));
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (!adds_gradient(kind) && kind != Kind::kReduce && kind != Kind::kUpdate) return;
    const int stage = instruction.stage;
    const int row = rows.on(stage, static_cast<int>(d));
    Progress& now = progress[at(row)];
    const auto& groups = left[at(row)];
    if (adds_gradient(kind)) {
      const int group = instruction.micro_batch / program_.group_size(stage);
      if (group == now.group && !now.reduced) {
        --left[at(row)][at(group)];
        return;
      }
      fail(CheckRule::kUpdates, "{} {}", where(d, i),
           group > now.group ? "comes before the update with the gradients before it"
                             : "comes after its gradient has been used");
    }
    const bool reduce = kind == Kind::kReduce;
    const CheckRule rule = reduce ? CheckRule::kReduces : CheckRule::kUpdates;
    if (reduce && program_.replicas(stage) == 1) {
      fail(rule, "{} has nothing to reduce: stage {} is on one device", where(d, i), stage);
    }
    if (at(now.group) >= groups.size()) {
      fail(rule, "{} is one too many: stage {} has {} in the schedule", where(d, i), stage,
           groups.size());
    }
    const int last =
        std::min((now.group + 1) * program_.group_size(stage), program_.micro_batches) - 1;
    if (program_.rule != UpdateRule::kSync && instruction.micro_batch != last) {
      fail(rule, "{} must name micro-batch {}, the last of the next update", where(d, i), last);
    }
    if (groups[at(now.group)] > 0) {
      fail(rule, "{} comes before its gradients are complete", where(d, i));
    }
    if (reduce) {
      if (now.reduced) fail(rule, "{} occurs twice", where(d, i));
      now.reduced = true;
      return;
    }
    if (program_.replicas(stage) > 1 && !now.reduced) {
      fail(CheckRule::kReduces, "{} comes before the replicas' gradients are reduced", where(d, i));
    }
    ++now.group;
    now.reduced = false;
  });
  for (int row = 0; row < rows.count(); ++row) {
    const std::size_t groups = left[at(row)].size();
    if (at(progress[at(row)].group) == groups) continue;
    fail(CheckRule::kUpdates, "device {} has {} updates of stage {}, must be {}",
         rows.device_of(row), progress[at(row)].group, rows.stage_of(row), groups);
  }
}

void Checker::check_gradient_sync() const {
  if (!program_.gradient_sync) return;
  std::vector<Place> syncs(program_.device.size());
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (kind == Kind::kGradientSync) {
      if (syncs[d].exists()) {
        fail(CheckRule::kGradientSync, "{} is a second gradient sync", where(d, i));
      }
      syncs[d] = {static_cast<int>(d), static_cast<int>(i)};
    }
    if ((adds_gradient(kind) || kind == Kind::kReduce) && syncs[d].exists()) {
      fail(CheckRule::kGradientSync, "{} comes after {}", where(d, i), where(syncs[d]));
    }
    if (kind == Kind::kUpdate && !syncs[d].exists()) {
      fail(CheckRule::kGradientSync, "{} comes before the gradient sync", where(d, i));
    }
  });
  for (std::size_t d = 0; d < syncs.size(); ++d) {
    if (!syncs[d].exists()) fail(CheckRule::kGradientSync, "device {} has none", d);
  }
}

void Checker::check_collectives() const {
  // Runs the collectives alone: this ends if and only if all devices agree on one order.
  std::vector<std::vector<int>> lists(program_.device.size());  // indices of collectives
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (kind == Kind::kReduce || kind == Kind::kGradientSync) {
      lists[d].push_back(static_cast<int>(i));
    }
  });
  std::vector<std::size_t> next(lists.size(), 0);
  const auto head = [&](std::size_t d) -> const Instruction* {
    return next[d] == lists[d].size() ? nullptr : &program_.device[d][at(lists[d][next[d]])];
  };
  std::vector<int> all(lists.size());
  for (std::size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int>(d);
  const auto members = [&](const Instruction& instruction) -> const std::vector<int>& {
    return instruction.stage < 0 ? all : program_.placement[at(instruction.stage)];
  };
  const auto absent = [&](const Instruction& instruction) {
    for (const int device : members(instruction)) {
      const Instruction* other = head(at(device));
      if (other == nullptr || other->kind != instruction.kind ||
          other->stage != instruction.stage || other->micro_batch != instruction.micro_batch) {
        return device;
      }
    }
    return -1;
  };
  // Waiting devices are checked again when the missing device advances.
  std::vector<std::vector<int>> waiting(lists.size());
  std::vector<int> awake = all;
  while (!awake.empty()) {
    const std::size_t d = at(awake.back());
    awake.pop_back();
    const Instruction* instruction = head(d);
    if (instruction == nullptr) continue;
    const int missing = absent(*instruction);
    if (missing >= 0) {
      waiting[at(missing)].push_back(static_cast<int>(d));
      continue;
    }
    for (const int device : members(*instruction)) {
      ++next[at(device)];
      awake.push_back(device);
      awake.insert(awake.end(), waiting[at(device)].begin(), waiting[at(device)].end());
      waiting[at(device)].clear();
    }
  }
  for (std::size_t d = 0; d < lists.size(); ++d) {
    const Instruction* stuck = head(d);
    if (stuck == nullptr) continue;
    const std::size_t other = at(absent(*stuck));
    fail(CheckRule::kCollectives, "{} waits for device {}, which is {}",
         where(d, at(lists[d][next[d]])), other,
         head(other) == nullptr ? std::string("through with all of its own")
                                : "at " + where(other, at(lists[other][next[other]])));
  }
}

}  // namespace pipetrain
