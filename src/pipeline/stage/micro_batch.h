// A micro-batch on its way through one stage, and what comes out at the loss.
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
  std::byte* forward_out = nullptr;     // set by the stage: where its handed-on values lie
  std::byte* gradient_out = nullptr;    // and the gradients handed back
  int buffers = -1;                     // on a device: DeviceBuffers of what comes from elsewhere
  bool completes = false;               // the last one that this replica adds before an update
  std::vector<const std::byte*> table;  // inputs, label, received values: see Stage::table_size
  std::uint64_t seed = 0, step = 0;
  std::int64_t first_sample = 0;
  float loss_scale = 1;
};

/// Loss and right answers of a micro-batch.
struct LossResults {
  double loss_sum = 0;
  double correct = 0;
};

}  // namespace pipetrain
