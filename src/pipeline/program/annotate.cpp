#include "pipeline/program/annotate.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace pipetrain {
namespace {

/// Allocates the lowest free number and records the maximum in use.
class SlotPool {
 public:
  int take() {
    if (free_.empty()) return count_++;
    const int slot = *free_.begin();
    free_.erase(free_.begin());
    return slot;
  }
  void give_back(int slot) {
    if (slot >= 0) free_.insert(slot);
  }
  int count() const { return count_; }

 private:
  std::set<int> free_;
  int count_ = 0;
};

/// A table over (stage or edge, micro-batch), filled with -1.
class MicroBatchTable {
 public:
  MicroBatchTable(std::size_t rows, int micro_batches)
      : micro_batches_(static_cast<std::size_t>(micro_batches)),
        values_(rows * micro_batches_, -1) {}
  int& at(int row, int micro_batch) {
    return values_.at(static_cast<std::size_t>(row) * micro_batches_ +
                      static_cast<std::size_t>(micro_batch));
  }

 private:
  std::size_t micro_batches_;
  std::vector<int> values_;
};

/// Index of the last compute instruction of each (stage, micro-batch) in its device's list.
MicroBatchTable last_readers(const Program& program) {
  MicroBatchTable last(static_cast<std::size_t>(program.stages), program.micro_batches);
  for (const auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (is_compute(list[i].kind))
        last.at(list[i].stage, list[i].micro_batch) = static_cast<int>(i);
    }
  }
  return last;
}

/// Numbers the replicas of all stages consecutively.
class ReplicaIndex {
 public:
  explicit ReplicaIndex(const Program& program) : program_(program) {
    for (const auto& devices : program.placement) {
      first_.push_back(count_);
      count_ += devices.size();
    }
  }
  std::size_t count() const { return count_; }
  std::size_t at(int stage, int device) const {
    const int replica = std::max(program_.replica_on(stage, device), 0);
    return first_.at(static_cast<std::size_t>(stage)) + static_cast<std::size_t>(replica);
  }

 private:
  const Program& program_;
  std::vector<std::size_t> first_;
  std::size_t count_ = 0;
};

void assign_slots(Program& program) {
  MicroBatchTable last = last_readers(program);
  const auto stages = static_cast<std::size_t>(program.stages);
  MicroBatchTable slot(stages, program.micro_batches);
  MicroBatchTable buffer(program.edges.size(), program.micro_batches);
  std::vector<std::vector<int>> incoming(stages);
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    incoming[static_cast<std::size_t>(program.edges[e].to_stage)].push_back(static_cast<int>(e));
  }
  program.slots_per_stage.assign(stages, 0);
  program.slots_per_edge.assign(program.edges.size(), 0);
  for (auto& list : program.device) {
    std::map<std::size_t, SlotPool> slots;    // of the stages on this device
    std::map<std::size_t, SlotPool> buffers;  // of the edges that end here
    for (std::size_t i = 0; i < list.size(); ++i) {
      Instruction& instruction = list[i];
      if (instruction.kind == Kind::kReceive) {
        const int edge = program.transfers.at(static_cast<std::size_t>(instruction.transfer)).edge;
        instruction.slot = buffers[static_cast<std::size_t>(edge)].take();
        buffer.at(edge, instruction.micro_batch) = instruction.slot;
      }
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      int& held = slot.at(instruction.stage, instruction.micro_batch);
      if (held < 0) held = slots[stage].take();
      instruction.slot = held;
      const bool ends = last.at(instruction.stage, instruction.micro_batch) == static_cast<int>(i);
      if (ends || (instruction.kind == Kind::kForward && program.recompute.at(stage))) {
        slots[stage].give_back(held);
        held = -1;
      }
      if (!ends) continue;
      for (const int edge : incoming.at(stage)) {
        buffers[static_cast<std::size_t>(edge)].give_back(buffer.at(edge, instruction.micro_batch));
      }
    }
    for (const auto& [stage, pool] : slots) {
      program.slots_per_stage[stage] = std::max(program.slots_per_stage[stage], pool.count());
    }
    for (const auto& [edge, pool] : buffers) {
      program.slots_per_edge[edge] = std::max(program.slots_per_edge[edge], pool.count());
    }
  }
}

/// The version that each micro-batch reads on stage 0: its number of updates before the
/// micro-batch's forward.
std::vector<int> first_stage_versions(const Program& program) {
  std::vector<int> versions(static_cast<std::size_t>(program.micro_batches), 0);
  for (const int device : program.placement.at(0)) {
    int latest = 0;
    for (const Instruction& instruction : program.device.at(static_cast<std::size_t>(device))) {
      if (instruction.stage != 0) continue;
      if (instruction.kind == Kind::kUpdate) ++latest;
      if (instruction.kind == Kind::kForward)
        versions.at(static_cast<std::size_t>(instruction.micro_batch)) = latest;
    }
  }
  return versions;
}

void assign_versions(Program& program) {
  const auto stages = static_cast<std::size_t>(program.stages);
  const ReplicaIndex replicas(program);
  MicroBatchTable read(stages, program.micro_batches);
  std::vector<int> latest(replicas.count(), 0);
  const std::vector<int> vertical =
      program.rule == UpdateRule::kVertical ? first_stage_versions(program) : std::vector<int>();
  const auto version_of = [&](const Instruction& forward, int newest) {
    switch (program.rule) {
      case UpdateRule::kVertical:
        return vertical.at(static_cast<std::size_t>(forward.micro_batch));
      case UpdateRule::kDoubleBuffer:
        return std::max(0, forward.micro_batch / std::max(program.micro_batches_per_update, 1) - 1);
      default:
        return newest;
    }
  };
  program.versions_per_stage.assign(stages, 1);
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    auto& list = program.device[d];
    for (Instruction& instruction : list) {
      if (instruction.stage < 0) continue;
      int& newest = latest.at(replicas.at(instruction.stage, static_cast<int>(d)));
      if (instruction.kind == Kind::kUpdate) instruction.version = ++newest;
      if (!is_compute(instruction.kind)) continue;
      int& version = read.at(instruction.stage, instruction.micro_batch);
      if (version < 0) version = version_of(instruction, newest);
      instruction.version = version;
    }
    if (!is_asynchronous(program.rule)) continue;
    // A version stays until its last reader: backwards through the list, the oldest that is read
    // after an update says how many copies there must be beside it.
    std::map<int, int> oldest;
    for (auto i = list.rbegin(); i != list.rend(); ++i) {
      if (is_compute(i->kind)) {
        const auto [entry, added] = oldest.try_emplace(i->stage, i->version);
        if (!added) entry->second = std::min(entry->second, i->version);
      }
      if (i->kind != Kind::kUpdate) continue;
      const auto entry = oldest.find(i->stage);
      const int kept = entry == oldest.end() ? i->version : std::min(entry->second, i->version);
      int& copies = program.versions_per_stage.at(static_cast<std::size_t>(i->stage));
      copies = std::max(copies, i->version - kept + 1);
    }
  }
}

}  // namespace

void annotate(Program& program) {
  assign_slots(program);
  assign_versions(program);
}

std::vector<int> staleness(const Program& program) {
  std::vector<int> result(static_cast<std::size_t>(program.stages), 0);
  if (!is_asynchronous(program.rule)) return result;
  for (const auto& list : program.device) {
    std::map<int, int> oldest;  // version read by the gradients since the stage's last update
    for (const Instruction& instruction : list) {
      if (adds_gradient(instruction.kind)) {
        const auto [entry, added] = oldest.try_emplace(instruction.stage, instruction.version);
        if (!added) entry->second = std::min(entry->second, instruction.version);
      } else if (instruction.kind == Kind::kUpdate) {
        const auto entry = oldest.find(instruction.stage);
        if (entry == oldest.end()) continue;  // no micro-batch of this group on this replica
        int& most = result.at(static_cast<std::size_t>(instruction.stage));
        most = std::max(most, instruction.version - 1 - entry->second);
        oldest.erase(entry);
      }
    }
  }
  return result;
}

bool applies_statistics_at_once(const Program& program, int stage) {
  return is_asynchronous(program.rule) && program.group_size(stage) == 1;
}

std::vector<std::vector<int>> versions_of_groups(const Program& program) {
  std::vector<std::vector<int>> versions;
  for (int stage = 0; stage < program.stages; ++stage)
    versions.emplace_back(static_cast<std::size_t>(program.updates(stage)), 0);
  if (program.rule == UpdateRule::kNone) return versions;
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) {
      if (instruction.kind != Kind::kForward) continue;
      const int group = instruction.micro_batch / program.group_size(instruction.stage);
      versions[static_cast<std::size_t>(instruction.stage)][static_cast<std::size_t>(group)] =
          instruction.version;
    }
  }
  return versions;
}

}  // namespace pipetrain
