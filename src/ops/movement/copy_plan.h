// Strided copies: shared by Transpose, Slice, Concat, Split, Expand and Pad. A copy is described by
// the fewest dimensions that address both tensors; operand 0 of the plan is the target, operand 1
// the source.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/kernel/broadcast_plan.h"
#include "ops/kernel/kernel.h"

namespace pipetrain {

struct CopyPlan {
  BroadcastPlan
      walk;  // operand 0: target, operand 1: source; strides may be 0 or negative in the source
  std::int64_t target_offset = 0;
  std::int64_t source_offset = 0;
};

/// The position of a box along one axis of a larger tensor.
struct BoxAxis {
  std::int64_t start = 0;
  std::int64_t step = 1;
};

/// Axis i of the target is axis perm[i] of the source.
CopyPlan plan_transpose(const Shape& source, const std::vector<std::int64_t>& perm);
CopyPlan plan_expand(const Shape& source, const Shape& target);
/// Reads the box of shape `target` out of `source`.
CopyPlan plan_read_box(const Shape& source, const Shape& target, const std::vector<BoxAxis>& box);
/// Writes `source` as a box into `target`.
CopyPlan plan_write_box(const Shape& source, const Shape& target, const std::vector<BoxAxis>& box);

}  // namespace pipetrain
