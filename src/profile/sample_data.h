// Data to feed kernels with while they are measured: random, but in the range that their meaning
// demands.
#pragma once

#include <map>

#include "ops/registry.h"
#include "passes/training_graph.h"

namespace pipetrain {

class SampleData {
 public:
  SampleData(const TrainingGraph& training, Backend backend);

  /// Content for one input of `node`. Constants, parameters and states are themselves; labels are
  /// classes, indices are below the rows that they index; integers that are computed are computed.
  HostTensor input(const Node& node, std::size_t index);

 private:
  HostTensor integers(ValueId id, int depth);
  HostTensor computed(ValueId id, int depth);

  const TrainingGraph& training_;
  Backend backend_;
  std::map<ValueId, HostTensor> made_;
};

}  // namespace pipetrain
