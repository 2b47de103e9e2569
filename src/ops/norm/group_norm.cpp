// GroupNorm and its gradient, and the imports of GroupNormalization and InstanceNormalization.
#include "ops/norm/group_norm.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

GroupNormShape::GroupNormShape(const Attributes& attributes, const Shape& x)
    : groups(attributes.integer("groups")), epsilon(attributes.real("epsilon", 1e-5)) {
  PT_CHECK(x.rank() >= 2 && x.count() > 0, kModel,
           "group normalization needs a non-empty input (N, C, …), got {}", x.text());
  samples = x[0];
  channels = x[1];
  positions = x.count(2, x.rank());
  PT_CHECK(groups >= 1 && channels % groups == 0, kModel,
           "group normalization of {} needs a number of groups that divides the channels, got {}",
           x.text(), groups);
}

namespace {

void check_group_norm_type(const TensorType& actual, DType dtype, const Shape& shape,
                           std::string_view what) {
  PT_CHECK(actual.dtype == dtype && actual.shape == shape, kModel,
           "the {} of a group normalization must be {}, got {}", what,
           TensorType{dtype, shape}.text(), actual.text());
}

void infer_group_norm(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "group normalization needs a floating-point input, got {}",
           x.text());
  const GroupNormShape shape(context.attributes, x.shape);
  check_group_norm_type(context.inputs[1], x.dtype, Shape{shape.channels}, "scale");
  check_group_norm_type(context.inputs[2], x.dtype, Shape{shape.channels}, "bias");
  const TensorType statistic{x.dtype, Shape{shape.samples, shape.groups}};
  context.outputs = {{x.dtype, x.shape}, statistic, statistic};
}

void infer_group_norm_gradient(InferContext& context) {
  const TensorType& x = context.inputs[1];
  const GroupNormShape shape(context.attributes, x.shape);
  check_group_norm_type(context.inputs[0], x.dtype, x.shape, "gradient");
  check_group_norm_type(context.inputs[2], x.dtype, Shape{shape.channels}, "scale");
  check_group_norm_type(context.inputs[3], x.dtype, Shape{shape.samples, shape.groups}, "mean");
  check_group_norm_type(context.inputs[4], x.dtype, Shape{shape.samples, shape.groups},
                        "inverse deviation");
  const TensorType sums{x.dtype, Shape{shape.samples, shape.channels}};
  context.outputs = {{x.dtype, x.shape}, sums, sums};
}

void differentiate_group_norm(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1) && !context.output_gradient(2), kModel,
           "training through the mean or deviation of a group normalization is not supported");
  GraphBuilder& builder = context.builder();
  const std::vector<ValueId> gradients =
      builder.add_all("GroupNormGrad",
                      {context.output_gradient(), context.input(0), context.input(1),
                       context.output(1), context.output(2)},
                      context.attributes());
  if (context.wants(0)) context.set_input_gradient(0, gradients[0]);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!context.wants(i)) continue;
    context.set_input_gradient(i, builder.add("ReduceSum", {gradients[i]},
                                              {{"axes", Ints{0}}, {"keepdims", std::int64_t{0}}}));
  }
}

Cost group_norm_cost(const Attributes&, std::span<const TensorType> in,
                     std::span<const TensorType>) {
  constexpr double kFlopsPerElement = 8;
  return {kFlopsPerElement * static_cast<double>(in[0].count())};
}

constexpr OpTraits kGroupNormTraits = {KernelKind::kRows,
                                       {PrecisionRule::kAsLarge},
                                       LayoutRule::kFollows,
                                       {.kind = ChunkRule::kSamples, .shared = {1, 2}},
                                       Fusion::kNever};
constexpr OpTraits kGroupNormGradTraits = {KernelKind::kRows,
                                           {PrecisionRule::kAsLarge},
                                           LayoutRule::kFollows,
                                           {.kind = ChunkRule::kSamples, .shared = {2, 5}},
                                           Fusion::kNever};

constexpr OpDef kGroupNormOps[] = {
    {"GroupNorm", kPlain, kGroupNormTraits, infer_group_norm, differentiate_group_norm,
     group_norm_cost},
    {"GroupNormGrad", kPlain, kGroupNormGradTraits, infer_group_norm_gradient, nullptr,
     group_norm_cost},
};

// --- import ---

void add_group_norm(ImportContext& context, std::int64_t groups, ValueId scale, ValueId bias) {
  GraphBuilder& builder = context.builder();
  const double epsilon = context.attributes().real("epsilon", 1e-5);
  const Shape channels{context.type(0).shape[1]};
  scale = builder.reshape(scale, channels);
  bias = builder.reshape(bias, channels);
  context.set_output(0, builder.add("GroupNorm", {context.input(0), scale, bias},
                                    {{"groups", groups}, {"epsilon", epsilon}}));
}

void import_instance_norm(ImportContext& context) {
  const Shape& shape = context.type(0).shape;
  PT_CHECK(shape.rank() >= 3, kModel, "InstanceNormalization input must be (N, C, …), got {}",
           shape.text());
  add_group_norm(context, shape[1], context.input(1), context.input(2));
}

void import_group_norm(ImportContext& context) {
  const Shape shape = context.type(0).shape;
  const std::int64_t groups = context.attributes().integer("num_groups");
  PT_CHECK(shape.rank() >= 2 && groups >= 1 && shape[1] % groups == 0, kModel,
           "GroupNormalization of {} needs num_groups that divides the channels, got {}",
           shape.text(), groups);
  // Scale and bias are per group in opset 18 and per channel since 21.
  const auto per_channel = [&](std::size_t input) {
    GraphBuilder& builder = context.builder();
    const ValueId given = context.input(input);
    if (groups == shape[1] || context.type(input).count() != groups) return given;
    const ValueId expanded = builder.add("Expand", {builder.reshape(given, Shape{groups, 1})},
                                         {{"shape", Ints{groups, shape[1] / groups}}});
    return builder.reshape(expanded, Shape{shape[1]});
  };
  add_group_norm(context, groups, per_channel(1), per_channel(2));
}

constexpr ImportRule kGroupNormImports[] = {
    {"GroupNormalization", import_group_norm},
    {"InstanceNormalization", import_instance_norm},
};

}  // namespace

const OpFamily& group_norm_family() {
  static const OpFamily family = {"group_norm", kGroupNormOps, kGroupNormImports,
                                  group_norm_reference_kernels(), group_norm_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
