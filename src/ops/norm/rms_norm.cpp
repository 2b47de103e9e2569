// RmsNorm, its gradients and its import.
#include "ops/norm/rms_norm.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

void infer_rms_norm(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "RmsNorm needs a floating-point input, got {}", x.text());
  const LayerNormGeometry geometry = layer_norm_geometry(context.attributes, x.shape);
  if (context.inputs.size() > 1 && context.inputs[1].dtype != DType::kUndefined) {
    const TensorType scale{x.dtype, geometry.scale_shape};
    PT_CHECK(context.inputs[1] == scale, kModel, "RmsNorm scale must be {}, got {}", scale.text(),
             context.inputs[1].text());
  }
  context.outputs = {x, {x.dtype, geometry.row_shape}};
}

// (dy, x, scale?, inverse_rms) -> dx
void infer_rms_input_gradient(InferContext& context) { context.outputs = {context.inputs[1]}; }

// (dy, x, inverse_rms) -> dscale
void infer_rms_weight_gradient(InferContext& context) {
  const TensorType& x = context.inputs[1];
  context.outputs = {{x.dtype, layer_norm_geometry(context.attributes, x.shape).scale_shape}};
}

void differentiate_rms_norm(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1), kModel,
           "training through the root mean square of RmsNorm is not supported");
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  const ValueId dy = context.output_gradient();
  const ValueId scale = context.input_count() > 1 ? context.input(1) : ValueId{};
  if (context.wants(0)) {
    context.set_input_gradient(
        0, builder.add("RmsNormInputGrad", {dy, context.input(0), scale, context.output(1)},
                       attributes));
  }
  if (scale && context.wants(1)) {
    context.set_input_gradient(
        1, builder.add("RmsNormWeightGrad", {dy, context.input(0), context.output(1)}, attributes));
  }
}

Cost rms_norm_cost(const Attributes&, std::span<const TensorType> inputs,
                   std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 5;
  return {kFlopsPerElement * static_cast<double>(inputs[0].count())};
}

constexpr OpTraits kRmsNormTraits = {KernelKind::kRows,
                                     {PrecisionRule::kAsLarge},
                                     LayoutRule::kRowMajor,
                                     {.kind = ChunkRule::kSamples, .shared = {1}, .axis = true},
                                     Fusion::kNever};
constexpr OpTraits kRmsNormInputGradTraits = {
    KernelKind::kRows,
    {PrecisionRule::kAsLarge},
    LayoutRule::kRowMajor,
    {.kind = ChunkRule::kSamples, .shared = {2}, .axis = true},
    Fusion::kNever};
constexpr OpTraits kRmsNormWeightGradTraits = {KernelKind::kRows,
                                               {PrecisionRule::kFloat},
                                               LayoutRule::kRowMajor,
                                               {ChunkRule::kWhole},
                                               Fusion::kNever};

constexpr OpDef kRmsNormOps[] = {
    {"RmsNorm", kPlain, kRmsNormTraits, infer_rms_norm, differentiate_rms_norm, rms_norm_cost},
    {"RmsNormInputGrad", kPlain, kRmsNormInputGradTraits, infer_rms_input_gradient, nullptr,
     rms_norm_cost},
    {"RmsNormWeightGrad", kPlain, kRmsNormWeightGradTraits, infer_rms_weight_gradient, nullptr,
     rms_norm_cost},
};

void import_rms_norm(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Attributes attributes = {{"axis", context.attributes().integer("axis", -1)},
                                 {"epsilon", context.attributes().real("epsilon", 1e-5)}};
  const Shape shape = context.type(0).shape;
  const LayerNormGeometry geometry = layer_norm_geometry(attributes, shape);
  if (context.type(1).shape == geometry.scale_shape) {
    context.set_output(0, builder.add("RmsNorm", {context.input(0), context.input(1)}, attributes));
    return;
  }
  const ValueId y = builder.add("RmsNorm", {context.input(0)}, attributes);
  context.set_output(0, builder.add("Mul", {y, context.input(1)}));
}

constexpr ImportRule kRmsNormImports[] = {
    {"RMSNormalization", import_rms_norm},
    {"SimplifiedLayerNormalization", import_rms_norm},
};

}  // namespace

const OpFamily& rms_norm_family() {
  static const OpFamily family = {"rms_norm", kRmsNormOps, kRmsNormImports,
                                  rms_norm_reference_kernels(), rms_norm_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
