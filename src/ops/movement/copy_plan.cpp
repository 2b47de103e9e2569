#include "ops/movement/copy_plan.h"

namespace pipetrain {
namespace {

CopyPlan finish(const Shape& dims, std::vector<std::int64_t> target,
                std::vector<std::int64_t> source) {
  CopyPlan plan;
  plan.walk.dims = dims.dims();
  plan.walk.strides = {std::move(target), std::move(source)};
  merge_dimensions(plan.walk);
  return plan;
}

/// Strides of a box (sub-tensor), and the offset of its first element.
std::int64_t enter_box(std::vector<std::int64_t>& strides, const std::vector<BoxAxis>& box) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < box.size(); ++axis) {
    offset += box[axis].start * strides[axis];
    strides[axis] *= box[axis].step;
  }
  return offset;
}

}  // namespace

CopyPlan plan_transpose(const Shape& source, const std::vector<std::int64_t>& perm) {
  const std::vector<std::int64_t> own = source.strides();
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  for (const std::int64_t axis : perm) {
    dims.push_back(source[static_cast<std::size_t>(axis)]);
    strides.push_back(own[static_cast<std::size_t>(axis)]);
  }
  const Shape target(std::move(dims));
  return finish(target, target.strides(), std::move(strides));
}

CopyPlan plan_expand(const Shape& source, const Shape& target) {
  const std::vector<std::int64_t> own = source.strides();
  std::vector<std::int64_t> strides(target.rank(), 0);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (source[i] != 1) strides[target.rank() - own.size() + i] = own[i];
  }
  return finish(target, target.strides(), std::move(strides));
}

CopyPlan plan_read_box(const Shape& source, const Shape& target, const std::vector<BoxAxis>& box) {
  std::vector<std::int64_t> strides = source.strides();
  const std::int64_t offset = enter_box(strides, box);
  CopyPlan plan = finish(target, target.strides(), std::move(strides));
  plan.source_offset = offset;
  return plan;
}

CopyPlan plan_write_box(const Shape& source, const Shape& target, const std::vector<BoxAxis>& box) {
  std::vector<std::int64_t> strides = target.strides();
  const std::int64_t offset = enter_box(strides, box);
  CopyPlan plan = finish(source, std::move(strides), source.strides());
  plan.target_offset = offset;
  return plan;
}

}  // namespace pipetrain
