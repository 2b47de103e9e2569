// What generators are written in: the compute instructions of each device, one after the other.
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

/// Forwards on any placement: stage after stage for one group of units after the other.
Lists forward_groups(const Program& program);

}  // namespace pipetrain::schedule
