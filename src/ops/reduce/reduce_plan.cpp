#include "ops/reduce/reduce_plan.h"

#include <algorithm>

#include "base/error.h"
#include "ops/kernel/channel_block.h"

namespace pipetrain {
namespace {

bool contains(const std::vector<std::int64_t>& axes, std::size_t axis) {
  return std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(axis)) != axes.end();
}

}  // namespace

ReducePlan plan_reduction(const TensorType& input, const std::vector<std::int64_t>& axes) {
  struct Axis {
    std::int64_t size;
    bool reduced;
  };
  std::vector<Axis> memory;
  for (std::size_t axis = 0; axis < input.shape.rank(); ++axis) {
    memory.push_back({input.shape[axis], contains(axes, axis)});
  }
  if (input.layout != Layout::kRowMajor) {
    PT_CHECK(memory.size() == 4 && memory[2].reduced && memory[3].reduced, kInternal,
             "{} has a blocked layout, which can only be reduced over height and width",
             input.text());
    const std::int64_t block = channel_block(input);
    memory[1].size /= block;
    memory.push_back({block, memory[1].reduced});
  }

  ReducePlan plan;
  for (const Axis& axis : memory) {
    (axis.reduced ? plan.reduced : plan.kept) *= axis.size;
    if (axis.size == 1) continue;
    if (!plan.dims.empty() && plan.dims.back().reduced == axis.reduced) {
      plan.dims.back().size *= axis.size;
      continue;
    }
    plan.dims.push_back({axis.size, axis.reduced, 0, 0});
  }
  std::int64_t input_stride = 1;
  std::int64_t output_stride = 1;
  for (std::size_t i = plan.dims.size(); i-- > 0;) {
    ReducePlan::Dimension& dim = plan.dims[i];
    dim.input_stride = input_stride;
    input_stride *= dim.size;
    if (dim.reduced) continue;
    dim.output_stride = output_stride;
    output_stride *= dim.size;
  }
  return plan;
}

std::vector<std::int64_t> axes_of_sum_to(const Shape& from, const Shape& to) {
  PT_CHECK(to.rank() <= from.rank() && broadcast(from, to) == from, kModel,
           "{} does not broadcast to {}", to.text(), from.text());
  std::vector<std::int64_t> axes;
  const std::size_t added = from.rank() - to.rank();
  for (std::size_t axis = 0; axis < from.rank(); ++axis) {
    if (axis < added || (to[axis - added] == 1 && from[axis] != 1))
      axes.push_back(static_cast<std::int64_t>(axis));
  }
  return axes;
}

}  // namespace pipetrain
