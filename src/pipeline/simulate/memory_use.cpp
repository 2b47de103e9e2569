#include "pipeline/simulate/memory_use.h"

#include <algorithm>

#include "base/error.h"
#include "base/index.h"

namespace pipetrain {
namespace {

/// What a device holds, instruction by instruction.
class Ledger {
 public:
  Ledger(const Program& program, const std::vector<StageBytes>& stages)
      : program_(program), stages_(stages), incoming_(stages.size()) {
    PT_CHECK(stages.size() == at(program.stages), kInternal,
             "bytes are given for {} stages, but the schedule has {}", stages.size(),
             program.stages);
    for (const Edge& edge : program.edges) incoming_[at(edge.to_stage)].push_back(&edge);
  }

  /// What is allocated before the first instruction.
  DeviceBytes open(int device) const {
    DeviceBytes held;
    for (int stage = 0; stage < program_.stages; ++stage) {
      const auto& replicas = program_.placement[at(stage)];
      if (std::find(replicas.begin(), replicas.end(), device) == replicas.end()) continue;
      const StageBytes& bytes = stages_[at(stage)];
      held.weights += bytes.weights * program_.versions_per_stage[at(stage)] + bytes.fixed;
    }
    held.peak = held.weights;
    return held;
  }

  /// Adds what an instruction needs.
  void start(const Instruction& instruction, DeviceBytes& held) const {
    if (instruction.kind == Kind::kReceive) {
      const Transfer& transfer = program_.transfers[at(instruction.transfer)];
      held.buffers += program_.edges[at(transfer.edge)].bytes_per_micro_batch;
    }
    if (!is_compute(instruction.kind)) return;
    const StageBytes& bytes = stages_[at(instruction.stage)];
    held.working = bytes.working;
    if (instruction.kind == Kind::kForward || instruction.kind == Kind::kRecompute) {
      held.activations += bytes.activations;
    }
  }

  /// Frees what no later instruction reads.
  void finish(const Instruction& instruction, DeviceBytes& held) const {
    held.working = 0;
    if (!is_compute(instruction.kind)) return;
    const StageBytes& bytes = stages_[at(instruction.stage)];
    const bool trains = program_.rule != UpdateRule::kNone;
    const bool recomputes = static_cast<bool>(program_.recompute[at(instruction.stage)]);
    const std::int64_t after_input =
        bytes.weight_gradient_inputs < 0 ? bytes.activations : bytes.weight_gradient_inputs;
    switch (instruction.kind) {
      case Kind::kForward:
        if (trains && !recomputes) return;
        held.activations -= bytes.activations;
        if (trains) held.activations += bytes.kept_inputs;
        break;
      case Kind::kRecompute:
        held.activations -= bytes.kept_inputs;
        break;
      case Kind::kBackward:
        held.activations -= bytes.activations;
        break;
      case Kind::kBackwardInput:
        held.activations -= bytes.activations - after_input;
        break;
      default:
        held.activations -= after_input;
    }
    const bool last = adds_gradient(instruction.kind) || !trains;
    if (!last || !program_.lowered) return;
    for (const Edge* edge : incoming_[at(instruction.stage)]) {
      const bool received = program_.device_of(edge->from_stage, instruction.micro_batch) !=
                            program_.device_of(edge->to_stage, instruction.micro_batch);
      if (received) held.buffers -= edge->bytes_per_micro_batch;
    }
  }

 private:
  const Program& program_;
  const std::vector<StageBytes>& stages_;
  std::vector<std::vector<const Edge*>> incoming_;  // [stages]
};

std::int64_t total(const DeviceBytes& held) {
  return held.weights + held.activations + held.buffers + held.working;
}

}  // namespace

std::vector<DeviceBytes> peak_bytes(const Program& program, const std::vector<StageBytes>& stages) {
  const Ledger ledger(program, stages);
  std::vector<DeviceBytes> peaks;
  for (std::size_t d = 0; d < program.device.size(); ++d) {
    DeviceBytes held = ledger.open(static_cast<int>(d));
    DeviceBytes peak = held;
    for (std::size_t i = 0; i < program.device[d].size(); ++i) {
      const Instruction& instruction = program.device[d][i];
      ledger.start(instruction, held);
      if (total(held) > peak.peak) {
        peak = held;
        peak.peak = total(held);
        peak.index = static_cast<int>(i);
      }
      ledger.finish(instruction, held);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace pipetrain
