// Inputs for measuring kernels: random values in valid ranges.
#pragma once

#include <vector>

#include "passes/training_graph.h"

namespace pipetrain {

/// Contents for all values of a graph that nodes read and none computes.
class SampleData {
 public:
  explicit SampleData(const TrainingGraph& training);

  /// Constants, parameters and states are themselves; labels are classes, indices are below the
  /// rows that they index. Empty for all other values.
  const HostTensor& content(ValueId id) const {
    return contents_[static_cast<std::size_t>(id.index)];
  }

 private:
  std::vector<HostTensor> contents_;  // by value
};

/// What an input of a node may be filled with, alone: the value's own content where the kernel goes
/// by it (constants, numbers), else random numbers, of which there may be fewer than the value has:
/// they repeat. Indices are below what they index, as far as the graph says so.
HostTensor sample_of(const TrainingGraph& training, ValueId id);

}  // namespace pipetrain
