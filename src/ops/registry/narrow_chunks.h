// How the work of a node is split into chunks: which operators can compute a part of their result
// from a part of their operands.
#pragma once

#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The elements of chunk i of a tensor are `outer` runs, `stride` apart, starting at i * step.
struct Share {
  bool whole = true;    // every chunk reads all of it
  bool summed = false;  // a result to which every chunk adds
  std::int64_t outer = 1, stride = 0;
  std::int64_t step = 0;  // distance between chunks in elements
  std::size_t axis = 0;   // the axis of unit_shape that is split
  Shape unit_shape;       // of one unit; of the tensor if `whole`
};

/// The chunks of a node: `units` units, `units_per_chunk` in a chunk.
struct Chunks {
  std::int64_t units = 1;
  std::int64_t units_per_chunk = 1;
  bool side_by_side = false;  // chunks are small: one thread per chunk
  std::vector<Share> inputs, outputs;
};

/// Depends on the types, the operator and the number of threads only.
Chunks chunks_of(const KernelRequest& request);

}  // namespace pipetrain
