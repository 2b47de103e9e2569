// Rules on memory that micro-batches hold: activation slots and receive buffers.
#include <algorithm>
#include <vector>

#include "pipeline/program/checker.h"

namespace pipetrain {

void Checker::check_activations(const ReplicaRows& rows) const {
  constexpr int kFree = -1;
  std::vector<std::vector<int>> holder(at(rows.count()));  // micro-batch in each slot of a replica
  for (int row = 0; row < rows.count(); ++row) {
    // A slot index beyond the number of micro-batches is always wrong; this keeps the table small.
    const int declared =
        std::clamp(program_.slots_per_stage[at(rows.stage_of(row))], 0, program_.micro_batches);
    holder[at(row)].assign(at(declared), kFree);
  }
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    const Kind kind = instruction.kind;
    if (!is_compute(kind)) return;
    auto& slots = holder[at(rows.running(instruction.stage, instruction.micro_batch))];
    if (!inside(instruction.slot, slots.size())) {
      fail(CheckRule::kActivations, "{} uses activation slot {}, but stage {} has {}", where(d, i),
           instruction.slot, instruction.stage, slots.size());
    }
    int& held = slots[at(instruction.slot)];
    const bool opens = kind == Kind::kForward || kind == Kind::kRecompute;
    if (held != (opens ? kFree : instruction.micro_batch)) {
      fail(CheckRule::kActivations, "{} uses activation slot {}, which holds {}", where(d, i),
           instruction.slot, held == kFree ? "nothing" : fmt::format("micro-batch {}", held));
    }
    const bool keeps = program_.rule != UpdateRule::kNone &&
                       !static_cast<bool>(program_.recompute[at(instruction.stage)]);
    const bool ends = adds_gradient(kind) || (kind == Kind::kForward && !keeps);
    held = ends ? kFree : instruction.micro_batch;
  });
}

void Checker::check_receive_buffers() const {
  if (!program_.lowered) return;
  constexpr int kFree = -1;
  // Micro-batch in each buffer, by edge and receiving replica; and the buffer of each micro-batch
  // on each edge.
  std::vector<std::vector<std::vector<int>>> holder(program_.edges.size());
  std::vector<int> buffer(program_.edges.size() * at(program_.micro_batches), kFree);
  std::vector<std::vector<std::size_t>> incoming(at(program_.stages));
  for (std::size_t e = 0; e < holder.size(); ++e) {
    const int to = program_.edges[e].to_stage;
    const int declared = std::clamp(program_.slots_per_edge[e], 0, program_.micro_batches);
    holder[e].assign(at(program_.replicas(to)), std::vector<int>(at(declared), kFree));
    incoming[at(to)].push_back(e);
  }
  for_each([&](std::size_t d, std::size_t i, const Instruction& instruction) {
    if (instruction.kind == Kind::kReceive) {
      const std::size_t edge = at(program_.transfers[at(instruction.transfer)].edge);
      const int replica = program_.replica_of(instruction.stage, instruction.micro_batch);
      auto& buffers = holder[edge][at(replica)];
      if (!inside(instruction.slot, buffers.size())) {
        fail(CheckRule::kReceiveBuffers, "{} uses receive buffer {}, but there are {}", where(d, i),
             instruction.slot, buffers.size());
      }
      int& held = buffers[at(instruction.slot)];
      if (held != kFree) {
        fail(CheckRule::kReceiveBuffers,
             "{} uses receive buffer {}, which still holds micro-batch {}", where(d, i),
             instruction.slot, held);
      }
      held = instruction.micro_batch;
      buffer[edge * at(program_.micro_batches) + at(instruction.micro_batch)] = instruction.slot;
    }
    const bool ends = adds_gradient(instruction.kind) ||
                      (instruction.kind == Kind::kForward && program_.rule == UpdateRule::kNone);
    if (!ends) return;
    for (const std::size_t edge : incoming[at(instruction.stage)]) {
      const int slot = buffer[edge * at(program_.micro_batches) + at(instruction.micro_batch)];
      if (slot == kFree) continue;  // both stages are on this device
      const int replica = program_.replica_of(instruction.stage, instruction.micro_batch);
      holder[edge][at(replica)][at(slot)] = kFree;
    }
  });
}

}  // namespace pipetrain
