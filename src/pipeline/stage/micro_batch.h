// The state of a micro-batch in one stage, and the results of the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipetrain {

/// One micro-batch as a stage sees it.
struct StageMicroBatch {
  int variant = 0;
  int slot = 0;
  int version_copy = 0;                 // which copy of the weights
  std::byte* forward_out = nullptr;     // set by the stage: its outputs for later stages
  std::byte* gradient_out = nullptr;    // its gradients for earlier stages
  int buffers = -1;                     // on a GPU: index of its DeviceBuffers
  bool completes = false;               // the last one of this replica before an update
  int leaf = 0;                         // of its replica, in the tree of sums
  std::uint64_t leaves = 1;             // bits of those that have gradients, with this one
  std::vector<const std::byte*> table;  // inputs, label, received values: see Stage::table_size
  std::uint64_t seed = 0, step = 0;
  std::int64_t first_sample = 0;
  float loss_scale = 1;
};

/// Loss and correct predictions of a micro-batch.
struct LossResults {
  double loss_sum = 0;
  double correct = 0;
};

}  // namespace pipetrain
