#include "ops/kernel/broadcast_plan.h"

#include "base/error.h"
#include "ops/kernel/channel_block.h"

namespace pipetrain {
std::int64_t BroadcastPlan::count() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) product *= dim;
  return product;
}

void merge_dimensions(BroadcastPlan& plan) {
  BroadcastPlan merged;
  merged.strides.resize(plan.strides.size());
  for (std::size_t axis = 0; axis < plan.dims.size(); ++axis) {
    if (plan.dims[axis] == 1) continue;
    bool mergeable = !merged.dims.empty();
    for (std::size_t k = 0; mergeable && k < plan.strides.size(); ++k) {
      mergeable = merged.strides[k].back() == plan.strides[k][axis] * plan.dims[axis];
    }
    if (mergeable) {
      merged.dims.back() *= plan.dims[axis];
      for (std::size_t k = 0; k < plan.strides.size(); ++k) {
        merged.strides[k].back() = plan.strides[k][axis];
      }
      continue;
    }
    merged.dims.push_back(plan.dims[axis]);
    for (std::size_t k = 0; k < plan.strides.size(); ++k) {
      merged.strides[k].push_back(plan.strides[k][axis]);
    }
  }
  if (merged.dims.empty()) {
    merged.dims.push_back(1);
    for (auto& strides : merged.strides) strides.push_back(1);
  }
  plan = std::move(merged);
}

BroadcastPlan plan_broadcast(const TensorType& output, std::span<const TensorType> operands) {
  const std::size_t rank = output.shape.rank();
  const std::int64_t block = channel_block(output);
  PT_CHECK(block == 1 || fills_blocks(output.shape, block), kInternal,
           "{} cannot have a blocked layout", output.text());

  BroadcastPlan plan;
  plan.dims = output.shape.dims();
  // A blocked output is walked as (N, C / block, …, block).
  if (block > 1) {
    plan.dims[1] /= block;
    plan.dims.push_back(block);
  }
  for (const TensorType& operand : operands) {
    const bool whole = operand.shape == output.shape;
    PT_CHECK(operand.layout == (whole ? output.layout : Layout::kRowMajor), kInternal,
             "operand {} has another layout than the output {}", operand.text(), output.text());
    if (whole) {
      plan.strides.push_back(Shape(plan.dims).strides());
      continue;
    }
    const std::vector<std::int64_t> own = operand.shape.strides();
    std::vector<std::int64_t> strides(rank, 0);
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (operand.shape[i] != 1) strides[rank - own.size() + i] = own[i];
    }
    if (block > 1) {
      const std::int64_t channel = strides[1];
      strides[1] = channel * block;
      strides.push_back(channel);
    }
    plan.strides.push_back(std::move(strides));
  }
  merge_dimensions(plan);
  return plan;
}

PlanCursor::PlanCursor(const BroadcastPlan& plan, std::size_t dimensions, std::int64_t start)
    : plan_(plan), index_(dimensions), offsets_(plan.strides.size(), 0) {
  for (std::size_t axis = dimensions; axis-- > 0;) {
    const std::int64_t dim = plan.dims[axis];
    index_[axis] = dim ? start % dim : 0;
    start = dim ? start / dim : 0;
    for (std::size_t k = 0; k < offsets_.size(); ++k) {
      offsets_[k] += index_[axis] * plan.strides[k][axis];
    }
  }
}

void PlanCursor::next() {
  for (std::size_t axis = index_.size(); axis-- > 0;) {
    for (std::size_t k = 0; k < offsets_.size(); ++k) offsets_[k] += plan_.strides[k][axis];
    if (++index_[axis] < plan_.dims[axis]) return;
    for (std::size_t k = 0; k < offsets_.size(); ++k) {
      offsets_[k] -= plan_.strides[k][axis] * plan_.dims[axis];
    }
    index_[axis] = 0;
  }
}

}  // namespace pipetrain
