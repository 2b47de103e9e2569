// How the operands of a broadcasting operator map to the elements of its output: the fewest
// dimensions that describe all of them, with a stride per operand.
//
//   out (8, 12, 64), a (8, 12, 64), b (64)  →  dims [96, 64], strides a [64, 1], b [0, 1]
//   out (8, 3, 5, 5), a alike, b (3, 1, 1)   →  dims [8, 3, 25], strides a [75, 25, 1], b [0, 1, 0]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace pipetrain {

struct BroadcastPlan {
  std::vector<std::int64_t> dims;                  // outermost first, never empty
  std::vector<std::vector<std::int64_t>> strides;  // [operand][dimension]; 0 where it is repeated

  std::int64_t count() const;
};

/// Plans operands that broadcast to `output`. The dims run through the output's memory in order,
/// whatever its layout; an operand has the output's layout if it has the output's shape, otherwise
/// it is row-major.
BroadcastPlan plan_broadcast(const TensorType& output, std::span<const TensorType> operands);

/// Merges adjacent dimensions that are contiguous in every operand, and drops those of size 1.
void merge_dimensions(BroadcastPlan& plan);

/// Steps through the dims of a plan in row-major order, keeping one offset per operand.
class PlanCursor {
 public:
  /// Walks over the first `dimensions` dims, starting at their linear index `start`.
  PlanCursor(const BroadcastPlan& plan, std::size_t dimensions, std::int64_t start = 0);
  std::int64_t offset(std::size_t operand) const { return offsets_[operand]; }
  void next();

 private:
  const BroadcastPlan& plan_;
  std::vector<std::int64_t> index_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace pipetrain
