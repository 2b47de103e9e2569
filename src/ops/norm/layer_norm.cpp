// LayerNorm and its gradients, and the import of LayerNormalization.
//
// The gradient is two operators, so that a schedule can run the one for x (I) and the one for scale
// and bias (W) at different times.
#include "ops/norm/layer_norm.h"

#include <optional>

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

LayerNormGeometry layer_norm_geometry(const Attributes& attributes, const Shape& x) {
  const auto rank = static_cast<std::int64_t>(x.rank());
  const std::int64_t axis = attributes.integer("axis", -1);
  PT_CHECK(axis >= -rank && axis < rank, kModel,
           "LayerNorm axis {} is outside a tensor of shape {}", axis, x.text());
  const auto at = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  LayerNormGeometry out;
  out.rows = x.count(0, at);
  out.width = x.count(at, x.rank());
  PT_CHECK(out.width > 0, kModel, "LayerNorm over axis {} of shape {} has no elements to normalize",
           axis, x.text());
  out.epsilon = attributes.real("epsilon", 1e-5);
  const auto split = x.begin() + static_cast<std::ptrdiff_t>(at);
  out.row_shape = Shape(std::vector<std::int64_t>(x.begin(), split));
  out.scale_shape = Shape(std::vector<std::int64_t>(split, x.end()));
  return out;
}

namespace {

bool is_present(std::span<const TensorType> inputs, std::size_t index) {
  return index < inputs.size() && inputs[index].dtype != DType::kUndefined;
}

void check_type(const TensorType& actual, DType dtype, const Shape& shape, std::string_view what) {
  PT_CHECK(actual.dtype == dtype && actual.shape == shape, kModel,
           "LayerNorm {} must be {}, got {}", what, TensorType{dtype, shape}.text(), actual.text());
}

void infer_layer_norm(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "LayerNorm needs a floating-point input, got {}", x.text());
  const LayerNormGeometry geometry = layer_norm_geometry(context.attributes, x.shape);
  if (is_present(context.inputs, 1)) {
    check_type(context.inputs[1], x.dtype, geometry.scale_shape, "scale");
  }
  if (is_present(context.inputs, 2)) {
    check_type(context.inputs[2], x.dtype, geometry.scale_shape, "bias");
  }
  const TensorType row{x.dtype, geometry.row_shape};
  context.outputs = {{x.dtype, x.shape}, row, row};
}

// (dy, x, scale, mean, inverse_std) -> dx
void infer_layer_input_gradient(InferContext& context) {
  const TensorType& x = context.inputs[1];
  const LayerNormGeometry geometry = layer_norm_geometry(context.attributes, x.shape);
  check_type(context.inputs[0], x.dtype, x.shape, "gradient");
  if (is_present(context.inputs, 2)) {
    check_type(context.inputs[2], x.dtype, geometry.scale_shape, "scale");
  }
  check_type(context.inputs[3], x.dtype, geometry.row_shape, "mean");
  check_type(context.inputs[4], x.dtype, geometry.row_shape, "inverse_std");
  context.outputs = {{x.dtype, x.shape}};
}

// (dy, x, mean, inverse_std) -> dscale, dbias
void infer_layer_weight_gradient(InferContext& context) {
  const TensorType& x = context.inputs[1];
  const LayerNormGeometry geometry = layer_norm_geometry(context.attributes, x.shape);
  check_type(context.inputs[0], x.dtype, x.shape, "gradient");
  check_type(context.inputs[2], x.dtype, geometry.row_shape, "mean");
  check_type(context.inputs[3], x.dtype, geometry.row_shape, "inverse_std");
  const TensorType scale{x.dtype, geometry.scale_shape};
  context.outputs = {scale, scale};
}

void differentiate_layer_norm(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1) && !context.output_gradient(2), kModel,
           "training through the mean or deviation output of LayerNorm is not supported");
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  const ValueId dy = context.output_gradient();
  const ValueId x = context.input(0);
  const ValueId mean = context.output(1);
  const ValueId inverse_std = context.output(2);
  if (context.wants(0)) {
    context.set_input_gradient(
        0, builder.add("LayerNormInputGrad", {dy, x, context.input(1), mean, inverse_std},
                       attributes));
  }
  const auto wanted = [&](std::size_t input) {
    return input < context.input_count() && context.input(input) && context.wants(input);
  };
  if (!wanted(1) && !wanted(2)) return;
  const std::vector<ValueId> gradients =
      builder.add_all("LayerNormWeightGrad", {dy, x, mean, inverse_std}, attributes);
  if (wanted(1)) context.set_input_gradient(1, gradients[0]);
  if (wanted(2)) context.set_input_gradient(2, gradients[1]);
}

Cost layer_norm_cost(const Attributes&, std::span<const TensorType> inputs,
                     std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 8;
  return {kFlopsPerElement * static_cast<double>(inputs[0].count())};
}

constexpr OpTraits kLayerNormTraits = {
    KernelKind::kRows,
    {PrecisionRule::kAsLarge},
    LayoutRule::kRowMajor,
    {.kind = ChunkRule::kSamples, .shared = {1, 2}, .axis = true},
    Fusion::kNever};
constexpr OpTraits kLayerNormInputGradTraits = {
    KernelKind::kRows,
    {PrecisionRule::kAsLarge},
    LayoutRule::kRowMajor,
    {.kind = ChunkRule::kSamples, .shared = {2}, .axis = true},
    Fusion::kNever};
constexpr OpTraits kLayerNormWeightGradTraits = {KernelKind::kRows,
                                                 {PrecisionRule::kFloat},
                                                 LayoutRule::kRowMajor,
                                                 {ChunkRule::kWhole},
                                                 Fusion::kNever};

constexpr OpDef kLayerNormOps[] = {
    {"LayerNorm", kPlain, kLayerNormTraits, infer_layer_norm, differentiate_layer_norm,
     layer_norm_cost},
    {"LayerNormInputGrad", kPlain, kLayerNormInputGradTraits, infer_layer_input_gradient, nullptr,
     layer_norm_cost},
    {"LayerNormWeightGrad", kPlain, kLayerNormWeightGradTraits, infer_layer_weight_gradient,
     nullptr, layer_norm_cost},
};

// --- import ---

/// A scale or bias in the shape of the normalized axes; nothing where it differs between rows.
std::optional<ValueId> same_for_rows(GraphBuilder& builder, ValueId x, const Shape& shape) {
  std::vector<std::int64_t> dims = builder.shape(x).dims();
  while (dims.size() > shape.rank() && dims.front() == 1) dims.erase(dims.begin());
  if (dims.size() > shape.rank()) return {};
  x = builder.reshape(x, Shape(dims));
  if (Shape(dims) == shape) return x;
  return builder.add("Expand", {x}, {{"shape", shape.dims()}});
}

void import_layer_norm(ImportContext& context) {
  context.expect_outputs(3);
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  const Attributes attributes = {{"axis", context.attributes().integer("axis", -1)},
                                 {"epsilon", context.attributes().real("epsilon", 1e-5)}};
  const LayerNormGeometry geometry = layer_norm_geometry(attributes, shape);
  std::vector<ValueId> inputs = {context.input(0)};
  for (const std::size_t i : {1, 2}) {
    if (!context.has_input(i)) break;
    const auto vector = same_for_rows(builder, context.input(i), geometry.scale_shape);
    if (!vector) break;
    inputs.push_back(*vector);
  }
  const std::size_t inside = inputs.size();
  const std::vector<ValueId> outputs = builder.add_all("LayerNorm", std::move(inputs), attributes);
  ValueId y = outputs[0];
  if (inside < 2) y = builder.add("Mul", {y, context.input(1)});
  if (inside < 3 && context.has_input(2)) y = builder.add("Add", {y, context.input(2)});
  PT_CHECK(builder.shape(y) == shape, kModel,
           "LayerNormalization of {} with a scale or bias of more elements: {}", shape.text(),
           builder.shape(y).text());
  context.set_output(0, y);
  // ONNX keeps the normalised axes of the statistics as 1.
  std::vector<std::int64_t> dims = geometry.row_shape.dims();
  dims.resize(shape.rank(), 1);
  for (std::size_t i = 1; i < context.output_count(); ++i) {
    context.set_output(i, builder.reshape(outputs[i], Shape(dims)));
  }
}

constexpr ImportRule kLayerNormImports[] = {
    {"LayerNormalization", import_layer_norm},
};

}  // namespace

const OpFamily& layer_norm_family() {
  static const OpFamily family = {"layer_norm", kLayerNormOps, kLayerNormImports,
                                  layer_norm_reference_kernels(), layer_norm_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
