// Resize and Upsample: one axis is resampled at a time.
//
// Resample{axis, size, scale, mode, coordinates, nearest, cubic, exclude_outside, antialias}:
// ONNX's Resize along one axis to `size` elements. ResampleGrad has `shape`, the input's shape, in
// addition.
#include "ops/resample/resize.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/read_budget.h"
#include "ops/kernel/constant_size.h"
#include "ops/registry/all_ops.h"

namespace pipetrain {
namespace {

TensorType resampled(const Attributes& attributes, const TensorType& x) {
  const std::int64_t axis = attributes.integer("axis");
  PT_CHECK(axis >= 0 && axis < static_cast<std::int64_t>(x.shape.rank()), kModel,
           "axis {} does not exist in {}", axis, x.text());
  PT_CHECK(x.layout == Layout::kRowMajor, kInternal, "{} must be row-major here", x.text());
  TensorType out = x;
  out.shape[static_cast<std::size_t>(axis)] = attributes.integer("size");
  return out;
}

void infer_resample(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1 && is_float(context.inputs[0].dtype), kModel,
           "expected one float input");
  context.outputs = {resampled(context.attributes, context.inputs[0])};
}

void infer_resample_grad(InferContext& context) {
  PT_CHECK(context.inputs.size() == 1 && is_float(context.inputs[0].dtype), kModel,
           "expected one float input");
  const TensorType out{context.inputs[0].dtype, Shape(context.attributes.ints("shape"))};
  PT_CHECK(resampled(context.attributes, out) == context.inputs[0], kModel,
           "{} is not the gradient of resampling {}", context.inputs[0].text(), out.text());
  context.outputs = {out};
}

void resample_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  Attributes attributes = context.attributes();
  attributes.set("shape", context.input_type(0).shape.dims());
  context.set_input_gradient(
      0, context.builder().add("ResampleGrad", {context.output_gradient()}, std::move(attributes)));
}

Cost two_terms(const Attributes&, std::span<const TensorType> inputs,
               std::span<const TensorType> outputs) {
  return {4.0 * static_cast<double>(std::max(inputs[0].count(), outputs[0].count()))};
}

constexpr OpTraits kResampleTraits = {KernelKind::kElementwise,
                                      {PrecisionRule::kFirst},
                                      LayoutRule::kRowMajor,
                                      {ChunkRule::kWhole},
                                      Fusion::kNever};

constexpr OpDef kResizeOps[] = {
    {"Resample", kPlain, kResampleTraits, infer_resample, resample_gradient, two_terms},
    {"ResampleGrad", kPlain, kResampleTraits, infer_resample_grad, nullptr, two_terms},
};

// --- import ---

constexpr const char* kSimple = "simple";  // how nearest elements are found before opset 11

/// The scale and size of each axis.
struct Target {
  std::vector<double> scales;
  std::vector<std::int64_t> sizes;
};

/// The range of each axis that tf_crop_and_resize reads, as fractions of its length.
struct Crop {
  std::vector<double> start, end;
};

/// The size that `length` becomes, as ONNX Runtime and PyTorch compute it: 10 times 0.7 is 7 in
/// float32, but less in double, since 0.7 is less as a float.
std::int64_t scaled_size(double length, double scale) {
  return static_cast<std::int64_t>(
      std::floor(static_cast<float>(length) * static_cast<float>(scale)));
}

Target target_from_scales(const Shape& shape, const std::vector<std::int64_t>& axes,
                          const HostTensor& scales) {
  const std::vector<double> given = scales.to_doubles();
  PT_CHECK(given.size() == axes.size(), kModel, "Resize has {} scales for {} axes", given.size(),
           axes.size());
  Target target{std::vector<double>(shape.rank(), 1.0), shape.dims()};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    target.scales[axis] = given[i];
    target.sizes[axis] = scaled_size(static_cast<double>(shape[axis]), given[i]);
  }
  return target;
}

Target target_from_sizes(const Shape& shape, const std::vector<std::int64_t>& axes,
                         const HostTensor& sizes, const std::string& policy) {
  const std::vector<std::int64_t> given = sizes.to_int64s();
  PT_CHECK(given.size() == axes.size(), kModel, "Resize has {} sizes for {} axes", given.size(),
           axes.size());
  Target target{std::vector<double>(shape.rank(), 1.0), shape.dims()};
  double common = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const double scale = static_cast<double>(given[i]) / static_cast<double>(shape[axis]);
    target.scales[axis] = scale;
    target.sizes[axis] = given[i];
    common = i == 0 ? scale
                    : (policy == "not_larger" ? std::min(common, scale) : std::max(common, scale));
  }
  if (policy == "stretch") return target;
  PT_CHECK(policy == "not_larger" || policy == "not_smaller", kModel,
           "Resize has no keep_aspect_ratio_policy \"{}\"", printable(policy));
  for (const std::int64_t each : axes) {
    const auto axis = static_cast<std::size_t>(each);
    target.scales[axis] = common;
    target.sizes[axis] = std::llround(common * static_cast<double>(shape[axis]));
  }
  return target;
}

void resize_axes(ImportContext& context, const Target& target, const Attributes& sampling) {
  const Shape shape = context.type(0).shape;
  ValueId x = context.input(0);
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    if (target.scales[axis] == 1 && target.sizes[axis] == shape[axis]) continue;
    PT_CHECK(target.sizes[axis] > 0, kModel, "Resize reduces axis {} of {} to size 0", axis,
             shape.text());
    Attributes attributes = sampling;
    attributes.set("axis", static_cast<std::int64_t>(axis));
    attributes.set("size", target.sizes[axis]);
    attributes.set("scale", target.scales[axis]);
    // Before opset 11; the node cases of ONNX 1.5 and ONNX Runtime round up where an axis shrinks.
    if (sampling.text("nearest", "") == kSimple)
      attributes.set("nearest", std::string(target.scales[axis] < 1 ? "ceil" : "floor"));
    check_resampling(attributes, shape[axis]);
    x = context.builder().add("Resample", {x}, std::move(attributes));
  }
  context.set_output(0, x);
}

/// The crop of each axis: roi lists the starts of `axes`, then their ends.
Crop crop_of(ImportContext& context, const std::vector<std::int64_t>& axes) {
  const std::size_t rank = context.type(0).shape.rank();
  const std::vector<double> roi = context.constant(1, "roi").to_doubles();
  PT_CHECK(roi.size() == 2 * axes.size(), kModel, "Resize has {} roi values for {} axes",
           roi.size(), axes.size());
  Crop crop{std::vector<double>(rank, 0), std::vector<double>(rank, 1)};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    crop.start[static_cast<std::size_t>(axes[i])] = roi[i];
    crop.end[static_cast<std::size_t>(axes[i])] = roi[i + axes.size()];
  }
  return crop;
}

// Resampling gives 0 at positions outside the image; the extrapolation value is added there.
void crop_axes(ImportContext& context, const Target& target, const Crop& crop,
               const Attributes& sampling) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  ValueId x = context.input(0);
  ValueId inside = builder.scalar(1);
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    const bool whole = crop.start[axis] == 0 && crop.end[axis] == 1;
    if (whole && target.sizes[axis] == shape[axis]) continue;
    PT_CHECK(target.sizes[axis] > 0, kModel, "Resize reduces axis {} of {} to size 0", axis,
             shape.text());
    expect_reasonable({DType::kInt64, Shape{target.sizes[axis]}});
    ReadBudget::charge(sizeof(std::int64_t) * static_cast<std::size_t>(target.sizes[axis]));
    Attributes attributes = sampling;
    attributes.set("axis", static_cast<std::int64_t>(axis));
    attributes.set("size", target.sizes[axis]);
    attributes.set("scale", target.scales[axis]);
    attributes.set("start", crop.start[axis]);
    attributes.set("end", crop.end[axis]);
    const std::vector<float> reads = outputs_inside(attributes, shape[axis]);
    std::vector<std::int64_t> dims(shape.rank(), 1);
    dims[axis] = target.sizes[axis];
    inside =
        builder.add("Mul", {inside, builder.constant(HostTensor::of<float>(Shape(dims), reads))});
    x = builder.add("Resample", {x}, std::move(attributes));
  }
  const double value = context.attributes().real("extrapolation_value", 0);
  if (value != 0) {
    const ValueId outside = builder.add("Sub", {builder.scalar(1), inside});
    x = builder.add("Add", {x, builder.add("Mul", {outside, builder.scalar(value)})});
  }
  context.set_output(0, x);
}

std::vector<std::int64_t> resized_axes(ImportContext& context) {
  const auto rank = static_cast<std::int64_t>(context.type(0).shape.rank());
  std::vector<std::int64_t> all;
  for (std::int64_t axis = 0; axis < rank; ++axis) all.push_back(axis);
  std::vector<std::int64_t> axes = context.attributes().ints("axes", all);
  for (std::int64_t& axis : axes) {
    PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} does not exist in rank {}", axis, rank);
    if (axis < 0) axis += rank;
  }
  return axes;
}

// Resize: (x, scales) in opset 10, (x, roi, scales, sizes) since.
void import_resize(ImportContext& context) {
  const Attributes& from = context.attributes();
  const bool old = context.opset() < 11;
  Attributes sampling{{"mode", from.text("mode", "nearest")}};
  if (old) {
    sampling.set("coordinates", std::string("asymmetric"));
    sampling.set("nearest", std::string(kSimple));
  } else {
    sampling.set("coordinates", from.text("coordinate_transformation_mode", "half_pixel"));
    sampling.set("nearest", from.text("nearest_mode", "round_prefer_floor"));
    sampling.set("cubic", from.real("cubic_coeff_a", -0.75));
    sampling.set("exclude_outside", from.integer("exclude_outside", 0));
    sampling.set("antialias", from.integer("antialias", 0));
  }
  const Shape shape = context.type(0).shape;
  const std::vector<std::int64_t> axes = resized_axes(context);
  // An empty scales tensor means that sizes are given.
  const std::size_t slot = old ? 1 : 2;
  const HostTensor scales =
      context.has_input(slot) ? context.constant(slot, "scales") : HostTensor();
  const bool scaled = scales && scales.type().count() > 0;
  PT_CHECK(scaled || (!old && context.has_input(3)), kModel, "Resize has neither scales nor sizes");
  Target target = scaled ? target_from_scales(shape, axes, scales)
                         : target_from_sizes(shape, axes, context.constant(3, "sizes"),
                                             from.text("keep_aspect_ratio_policy", "stretch"));
  if (sampling.text("coordinates", "") != "tf_crop_and_resize") {
    return resize_axes(context, target, sampling);
  }
  const Crop crop = crop_of(context, axes);
  for (std::size_t axis = 0; scaled && axis < shape.rank(); ++axis) {
    const double length = static_cast<double>(shape[axis]) * (crop.end[axis] - crop.start[axis]);
    target.sizes[axis] = scaled_size(length, target.scales[axis]);
  }
  crop_axes(context, target, crop, sampling);
}

void import_upsample(ImportContext& context) {
  HostTensor scales;
  if (context.opset() >= 9) {
    scales = context.constant(1, "scales");
  } else {
    const Reals reals = context.attributes().reals("scales", {});
    scales = HostTensor::of<double>(Shape{static_cast<std::int64_t>(reals.size())}, reals);
  }
  const Attributes sampling{{"mode", context.attributes().text("mode", "nearest")},
                            {"coordinates", std::string("asymmetric")},
                            {"nearest", std::string(kSimple)}};
  resize_axes(context, target_from_scales(context.type(0).shape, resized_axes(context), scales),
              sampling);
}

constexpr ImportRule kResizeImports[] = {{"Resize", import_resize}, {"Upsample", import_upsample}};

}  // namespace

resize::Resampling resize::resampling_of(const KernelRequest& request) {
  const Attributes& attributes = request.node.attributes;
  const bool gradient = request.node.op->name == "ResampleGrad";
  const auto axis = static_cast<std::size_t>(attributes.integer("axis"));
  const Shape& from = request.inputs[0].shape;
  const Shape& to = request.outputs[0].shape;
  ResizeMap map = make_resize_map(attributes, gradient ? to[axis] : from[axis]);
  if (gradient) map = transpose(map, to[axis]);
  return {from.count(0, axis), from[axis], to[axis], from.count(axis + 1, from.rank()),
          std::move(map)};
}

const OpFamily& resize_family() {
  static const OpFamily family{"resize", kResizeOps, kResizeImports, resize::reference_kernels(),
                               resize::cpu_kernels()};
  return family;
}

}  // namespace pipetrain
