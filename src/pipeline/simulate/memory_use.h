// How many bytes each device holds at each point of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/program/program.h"

namespace pipetrain {

/// What one replica of a stage holds, in bytes; activations for one full micro-batch.
struct StageBytes {
  /// From the forward (with recompute: from the recompute) to the weight gradient.
  std::int64_t activations = 0;
  /// The part that the weight gradient still reads after the input gradient; -1: all.
  std::int64_t weight_gradient_inputs = -1;
  /// With recompute: what is kept from the forward to the recompute beside receive buffers.
  std::int64_t kept_inputs = 0;
  std::int64_t working = 0;  // while one of the stage's compute instructions runs
  std::int64_t weights = 0;  // one copy; there are versions_per_stage of them
  std::int64_t fixed = 0;    // gradients, optimizer state, constants
};

/// The peak memory of a device, and its composition at that point.
struct DeviceBytes {
  std::int64_t peak = 0;         // sum of the four
  std::int64_t weights = 0;      // all copies, and what is fixed
  std::int64_t activations = 0;  // with kept inputs
  std::int64_t buffers = 0;      // received and still read; bytes_per_micro_batch of the edges
  std::int64_t working = 0;
  int index = -1;  // the instruction, into Program::device; -1: no instruction needs memory
};

/// Returns the peak of each device, in list order: [devices]. A receive buffer counts from its
/// receive to the last compute instruction of its micro-batch. O(instructions). Throws
/// Error(kInternal) where bytes are not given for all stages.
std::vector<DeviceBytes> peak_bytes(const Program& program, const std::vector<StageBytes>& stages);

}  // namespace pipetrain
