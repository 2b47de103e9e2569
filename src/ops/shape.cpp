// Operators that are known before training: shapes, constants, ranges. They leave nothing in the
// graph but constants. ScatterND, OneHot and NonZero exist for constants only.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/all_ops.h"
#include "ops/registry.h"
#include "ops/type_switch.h"

namespace pipetrain {
namespace {

// Floating-point constants become float32, as stored tensors and inputs do, whatever the file has.
void set_constant(ImportContext& context, HostTensor tensor) {
  const DType dtype = tensor.dtype();
  const ValueId id = context.builder().constant(std::move(tensor));
  const bool widens = is_float(dtype) && dtype != DType::kFloat32;
  const Attributes to{{"to", static_cast<std::int64_t>(DType::kFloat32)}};
  context.set_output(0, widens ? context.builder().add("Cast", {id}, to) : id);
}

HostTensor int64_list(const std::vector<std::int64_t>& values) {
  return HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

// From opset 15 on, `start` and `end` choose a part of the dimensions.
void import_shape(ImportContext& context) {
  const std::vector<std::int64_t> dims = context.type(0).shape.dims();
  const auto rank = static_cast<std::int64_t>(dims.size());
  const auto clamped = [&](std::int64_t axis) {
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const std::int64_t start = clamped(context.attributes().integer("start", 0));
  const std::int64_t end = std::max(start, clamped(context.attributes().integer("end", rank)));
  set_constant(context, int64_list({dims.begin() + start, dims.begin() + end}));
}

void import_size(ImportContext& context) {
  set_constant(context, HostTensor::scalar<std::int64_t>(context.type(0).count()));
}

void import_constant(ImportContext& context) {
  const Attributes& from = context.attributes();
  if (from.has("value")) return set_constant(context, from.tensor("value"));
  if (from.has("value_float")) {
    return set_constant(context,
                        HostTensor::scalar<float>(static_cast<float>(from.real("value_float"))));
  }
  if (from.has("value_int"))
    return set_constant(context, HostTensor::scalar<std::int64_t>(from.integer("value_int")));
  if (from.has("value_ints")) return set_constant(context, int64_list(from.ints("value_ints")));
  PT_CHECK(from.has("value_floats"), kModel,
           "Constant has none of value, value_float(s), value_int(s)");
  const Reals reals = from.reals("value_floats", {});
  const std::vector<float> values(reals.begin(), reals.end());
  set_constant(context,
               HostTensor::of<float>(Shape{static_cast<std::int64_t>(values.size())}, values));
}

/// Refuses a tensor that no memory could hold.
void expect_reasonable(const TensorType& type) {
  constexpr double kMostElements = 1e9;
  double count = 1;
  for (const std::int64_t dim : type.shape) {
    PT_CHECK(dim >= 0, kModel, "a dimension is negative in {}", type.shape.text());
    count *= static_cast<double>(dim);
  }
  PT_CHECK(count <= kMostElements, kModel, "{} is too large for a constant", type.text());
}

void import_constant_of_shape(ImportContext& context) {
  const HostTensor value = context.attributes().has("value") ? context.attributes().tensor("value")
                                                             : HostTensor::scalar<float>(0);
  PT_CHECK(value.type().count() == 1, kModel,
           "the value of ConstantOfShape must be one element, got {}", value.type().text());
  const TensorType type{value.dtype(), Shape(context.constant(0, "shape").to_int64s())};
  expect_reasonable(type);
  HostTensor out(type);
  visit_size(type.dtype, [&]<class T>(T) {
    std::fill_n(out.view().as<T>(), type.count(), *value.view().as<T>());
  });
  set_constant(context, std::move(out));
}

void import_range(ImportContext& context) {
  const HostTensor start = context.constant(0, "start");
  const HostTensor limit = context.constant(1, "limit");
  const HostTensor delta = context.constant(2, "delta");
  HostTensor out;
  const bool known = visit_number(start.dtype(), [&]<class T>(T) {
    // Integers stay integers: a double would lose the low bits of large ones.
    using Wide = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    const Wide first = *start.view().as<T>();
    const Wide step = *delta.view().as<T>();
    const Wide last = *limit.view().as<T>();
    PT_CHECK(step != 0, kModel, "Range cannot advance by 0");
    const double steps = std::ceil((static_cast<double>(last) - static_cast<double>(first)) /
                                   static_cast<double>(step));
    const TensorType type{start.dtype(),
                          Shape{static_cast<std::int64_t>(std::clamp(steps, 0.0, 1e12))}};
    expect_reasonable(type);
    out = HostTensor(type);
    for (std::int64_t i = 0; i < type.count(); ++i) {
      out.view().as<T>()[i] = static_cast<T>(first + static_cast<Wide>(i) * step);
    }
  });
  PT_CHECK(known && limit.dtype() == start.dtype() && delta.dtype() == start.dtype(), kModel,
           "Range over {}, {} and {} is not supported", name_of(start.dtype()),
           name_of(limit.dtype()), name_of(delta.dtype()));
  set_constant(context, std::move(out));
}

void import_eye_like(ImportContext& context) {
  const Shape shape = context.type(0).shape;
  PT_CHECK(shape.rank() == 2, kModel, "EyeLike needs a matrix, got {}", shape.text());
  const auto dtype = static_cast<DType>(
      context.attributes().integer("dtype", static_cast<std::int64_t>(context.type(0).dtype)));
  const std::int64_t k = context.attributes().integer("k", 0);
  HostTensor out(TensorType{dtype, shape});
  const bool known = visit_number(dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      if (row + k >= 0 && row + k < shape[1]) out.view().as<T>()[row * shape[1] + row + k] = T(1);
    }
  });
  PT_CHECK(known, kModel, "EyeLike cannot make {}", name_of(dtype));
  set_constant(context, std::move(out));
}

/// Copies `data` and writes `updates` where `indices` (…, depth) point; for constants.
void import_scatter_nd(ImportContext& context) {
  const HostTensor data = context.constant(0, "data");
  const HostTensor indices = context.constant(1, "indices");
  const HostTensor updates = context.constant(2, "updates");
  PT_CHECK(context.attributes().text("reduction", "none") == "none", kModel,
           "ScatterND with a reduction is not supported");
  const Shape& shape = data.shape();
  const std::size_t index_rank = indices.shape().rank();
  PT_CHECK(index_rank > 0, kModel, "the indices of ScatterND need an axis");
  const auto depth = static_cast<std::size_t>(indices.shape()[index_rank - 1]);
  PT_CHECK(depth <= shape.rank() && updates.dtype() == data.dtype(), kModel,
           "ScatterND cannot write {} into {}", updates.type().text(), data.type().text());
  const std::int64_t run = shape.count(depth, shape.rank());
  const std::int64_t writes = indices.shape().count(0, index_rank - 1);
  PT_CHECK(updates.type().count() == writes * run, kModel,
           "ScatterND has {} elements for {} places", updates.type().count(), writes * run);
  const std::vector<std::int64_t> at = indices.to_int64s();
  const std::vector<std::int64_t> strides = shape.strides();
  HostTensor out(data.type());
  visit_size(data.dtype(), [&]<class T>(T) {
    T* to = out.view().as<T>();
    std::copy_n(data.view().as<T>(), data.type().count(), to);
    for (std::int64_t write = 0; write < writes; ++write) {
      std::int64_t offset = 0;
      for (std::size_t axis = 0; axis < depth; ++axis) {
        std::int64_t index = at[static_cast<std::size_t>(write) * depth + axis];
        if (index < 0) index += shape[axis];
        PT_CHECK(index >= 0 && index < shape[axis], kModel, "ScatterND index {} leaves {}", index,
                 shape.text());
        offset += index * strides[axis];
      }
      std::copy_n(updates.view().as<T>() + write * run, run, to + offset);
    }
  });
  set_constant(context, std::move(out));
}

void import_one_hot(ImportContext& context) {
  const std::vector<std::int64_t> indices = context.constant(0, "indices").to_int64s();
  const std::int64_t depth = context.constant(1, "depth").to_int64s().at(0);
  const HostTensor values = context.constant(2, "values");
  PT_CHECK(values.type().count() == 2 && depth > 0, kModel,
           "OneHot needs two values and a positive depth");
  std::vector<std::int64_t> dims = context.type(0).shape.dims();
  const auto rank = static_cast<std::int64_t>(dims.size()) + 1;
  std::int64_t axis = context.attributes().integer("axis", -1);
  if (axis < 0) axis += rank;
  PT_CHECK(axis >= 0 && axis < rank, kModel, "axis {} does not exist in rank {}", axis, rank);
  const std::int64_t inner =
      context.type(0).shape.count(static_cast<std::size_t>(axis), dims.size());
  dims.insert(dims.begin() + axis, depth);
  const TensorType type{values.dtype(), Shape(dims)};
  expect_reasonable(type);
  HostTensor out(type);
  visit_size(type.dtype, [&]<class T>(T) {
    const T* choice = values.view().as<T>();
    std::fill_n(out.view().as<T>(), type.count(), choice[0]);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t at = indices[i] < 0 ? indices[i] + depth : indices[i];
      if (at < 0 || at >= depth) continue;
      const auto position = static_cast<std::int64_t>(i);
      out.view().as<T>()[(position / inner * depth + at) * inner + position % inner] = choice[1];
    }
  });
  set_constant(context, std::move(out));
}

void import_non_zero(ImportContext& context) {
  const std::vector<double> values = context.constant(0, "input").to_doubles();
  const std::vector<std::int64_t> strides = context.type(0).shape.strides();
  const Shape shape = context.type(0).shape;
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) found.push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::int64_t> out;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    for (const std::int64_t at : found) out.push_back(at / strides[axis] % shape[axis]);
  }
  set_constant(context, HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(shape.rank()),
                                                           static_cast<std::int64_t>(found.size())},
                                                     out));
}

constexpr ImportRule kImports[] = {
    {"Constant", import_constant},
    {"ConstantOfShape", import_constant_of_shape},
    {"EyeLike", import_eye_like},
    {"NonZero", import_non_zero},
    {"OneHot", import_one_hot},
    {"Range", import_range},
    {"ScatterND", import_scatter_nd},
    {"Shape", import_shape},
    {"Size", import_size},
};

}  // namespace

const OpFamily& shape_family() {
  static const OpFamily family{"shape", {}, kImports, {}, {}};
  return family;
}

}  // namespace pipetrain
