// Rules on memory that units hold: activation slots and receive buffers.
#include <algorithm>
#include <vector>

#include "pipeline/checker.h"

namespace pipetrain {

void Checker::check_activations() const {
  constexpr int kFree = -1;
  std::vector<std::vector<int>> holder(at(program_.stages));  // unit in each slot
  for (std::size_t s = 0; s < holder.size(); ++s) {
    // A slot index beyond what the units could fill is never right; the table stays small.
    const int declared = std::clamp(program_.slots_per_stage[s], 0, program_.units);
    holder[s].assign(at(declared), kFree);
  }
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (!is_compute(kind)) return;
    auto& slots = holder[at(instruction.stage)];
    if (!inside(instruction.slot, slots.size())) {
      fail(CheckRule::kActivations, "{} uses activation slot {}, but stage {} has {}", where(d, i),
           instruction.slot, instruction.stage, slots.size());
    }
    int& held = slots[at(instruction.slot)];
    const bool opens = kind == Kind::kForward || kind == Kind::kRecompute;
    if (held != (opens ? kFree : instruction.unit)) {
      fail(CheckRule::kActivations, "{} uses activation slot {}, which holds {}", where(d, i),
           instruction.slot, held == kFree ? "nothing" : fmt::format("unit {}", held));
    }
    const bool keeps = program_.rule != UpdateRule::kNone &&
                       !static_cast<bool>(program_.recompute[at(instruction.stage)]);
    const bool ends = adds_gradient(kind) || (kind == Kind::kForward && !keeps);
    held = ends ? kFree : instruction.unit;
  });
}

void Checker::check_receive_buffers() const {
  if (!program_.lowered) return;
  constexpr int kFree = -1;
  std::vector<std::vector<int>> holder(program_.edges.size());  // unit in each buffer
  std::vector<std::vector<std::size_t>> incoming(at(program_.stages));
  for (std::size_t e = 0; e < holder.size(); ++e) {
    holder[e].assign(at(std::clamp(program_.slots_per_edge[e], 0, program_.units)), kFree);
    incoming[at(program_.edges[e].to_stage)].push_back(e);
  }
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (instruction.kind == Kind::kReceive) {
      auto& buffers = holder[at(program_.transfers[at(instruction.transfer)].edge)];
      if (!inside(instruction.slot, buffers.size())) {
        fail(CheckRule::kReceiveBuffers, "{} uses receive buffer {}, but there are {}", where(d, i),
             instruction.slot, buffers.size());
      }
      int& held = buffers[at(instruction.slot)];
      if (held != kFree) {
        fail(CheckRule::kReceiveBuffers, "{} uses receive buffer {}, which still holds unit {}",
             where(d, i), instruction.slot, held);
      }
      held = instruction.unit;
    }
    const bool ends = adds_gradient(instruction.kind) ||
                      (instruction.kind == Kind::kForward && program_.rule == UpdateRule::kNone);
    if (!ends) return;
    for (const std::size_t edge : incoming[at(instruction.stage)]) {
      std::replace(holder[edge].begin(), holder[edge].end(), instruction.unit, kFree);
    }
  });
}

}  // namespace pipetrain
