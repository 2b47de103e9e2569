// How many channels of a feature map are adjacent in memory.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace pipetrain {

/// 1, 8, 16 or all of them. A feature map (N, C, …) is stored as (N, C / block, …, block).
std::int64_t channel_block(const TensorType& type);

/// Whether tensors of this shape can lie in blocks of so many channels: sequences (N, C, L),
/// images (N, C, H, W) and volumes (N, C, D, H, W).
bool fills_blocks(const Shape& shape, std::int64_t block);

}  // namespace pipetrain
