// How the work of a node is shared out to pieces: which operators can compute a part of their
// result from a part of their operands.
#pragma once

#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

/// The elements of piece i of a tensor are `outer` runs, `stride` apart, from i * step on.
struct Share {
  bool whole = true;    // every piece reads all of it
  bool summed = false;  // a result to which every piece adds
  std::int64_t outer = 1, stride = 0;
  std::int64_t step = 0;  // elements between two pieces
  std::size_t axis = 0;   // of unit_shape: the one that counts units
  Shape unit_shape;       // of one unit; of all of it where `whole`
};

/// Pieces of a node: `units` of them, `units_per_piece` together.
struct Pieces {
  std::int64_t units = 1;
  std::int64_t units_per_piece = 1;
  bool side_by_side = false;  // pieces are small: threads take whole ones
  std::vector<Share> inputs, outputs;
};

/// Depends on the types, the operator and the number of threads only.
Pieces pieces_of(const KernelRequest& request);

}  // namespace pipetrain
