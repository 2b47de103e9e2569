// The state of a stage between steps, as saved in a checkpoint. Names are those of the model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "tensor/tensor.h"

namespace pipetrain {

struct StageContent {
  std::map<std::string, HostTensor> weights;    // the newest parameters, and running statistics
  std::map<std::string, HostTensor> states[2];  // the optimizer's, by slot and parameter
  std::map<std::string, HostTensor> averages;   // moving averages of the parameters
  /// Asynchronous rounds: older versions of the parameters that micro-batches in flight may still
  /// read, by their number in the round.
  std::map<int, std::map<std::string, HostTensor>> stashed;
  std::int64_t updates = 0;  // of asynchronous rules since the run began
};

/// Adds what another replica of the stage has.
inline void merge(StageContent part, StageContent& into) {
  into.weights.merge(part.weights);
  for (int slot = 0; slot < 2; ++slot) into.states[slot].merge(part.states[slot]);
  into.averages.merge(part.averages);
  into.stashed.merge(part.stashed);
  into.updates = std::max(into.updates, part.updates);
}

}  // namespace pipetrain
