// The generators: from options without gaps to the compute instructions of each device.
#pragma once

#include <vector>

#include "pipeline/schedule/generate.h"

namespace pipetrain::schedule {

using List = std::vector<Instruction>;
using Lists = std::vector<List>;  // [devices]

inline Instruction forward(int stage, int unit) { return {Kind::kForward, stage, unit}; }
inline Instruction backward(int stage, int unit) { return {Kind::kBackward, stage, unit}; }
inline Instruction input_gradient(int stage, int unit) {
  return {Kind::kBackwardInput, stage, unit};
}
inline Instruction weight_gradient(int stage, int unit) {
  return {Kind::kBackwardWeight, stage, unit};
}

/// All forwards, then all backwards (Huang et al., GPipe, 2019). Backwards run first-in first-out,
/// not last-in first-out as in the paper: equally fast, and gradients add in micro-batch order.
Lists gpipe(const ScheduleOptions& options);

/// Warm-up forwards, then one forward and one backward in turn, then the backwards that are left
/// (Narayanan et al., PipeDream, 2019; with a flush: DAPPLE, Megatron-LM).
Lists one_forward_one_backward(const ScheduleOptions& options);

/// Forwards of a chain.
Lists forward_chain(const ScheduleOptions& options);

/// Forwards on any placement: stage after stage for one group of units after the other.
Lists forward_groups(const Program& program);

/// Interleaved 1F1B (Narayanan et al., Megatron-LM, 2021): `chunks` stages on each device, so that
/// the pipeline fills chunk by chunk. Units go in rounds of at least p, the larger rounds first.
Lists interleaved(const ScheduleOptions& options);

/// The same with the backward in two parts, of which the weight gradient fills the end.
Lists interleaved_zero_bubble(const ScheduleOptions& options);

/// Zero bubble with at most K = memory_units units on each device; idle time per device is
/// (p-1)(f+i-w) - (K-p)w for p <= K <= 2p-1. K = p and K = 2p-1 are ZB-H1 and ZB-H2 of Qi et al.,
/// Zero Bubble Pipeline Parallelism, 2024.
Lists zero_bubble(const ScheduleOptions& options);

/// ZB-V of the same authors: memory of 1F1B, no bubble where forward and both halves of the
/// backward take equally long.
Lists zero_bubble_v(const ScheduleOptions& options);

/// V-Min and V-Half (Qi et al., Pipeline Parallelism with Controllable Memory, 2024): a third and
/// a half of the activations of 1F1B, by a pattern that repeats every six slots.
Lists v_min(const ScheduleOptions& options);
Lists v_half(const ScheduleOptions& options);

}  // namespace pipetrain::schedule
