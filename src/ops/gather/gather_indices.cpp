// Geometry of gathers, and conversion of indices to offsets: negative ones count from the end, all
// are checked.
#include "base/error.h"
#include "ops/gather/gather.h"

namespace pipetrain {
namespace {

constexpr std::size_t kMostAxes = 16;

std::int64_t checked_axis(std::int64_t axis, const Shape& shape, std::string_view op) {
  const auto rank = static_cast<std::int64_t>(shape.rank());
  PT_CHECK(axis >= -rank && axis < rank, kModel, "{} axis {} is outside a tensor of shape {}", op,
           axis, shape.text());
  return axis < 0 ? axis + rank : axis;
}

std::int64_t index_at(const Tensor& indices, std::int64_t position) {
  return indices.type.dtype == DType::kInt32 ? indices.as<std::int32_t>()[position]
                                             : indices.as<std::int64_t>()[position];
}

std::int64_t checked_index(std::int64_t index, std::int64_t extent, std::int64_t position) {
  PT_CHECK(index >= -extent && index < extent, kData,
           "index {} at position {} is outside an axis of {} entries", index, position, extent);
  return index < 0 ? index + extent : index;
}

SliceGather along_axis(std::int64_t axis, const Shape& data, const Shape& indices) {
  const auto at = static_cast<std::size_t>(checked_axis(axis, data, "Gather"));
  SliceGather out;
  out.outer = data.count(0, at);
  out.count = indices.count();
  out.shared = true;
  out.extents = {data[at]};
  out.slice = data.count(at + 1, data.rank());
  std::vector<std::int64_t> dims(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(at));
  dims.insert(dims.end(), indices.begin(), indices.end());
  dims.insert(dims.end(), data.begin() + static_cast<std::ptrdiff_t>(at) + 1, data.end());
  out.result = Shape(std::move(dims));
  return out;
}

SliceGather along_tuples(std::int64_t batch_dims, const Shape& data, const Shape& indices) {
  PT_CHECK(indices.rank() >= 1 && batch_dims >= 0 &&
               batch_dims < static_cast<std::int64_t>(indices.rank()),
           kModel, "GatherND with {} batch axes needs indices of a higher rank, got {}", batch_dims,
           indices.text());
  const auto batch = static_cast<std::size_t>(batch_dims);
  const std::size_t last = indices.rank() - 1;
  const auto width = static_cast<std::size_t>(indices[last]);
  PT_CHECK(indices[last] >= 1 && batch + width <= data.rank(), kModel,
           "GatherND indices {} do not fit data {} with {} batch axes", indices.text(), data.text(),
           batch);
  for (std::size_t axis = 0; axis < batch; ++axis) {
    PT_CHECK(data[axis] == indices[axis], kModel,
             "GatherND data {} and indices {} differ in batch axis {}", data.text(), indices.text(),
             axis);
  }
  SliceGather out;
  out.outer = data.count(0, batch);
  out.count = indices.count(batch, last);
  const auto first = data.begin() + static_cast<std::ptrdiff_t>(batch);
  out.extents.assign(first, first + static_cast<std::ptrdiff_t>(width));
  out.slice = data.count(batch + width, data.rank());
  std::vector<std::int64_t> dims(indices.begin(), indices.end() - 1);
  dims.insert(dims.end(), first + static_cast<std::ptrdiff_t>(width), data.end());
  out.result = Shape(std::move(dims));
  return out;
}

}  // namespace

std::int64_t SliceGather::rows() const {
  std::int64_t out = 1;
  for (const std::int64_t extent : extents) out *= extent;
  return out;
}

SliceGather slice_gather(std::string_view op, const Attributes& attributes, const Shape& data,
                         const Shape& indices) {
  if (op == "Gather") return along_axis(attributes.integer("axis", 0), data, indices);
  return along_tuples(attributes.integer("batch_dims", 0), data, indices);
}

void resolve_rows(const SliceGather& gather, const Tensor& indices, std::int64_t* rows) {
  const auto width = static_cast<std::int64_t>(gather.extents.size());
  for (std::int64_t tuple = 0; tuple < gather.tuples(); ++tuple) {
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t extent = gather.extents[static_cast<std::size_t>(i)];
      const std::int64_t position = tuple * width + i;
      row = row * extent + checked_index(index_at(indices, position), extent, position);
    }
    rows[tuple] = row;
  }
}

ElementGather element_gather(const Attributes& attributes, const Shape& data,
                             const Shape& indices) {
  PT_CHECK(data.rank() == indices.rank() && data.rank() >= 1, kModel,
           "data {} and indices {} must have one rank", data.text(), indices.text());
  const std::int64_t axis = checked_axis(attributes.integer("axis", 0), data, "GatherElements");
  for (std::size_t i = 0; i < data.rank(); ++i) {
    PT_CHECK(static_cast<std::int64_t>(i) == axis || indices[i] <= data[i], kModel,
             "indices {} reach beyond data {} in axis {}", indices.text(), data.text(), i);
  }
  PT_CHECK(data.rank() <= kMostAxes, kModel, "GatherElements of more than {} axes: {}", kMostAxes,
           data.text());
  return {axis, data, indices, data.strides()};
}

std::int64_t resolve_elements(const ElementGather& gather, const Tensor& indices,
                              std::int64_t first, std::int64_t last, std::int64_t* offsets) {
  const auto axis = static_cast<std::size_t>(gather.axis);
  const std::int64_t extent = gather.data[axis];
  std::int64_t at[kMostAxes] = {};
  std::int64_t line = 0;  // offset of the line of the position
  for (std::size_t i = gather.indices.rank(), rest = static_cast<std::size_t>(first); i-- > 0;) {
    const auto size = static_cast<std::size_t>(gather.indices[i]);
    if (size == 0) return last;
    at[i] = static_cast<std::int64_t>(rest % size);
    rest /= size;
    line += i == axis ? 0 : at[i] * gather.strides[i];
  }
  for (std::int64_t position = first; position < last; ++position) {
    const std::int64_t index = index_at(indices, position);
    if (index < -extent || index >= extent) return position;
    offsets[position] = line + (index < 0 ? index + extent : index) * gather.strides[axis];
    for (std::size_t i = gather.indices.rank(); i-- > 0;) {
      const std::int64_t step = i == axis ? 0 : gather.strides[i];
      line += step;
      if (++at[i] < gather.indices[i]) break;
      line -= step * gather.indices[i];
      at[i] = 0;
    }
  }
  return last;
}

void check_elements(const ElementGather& gather, const Tensor& indices, std::int64_t position) {
  if (position < indices.count())
    checked_index(index_at(indices, position), gather.data[static_cast<std::size_t>(gather.axis)],
                  position);
}

void resolve_elements(const ElementGather& gather, const Tensor& indices, std::int64_t* offsets) {
  check_elements(gather, indices, resolve_elements(gather, indices, 0, indices.count(), offsets));
}

}  // namespace pipetrain
