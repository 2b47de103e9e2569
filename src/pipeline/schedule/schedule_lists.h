// Helpers for generators: the lists of compute instructions of each device.
#pragma once

#include <vector>

#include "pipeline/schedule/generate.h"

namespace pipetrain::schedule {

using List = std::vector<Instruction>;
using Lists = std::vector<List>;  // [devices]

inline Instruction forward(int stage, int micro_batch) {
  return {Kind::kForward, stage, micro_batch};
}
inline Instruction backward(int stage, int micro_batch) {
  return {Kind::kBackward, stage, micro_batch};
}
inline Instruction input_gradient(int stage, int micro_batch) {
  return {Kind::kBackwardInput, stage, micro_batch};
}
inline Instruction weight_gradient(int stage, int micro_batch) {
  return {Kind::kBackwardWeight, stage, micro_batch};
}

/// Forwards on any placement: stage after stage for one group of micro-batches after the other.
Lists forward_groups(const Program& program);

}  // namespace pipetrain::schedule
