// Operators that are folded on import: shapes, constants, ranges. Only constants remain in the
// graph. NonZero and Unique support constant inputs only.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/kernel/constant_size.h"
#include "ops/kernel/type_switch.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"
#include "tensor/finite.h"

namespace pipetrain {
namespace {

// Floating-point constants become float32, like initializers and inputs.
void set_constant(ImportContext& context, HostTensor tensor, std::size_t output = 0) {
  if (tensor.dtype() == DType::kFloat64) {
    HostTensor narrow(TensorType{DType::kFloat32, tensor.shape()});
    std::ranges::transform(tensor.span<double>(), narrow.span<float>().begin(), double_to_float);
    tensor = std::move(narrow);
  }
  const DType dtype = tensor.dtype();
  const ValueId id = context.builder().constant(std::move(tensor));
  const bool widens = is_float(dtype) && dtype != DType::kFloat32;
  const Attributes to{{"to", static_cast<std::int64_t>(DType::kFloat32)}};
  context.set_output(output, widens ? context.builder().add("Cast", {id}, to) : id);
}

HostTensor int64_list(const std::vector<std::int64_t>& values) {
  return HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(values.size())}, values);
}

// Since opset 15, `start` and `end` select a range of dimensions.
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
    // Integers are not converted: a double would lose the low bits of large ones.
    using Wide = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    const Wide first = *start.view().as<T>();
    const Wide step = *delta.view().as<T>();
    const Wide last = *limit.view().as<T>();
    PT_CHECK(step != 0, kModel, "Range has step 0");
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
  const std::int64_t k = std::clamp(context.attributes().integer("k", 0), -shape[0], shape[1]);
  const DType made = is_float(dtype) ? DType::kFloat32 : dtype;
  const TensorType type{made, shape};
  expect_reasonable(type);
  HostTensor out(type);
  const bool known = visit_number(made == DType::kBool ? DType::kUint8 : made, [&]<class T>(T) {
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      if (row + k >= 0 && row + k < shape[1]) out.view().as<T>()[row * shape[1] + row + k] = T(1);
    }
  });
  PT_CHECK(known, kModel, "EyeLike cannot make {}", name_of(dtype));
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

/// The unique items among `count` runs of `length` values: index of the first occurrence, item of
/// each run, and count of each item. Sorted, or in the order of their first occurrence.
struct Distinct {
  std::vector<std::int64_t> first, inverse, counts;
};

template <class T>
Distinct find_distinct(const std::vector<T>& runs, std::int64_t count, std::int64_t length,
                       bool sorted) {
  const auto run = [&](std::int64_t i) { return runs.begin() + i * length; };
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::lexicographical_compare(run(a), run(a) + length, run(b), run(b) + length);
  });
  std::vector<std::vector<std::int64_t>> groups;
  for (const std::int64_t i : order) {
    const bool again =
        !groups.empty() && std::equal(run(i), run(i) + length, run(groups.back().front()));
    if (!again) groups.emplace_back();
    groups.back().push_back(i);
  }
  if (!sorted) std::sort(groups.begin(), groups.end());
  Distinct out;
  out.inverse.resize(static_cast<std::size_t>(count));
  for (const std::vector<std::int64_t>& group : groups) {
    for (const std::int64_t i : group) {
      out.inverse[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(out.first.size());
    }
    out.first.push_back(group.front());
    out.counts.push_back(static_cast<std::int64_t>(group.size()));
  }
  return out;
}

void import_unique(ImportContext& context) {
  context.expect_outputs(4);
  GraphBuilder& builder = context.builder();
  context.constant(0, "input");
  ValueId x = context.input(0);
  if (!context.attributes().has("axis")) x = builder.reshape(x, {context.type(0).count()});
  const Shape shape = builder.shape(x);
  const auto rank = static_cast<std::int64_t>(shape.rank());
  std::int64_t axis = context.attributes().integer("axis", 0);
  PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} does not exist in {}", axis,
           shape.text());
  if (axis < 0) axis += rank;
  Ints perm{axis};
  for (std::int64_t other = 0; other < rank; ++other) {
    if (other != axis) perm.push_back(other);
  }
  const HostTensor rows = builder.graph()[builder.add("Transpose", {x}, {{"perm", perm}})].data;
  const std::int64_t count = shape[static_cast<std::size_t>(axis)];
  const std::int64_t length = count ? shape.count() / count : 0;
  const bool sorted = context.attributes().integer("sorted", 1) != 0;
  const Distinct found = is_float(rows.dtype())
                             ? find_distinct(rows.to_doubles(), count, length, sorted)
                             : find_distinct(rows.to_int64s(), count, length, sorted);
  const ValueId chosen = builder.constant(int64_list(found.first));
  context.set_output(0, builder.add("Gather", {x, chosen}, {{"axis", axis}}));
  const std::vector<std::int64_t>* lists[] = {&found.first, &found.inverse, &found.counts};
  for (std::size_t i = 1; i < context.output_count(); ++i) {
    set_constant(context, int64_list(*lists[i - 1]), i);
  }
}

// Window functions: cosines of 2 pi n / N, or of 2 pi n / (N - 1) when not periodic.
void import_window_function(ImportContext& context) {
  const std::int64_t size = context.scalar(0, "size");
  expect_reasonable({DType::kFloat32, Shape{size}});
  const bool periodic = context.attributes().integer("periodic", 1) != 0;
  const double period = static_cast<double>(periodic ? size : std::max<std::int64_t>(1, size - 1));
  double weights[3] = {0.5, 0.5, 0};  // Hann
  if (context.op_type() == "HammingWindow") {
    weights[0] = 25.0 / 46;
    weights[1] = 21.0 / 46;
  } else if (context.op_type() == "BlackmanWindow") {
    weights[0] = 0.42;
    weights[2] = 0.08;
  }
  HostTensor out(TensorType{DType::kFloat32, Shape{size}});
  for (std::int64_t n = 0; n < size; ++n) {
    const double angle = 6.283185307179586 * static_cast<double>(n) / period;
    out.view().as<float>()[n] = static_cast<float>(weights[0] - weights[1] * std::cos(angle) +
                                                   weights[2] * std::cos(2 * angle));
  }
  const std::int64_t dtype = context.attributes().integer("output_datatype", 1);
  const bool real = is_float(static_cast<DType>(dtype));
  set_constant(context, out);
  if (!real) {
    context.set_output(0, context.builder().add("Cast", {context.outputs()[0]}, {{"to", dtype}}));
  }
}

constexpr ImportRule kShapeImports[] = {
    {"BlackmanWindow", import_window_function},
    {"Constant", import_constant},
    {"ConstantOfShape", import_constant_of_shape},
    {"EyeLike", import_eye_like},
    {"HammingWindow", import_window_function},
    {"HannWindow", import_window_function},
    {"NonZero", import_non_zero},
    {"Range", import_range},
    {"Shape", import_shape},
    {"Size", import_size},
    {"Unique", import_unique},
};

}  // namespace

const OpFamily& shape_family() {
  static const OpFamily family{"shape", {}, kShapeImports, {}, {}};
  return family;
}

}  // namespace pipetrain
