// What a device does to name the first value that is not finite: it looks at what its passes hand
// on and add up, and where something is not finite, searches in the pass.
#include <cmath>
#include <optional>
#include <utility>

#include "pipeline/runtime/device_worker.h"

namespace pipetrain {

/// Searches in the passes of a micro-batch; false: it began elsewhere.
bool DeviceWorker::find_nonfinite(const Instruction& instruction, StageReplica& replica,
                                  bool backward) {
  std::optional<NonfiniteValue> found = replica.stage->find_nonfinite(
      round_.micro_batch(instruction.stage, instruction.micro_batch), backward);
  if (!found) return false;
  round_.nonfinite.found(std::move(*found));
  return true;
}

void DeviceWorker::look_at_sent(const Instruction& instruction, StageReplica& replica,
                                const std::byte* base) {
  const bool backward = instruction.kind != Kind::kForward;
  if (!round_.finds_nonfinite || !base || !round_.nonfinite.wants(instruction.stage, backward))
    return;
  const int variant = round_.micro_batch(instruction.stage, instruction.micro_batch).variant;
  if (replica.stage->sends_finite(variant, base, backward)) return;
  if (!find_nonfinite(instruction, replica, backward))
    round_.nonfinite.ignore(instruction.stage, backward);
}

void DeviceWorker::look_at_loss(const Instruction& instruction, StageReplica& replica,
                                double loss_sum) {
  if (!round_.finds_nonfinite) return;
  if (std::isfinite(loss_sum)) {
    // No schedule reads weights that are more updates old than twice its stages.
    round_.nonfinite.loss_is_finite(
        replica.stage->place_of(round_.micro_batch(instruction.stage, instruction.micro_batch)),
        2 * static_cast<std::uint64_t>(setup_.stages()));
  } else if (round_.nonfinite.wants(instruction.stage, /*backward=*/false)) {
    find_nonfinite(instruction, replica, /*backward=*/false);
  }
}

/// After a backward pass, or after the reduce of several replicas, which add up together.
/// `flushed`: whether no other device still computes gradients of the stage.
void DeviceWorker::look_at_gradients(const Instruction& instruction, StageReplica& replica,
                                     bool flushed) {
  const bool reduced = instruction.kind == Kind::kReduce;
  bool completes = true;
  if (!reduced) {
    const StageMicroBatch& last = round_.micro_batch(instruction.stage, instruction.micro_batch);
    step_ = last.step;
    completes = last.completes;
  }
  if (!round_.finds_nonfinite || !round_.nonfinite.wants(instruction.stage, /*backward=*/true) ||
      (!reduced && round_.program->replicas(instruction.stage) > 1))
    return;
  // One without a micro-batch in the step does not know which step that is.
  if (reduced && !replica.accumulating) return;
  const bool all = completes && (flushed || !replica.stage->defers_gradients());
  if (completes && !all) replica.deferred_step = step_;
  std::optional<NonfiniteValue> gradient = replica.stage->nonfinite_gradient(all);
  if (!gradient || (!reduced && find_nonfinite(instruction, replica, /*backward=*/true))) return;
  if (!completes) return;
  gradient->place = PassPlace{.step = step_};
  round_.nonfinite.found(std::move(*gradient));
}

/// After a flush: at batched gradients that were not there yet when the stage completed a step.
void DeviceWorker::look_at_deferred(StageReplica& replica, int stage) {
  const std::optional<std::uint64_t> step = std::exchange(replica.deferred_step, std::nullopt);
  if (!step || !round_.nonfinite.wants(stage, /*backward=*/true)) return;
  std::optional<NonfiniteValue> gradient = replica.stage->nonfinite_gradient(/*all=*/true);
  if (!gradient) return;
  gradient->place = PassPlace{.step = *step};
  round_.nonfinite.found(std::move(*gradient));
}

}  // namespace pipetrain
