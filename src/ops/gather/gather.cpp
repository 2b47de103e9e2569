// Gather, GatherND, GatherElements, ScatterElements, ScatterND, their gradients and imports.
#include "ops/gather/gather.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

void check_indices(const TensorType& indices, std::string_view op) {
  PT_CHECK(indices.dtype == DType::kInt64 || indices.dtype == DType::kInt32, kModel,
           "{} indices must be int32 or int64, got {}", op, indices.text());
}

Shape shape_attribute(const Attributes& attributes) { return Shape(attributes.ints("shape")); }

Attributes with_shape(Attributes attributes, const Shape& shape) {
  attributes.set("shape", shape.dims());
  return attributes;
}

void check_gradient(const InferContext& context, const Shape& expected) {
  PT_CHECK(is_float(context.inputs[0].dtype) && context.inputs[0].shape == expected, kModel,
           "the gradient of a gather must have shape {}, got {}", expected.text(),
           context.inputs[0].text());
}

// --- slices ---

void infer_slices(InferContext& context, std::string_view op) {
  check_indices(context.inputs[1], op);
  const SliceGather gather =
      slice_gather(op, context.attributes, context.inputs[0].shape, context.inputs[1].shape);
  context.outputs = {{context.inputs[0].dtype, gather.result}};
}

void infer_slices_gradient(InferContext& context, std::string_view op) {
  check_indices(context.inputs[1], op);
  const Shape data = shape_attribute(context.attributes);
  check_gradient(context,
                 slice_gather(op, context.attributes, data, context.inputs[1].shape).result);
  context.outputs = {{context.inputs[0].dtype, data}};
}

void infer_gather(InferContext& context) { infer_slices(context, "Gather"); }
void infer_gather_nd(InferContext& context) { infer_slices(context, "GatherND"); }
void infer_gather_gradient(InferContext& context) { infer_slices_gradient(context, "Gather"); }
void infer_gather_nd_gradient(InferContext& context) { infer_slices_gradient(context, "GatherND"); }

// --- elements ---

void infer_elements(InferContext& context) {
  check_indices(context.inputs[1], "GatherElements");
  element_gather(context.attributes, context.inputs[0].shape, context.inputs[1].shape);
  context.outputs = {{context.inputs[0].dtype, context.inputs[1].shape}};
}

void infer_elements_gradient(InferContext& context) {
  check_indices(context.inputs[1], "GatherElements");
  const Shape data = shape_attribute(context.attributes);
  check_gradient(context,
                 element_gather(context.attributes, data, context.inputs[1].shape).indices);
  context.outputs = {{context.inputs[0].dtype, data}};
}

// --- scatters ---

void check_scatter(const InferContext& context, std::string_view op, const Shape& updates) {
  const TensorType& data = context.inputs[0];
  PT_CHECK(context.inputs[2] == (TensorType{data.dtype, updates}), kModel,
           "{} updates must be {} {}, got {}", op, name_of(data.dtype), updates.text(),
           context.inputs[2].text());
  const std::string reduction = context.attributes.text("reduction", "none");
  PT_CHECK(reduction == "none" || data.dtype != DType::kBool, kModel,
           "{} cannot reduce bool by \"{}\"", op, reduction);
}

void infer_scatter_elements(InferContext& context) {
  check_indices(context.inputs[1], "ScatterElements");
  element_gather(context.attributes, context.inputs[0].shape, context.inputs[1].shape);
  check_scatter(context, "ScatterElements", context.inputs[1].shape);
  context.outputs = {context.inputs[0]};
}

void infer_scatter_nd(InferContext& context) {
  check_indices(context.inputs[1], "ScatterND");
  check_scatter(
      context, "ScatterND",
      slice_gather("GatherND", {}, context.inputs[0].shape, context.inputs[1].shape).result);
  context.outputs = {context.inputs[0]};
}

// none: overwritten data get no gradient; of several updates to one element each gets that
// element's gradient, as in PyTorch. add: both get the whole gradient.
void differentiate_scatter(GradientContext& context, std::string_view scatter,
                           std::string_view gather) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const std::string reduction = context.attributes().text("reduction", "none");
  PT_CHECK(reduction == "none" || reduction == "add", kModel,
           "{} with reduction \"{}\" has no gradient (only none and add have one)", scatter,
           reduction);
  if (context.wants(0)) {
    ValueId dx = dy;
    if (reduction == "none") {
      const Attributes attributes = context.attributes();
      const ValueId zeros = builder.constant(HostTensor(TensorType(context.input_type(2))));
      dx = builder.add(scatter, {dy, context.input(1), zeros}, attributes);
    }
    context.set_input_gradient(0, dx);
  }
  if (!context.wants(2)) return;
  Attributes where;
  if (context.attributes().has("axis")) where.set("axis", context.attributes().integer("axis"));
  context.set_input_gradient(2, builder.add(gather, {dy, context.input(1)}, where));
}
void differentiate_scatter_elements(GradientContext& context) {
  differentiate_scatter(context, "ScatterElements", "GatherElements");
}
void differentiate_scatter_nd(GradientContext& context) {
  differentiate_scatter(context, "ScatterND", "GatherND");
}

void differentiate(GradientContext& context, std::string_view gradient_op) {
  const Attributes attributes = with_shape(context.attributes(), context.input_type(0).shape);
  context.set_input_gradient(
      0, context.builder().add(gradient_op, {context.output_gradient(), context.input(1)},
                               attributes));
}
void differentiate_gather(GradientContext& context) { differentiate(context, "GatherGrad"); }
void differentiate_gather_nd(GradientContext& context) { differentiate(context, "GatherNDGrad"); }
void differentiate_elements(GradientContext& context) {
  differentiate(context, "GatherElementsGrad");
}

constexpr OpTraits kGatherTraits = {KernelKind::kRows,
                                    {PrecisionRule::kFirst},
                                    LayoutRule::kRowMajor,
                                    {ChunkRule::kCopies},
                                    Fusion::kNever};
constexpr OpTraits kGatherElementsTraits = {KernelKind::kRows,
                                            {PrecisionRule::kFirst},
                                            LayoutRule::kRowMajor,
                                            {ChunkRule::kWhole},
                                            Fusion::kNever};
/// Reference: scatter elements and gather gradients.
constexpr OpTraits kScatterTraits = {KernelKind::kRows,
                                     {PrecisionRule::kFloat},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kWhole},
                                     Fusion::kNever};

constexpr OpDef kGatherOps[] = {
    {"Gather", kPlain, kGatherTraits, infer_gather, differentiate_gather},
    {"GatherElements", kPlain, kGatherElementsTraits, infer_elements, differentiate_elements},
    {"GatherElementsGrad", kPlain, kScatterTraits, infer_elements_gradient},
    {"GatherGrad", kPlain, kScatterTraits, infer_gather_gradient},
    {"GatherND", kPlain, kGatherElementsTraits, infer_gather_nd, differentiate_gather_nd},
    {"GatherNDGrad", kPlain, kScatterTraits, infer_gather_nd_gradient},
    {"ScatterElements", kPlain, kScatterTraits, infer_scatter_elements,
     differentiate_scatter_elements},
    {"ScatterND", kPlain, kScatterTraits, infer_scatter_nd, differentiate_scatter_nd},
};

// --- import ---

/// Indices known before training are checked now, the others when they are read.
void check_constant_indices(const ImportContext& context, std::int64_t axis) {
  const HostTensor indices = context.constant_or_empty(1);
  const Shape& shape = context.type(0).shape;
  const auto rank = static_cast<std::int64_t>(shape.rank());
  if (!indices || axis < -rank || axis >= rank) return;
  const std::int64_t rows = shape[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
  for (const std::int64_t index : indices.to_int64s()) {
    PT_CHECK(index >= -rows && index < rows, kModel, "{} reads index {} of an axis of {} elements",
             context.op_type(), index, rows);
  }
}

void import_axis(ImportContext& context) {
  check_constant_indices(context, context.attributes().integer("axis", 0));
  const Attributes attributes = {{"axis", context.attributes().integer("axis", 0)}};
  context.set_output(0, context.builder().add(context.op_type(),
                                              {context.input(0), context.input(1)}, attributes));
}

void import_gather_nd(ImportContext& context) {
  const Attributes attributes = {{"batch_dims", context.attributes().integer("batch_dims", 0)}};
  context.set_output(
      0, context.builder().add("GatherND", {context.input(0), context.input(1)}, attributes));
}

void import_scatter(ImportContext& context) {
  const std::string reduction = context.attributes().text("reduction", "none");
  PT_CHECK(reduction == "none" || reduction == "add" || reduction == "mul" || reduction == "max" ||
               reduction == "min",
           kModel, "{} has no reduction \"{}\"", context.op_type(), printable(reduction));
  const bool tuples = context.op_type() == "ScatterND";
  Attributes attributes = {{"reduction", reduction}};
  if (!tuples) attributes.set("axis", context.attributes().integer("axis", 0));
  context.set_output(
      0, context.builder().add(tuples ? "ScatterND" : "ScatterElements",
                               {context.input(0), context.input(1), context.input(2)}, attributes));
}

constexpr ImportRule kGatherImports[] = {
    {"Gather", import_axis},
    {"GatherElements", import_axis},
    {"GatherND", import_gather_nd},
    {"Scatter", import_scatter},
    {"ScatterElements", import_scatter},
    {"ScatterND", import_scatter},
};

}  // namespace

const OpFamily& gather_family() {
  static const OpFamily family = {"gather",
                                  kGatherOps,
                                  kGatherImports,
                                  gather_reference_kernels(),
                                  gather_cpu_kernels(),
                                  [](Backend backend, const KernelRequest& request) {
                                    const std::string_view op = request.node.op->name;
                                    return backend == Backend::kCpu &&
                                           (op == "GatherGrad" || op == "GatherNDGrad") &&
                                           gather_gradient_adds(request);
                                  }};
  return family;
}

}  // namespace pipetrain
