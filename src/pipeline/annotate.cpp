#include "pipeline/annotate.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace pipetrain {
namespace {

/// Hands out the lowest free number and remembers how many were needed.
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

/// A table over (stage or edge, unit), filled with -1.
class UnitTable {
 public:
  UnitTable(std::size_t rows, int units)
      : units_(static_cast<std::size_t>(units)), values_(rows * units_, -1) {}
  int& at(int row, int unit) {
    return values_.at(static_cast<std::size_t>(row) * units_ + static_cast<std::size_t>(unit));
  }

 private:
  std::size_t units_;
  std::vector<int> values_;
};

/// Index of the last compute instruction of each (stage, unit) in its device's list.
UnitTable last_readers(const Program& program) {
  UnitTable last(static_cast<std::size_t>(program.stages), program.units);
  for (const auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (is_compute(list[i].kind)) last.at(list[i].stage, list[i].unit) = static_cast<int>(i);
    }
  }
  return last;
}

void assign_slots(Program& program) {
  UnitTable last = last_readers(program);
  const auto stages = static_cast<std::size_t>(program.stages);
  UnitTable slot(stages, program.units);
  UnitTable buffer(program.edges.size(), program.units);
  std::vector<SlotPool> slots(stages);
  std::vector<SlotPool> buffers(program.edges.size());
  std::vector<std::vector<int>> incoming(stages);
  for (std::size_t e = 0; e < program.edges.size(); ++e) {
    incoming[static_cast<std::size_t>(program.edges[e].to_stage)].push_back(static_cast<int>(e));
  }
  for (auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      Instruction& instruction = list[i];
      if (instruction.kind == Kind::kReceive) {
        const int edge = program.transfers.at(static_cast<std::size_t>(instruction.transfer)).edge;
        instruction.slot = buffers.at(static_cast<std::size_t>(edge)).take();
        buffer.at(edge, instruction.unit) = instruction.slot;
      }
      if (!is_compute(instruction.kind)) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      int& held = slot.at(instruction.stage, instruction.unit);
      if (held < 0) held = slots[stage].take();
      instruction.slot = held;
      const bool ends = last.at(instruction.stage, instruction.unit) == static_cast<int>(i);
      if (ends || (instruction.kind == Kind::kForward && program.recompute.at(stage))) {
        slots[stage].give_back(held);
        held = -1;
      }
      if (!ends) continue;
      for (const int edge : incoming[stage]) {
        buffers[static_cast<std::size_t>(edge)].give_back(buffer.at(edge, instruction.unit));
      }
    }
  }
  program.slots_per_stage.clear();
  for (const SlotPool& pool : slots) program.slots_per_stage.push_back(pool.count());
  program.slots_per_edge.clear();
  for (const SlotPool& pool : buffers) program.slots_per_edge.push_back(pool.count());
}

void assign_versions(Program& program) {
  UnitTable last = last_readers(program);
  const auto stages = static_cast<std::size_t>(program.stages);
  UnitTable read(stages, program.units);
  std::vector<int> latest(stages, 0);
  std::vector<std::multiset<int>> in_flight(stages);
  program.versions_per_stage.assign(stages, 1);
  for (auto& list : program.device) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      Instruction& instruction = list[i];
      if (instruction.stage < 0) continue;
      const auto stage = static_cast<std::size_t>(instruction.stage);
      if (instruction.kind == Kind::kUpdate) {
        instruction.version = ++latest[stage];
        // Versions in flight are consecutive, so the oldest decides how many copies there must be.
        const int oldest = in_flight[stage].empty() ? latest[stage] : *in_flight[stage].begin();
        int& copies = program.versions_per_stage[stage];
        if (program.rule == UpdateRule::kStash)
          copies = std::max(copies, latest[stage] - oldest + 1);
      }
      if (!is_compute(instruction.kind)) continue;
      int& version = read.at(instruction.stage, instruction.unit);
      if (version < 0) {
        version = latest[stage];
        in_flight[stage].insert(version);
      }
      instruction.version = version;
      if (last.at(instruction.stage, instruction.unit) == static_cast<int>(i)) {
        const auto entry = in_flight[stage].find(version);
        if (entry != in_flight[stage].end()) in_flight[stage].erase(entry);
      }
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
  if (program.rule != UpdateRule::kStash) return result;
  UnitTable read(static_cast<std::size_t>(program.stages), program.units);
  for (const auto& list : program.device) {
    for (const Instruction& instruction : list) {
      if (adds_gradient(instruction.kind)) {
        read.at(instruction.stage, instruction.unit) = instruction.version;
      } else if (instruction.kind == Kind::kUpdate) {
        int& most = result.at(static_cast<std::size_t>(instruction.stage));
        most =
            std::max(most, instruction.version - 1 - read.at(instruction.stage, instruction.unit));
      }
    }
  }
  return result;
}

}  // namespace pipetrain
