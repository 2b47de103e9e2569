// Attention and its gradient: types and gradient rule.
#include "ops/attention/attention.h"

#include <cmath>

#include "base/error.h"
#include "ops/registry/all_ops.h"

namespace pipetrain::attention {
namespace {

struct Form {
  std::int64_t batch, heads, steps, width;
  Strides strides;
};

/// (B, H, T, D), or (B, T, H D) with `heads` heads.
Form form_of(const TensorType& type, std::int64_t heads, std::string_view what) {
  const Shape& shape = type.shape;
  if (shape.rank() == 4) {
    const std::int64_t step = shape[3];
    return {shape[0],
            shape[1],
            shape[2],
            shape[3],
            {shape[1] * shape[2] * step, shape[2] * step, step}};
  }
  PT_CHECK(shape.rank() == 3 && heads > 0 && shape[2] % heads == 0, kModel,
           "the {} of Attention must be (batch, heads, steps, width) or (batch, steps, {} heads x "
           "width), got {}",
           what, heads, shape.text());
  const std::int64_t width = shape[2] / heads;
  return {shape[0], heads, shape[1], width, {shape[1] * shape[2], width, shape[2]}};
}

}  // namespace

bool in_rows(const Attributes& attributes, const TensorType& q) {
  return attributes.integer("y_rows", q.shape.rank() == 3) != 0;
}

Geometry geometry_of(const Attributes& attributes, const TensorType& q, const TensorType& k,
                     const TensorType& v, const TensorType& mask) {
  const std::int64_t heads = attributes.integer("heads", 0);
  const std::int64_t key_heads = attributes.integer("key_heads", heads);
  const Form of_q = form_of(q, heads, "query");
  const Form of_k = form_of(k, key_heads, "key");
  const Form of_v = form_of(v, key_heads, "value");
  PT_CHECK(of_q.batch == of_k.batch && of_k.batch == of_v.batch && of_k.heads == of_v.heads &&
               of_k.steps == of_v.steps && of_q.width == of_k.width && of_k.heads > 0 &&
               of_q.heads % of_k.heads == 0,
           kModel, "Attention query {}, key {} and value {} have incompatible shapes",
           q.shape.text(), k.shape.text(), v.shape.text());
  Geometry out;
  out.batch = of_q.batch;
  out.heads = of_q.heads;
  out.key_heads = of_k.heads;
  out.queries = of_q.steps;
  out.keys = of_k.steps;
  out.width = of_q.width;
  out.value_width = of_v.width;
  out.q = of_q.strides;
  out.k = of_k.strides;
  out.v = of_v.strides;
  const std::int64_t e = out.value_width;
  out.y = !in_rows(attributes, q) ? Strides{out.heads * out.queries * e, out.queries * e, e}
                                  : Strides{out.queries * out.heads * e, e, out.heads * e};
  out.scale = attributes.real("scale", 1 / std::sqrt(static_cast<double>(out.width)));
  out.softcap = attributes.real("softcap", 0);
  out.causal = attributes.flag("causal");
  out.offset = attributes.integer("offset", 0);
  out.offset_from_lengths = attributes.flag("offset_from_lengths");
  out.left = attributes.integer("left", -1);
  out.right = attributes.integer("right", -1);
  if (mask.dtype == DType::kUndefined) return out;
  // Mixed precision does not convert a mask.
  const bool is_narrow = q.dtype == DType::kBFloat16 || q.dtype == DType::kFloat16;
  const bool is_wider = is_narrow && mask.dtype == DType::kFloat32;
  PT_CHECK(mask.dtype == DType::kBool || mask.dtype == q.dtype || is_wider, kModel,
           "the mask of Attention must be bool or {}, got {}", name_of(q.dtype), mask.text());
  const Shape full{out.batch, out.heads, out.queries, out.keys};
  const std::size_t missing = 4 - std::min<std::size_t>(4, mask.shape.rank());
  const std::vector<std::int64_t> strides = mask.shape.strides();
  for (std::size_t axis = missing; axis < 4; ++axis) {
    const std::int64_t extent = mask.shape[axis - missing];
    PT_CHECK(extent == 1 || extent == full[axis], kModel,
             "the mask {} of Attention cannot be broadcast to {}", mask.shape.text(), full.text());
    out.mask[axis] = extent == 1 ? 0 : strides[axis - missing];
  }
  PT_CHECK(mask.shape.rank() <= 4, kModel, "the mask {} of Attention cannot be broadcast to {}",
           mask.shape.text(), full.text());
  return out;
}

Geometry geometry_of(const KernelRequest& request, std::size_t first) {
  const bool masked = request.inputs.size() > first + 3;
  return geometry_of(request.node.attributes, request.inputs[first], request.inputs[first + 1],
                     request.inputs[first + 2], masked ? request.inputs[first + 3] : TensorType{});
}

namespace {

Geometry checked_geometry(const InferContext& context, std::size_t first) {
  const auto input = [&](std::size_t index) {
    return index < context.inputs.size() ? context.inputs[index] : TensorType{};
  };
  const TensorType& q = context.inputs[first];
  PT_CHECK(is_float(q.dtype) && context.inputs[first + 1].dtype == q.dtype &&
               context.inputs[first + 2].dtype == q.dtype,
           kModel, "Attention needs query, key and value of one floating-point type, got {}",
           q.text());
  const Geometry g = geometry_of(context.attributes, q, context.inputs[first + 1],
                                 context.inputs[first + 2], input(first + 3));
  const TensorType lengths = input(first + 4);
  PT_CHECK(
      lengths.dtype == DType::kUndefined || lengths == (TensorType{DType::kInt64, Shape{g.batch}}),
      kModel, "the lengths of Attention must be int64 ({}), got {}", g.batch, lengths.text());
  return g;
}

TensorType output_type(const Attributes& attributes, const Geometry& g, const TensorType& q) {
  return {q.dtype, !in_rows(attributes, q) ? Shape{g.batch, g.heads, g.queries, g.value_width}
                                           : Shape{g.batch, g.queries, g.heads * g.value_width}};
}

void infer_attention(InferContext& context) {
  const Geometry g = checked_geometry(context, 0);
  const TensorType& q = context.inputs[0];
  context.outputs = {output_type(context.attributes, g, q),
                     {q.dtype, {g.batch, g.heads, g.queries}}};
}

void infer_gradient(InferContext& context) {
  const Geometry g = checked_geometry(context, 1);
  const TensorType& q = context.inputs[1];
  const TensorType y = output_type(context.attributes, g, q);
  PT_CHECK(context.inputs[0] == y && context.inputs[6] == y, kModel,
           "Attention gradient needs dy and y of type {}, got {} and {}", y.text(),
           context.inputs[0].text(), context.inputs[6].text());
  context.outputs = {
      q, context.inputs[2], context.inputs[3], {q.dtype, {g.batch, g.heads, g.queries, g.keys}}};
}

void differentiate_attention(GradientContext& context) {
  PT_CHECK(!context.output_gradient(1), kInternal, "the sums of Attention have no gradient");
  GraphBuilder& builder = context.builder();
  const Attributes attributes = context.attributes();
  const auto optional = [&](std::size_t index) {
    return index < context.input_count() ? context.input(index) : ValueId{};
  };
  const ValueId mask = optional(3);
  const std::vector<ValueId> gradients =
      builder.add_all("AttentionGrad",
                      {context.output_gradient(0), context.input(0), context.input(1),
                       context.input(2), mask, optional(4), context.output(0), context.output(1)},
                      attributes);
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.wants(i)) context.set_input_gradient(i, gradients[i]);
  }
  if (mask && context.wants(3)) {
    const Shape shape = context.input_type(3).shape;
    std::vector<std::int64_t> dims(4 - shape.rank(), 1);
    dims.insert(dims.end(), shape.begin(), shape.end());
    const ValueId sum = builder.sum_to(gradients[3], Shape(std::move(dims)));
    context.set_input_gradient(3, builder.reshape(sum, shape));
  }
}

/// Average number of keys that a query attends to; half of T with a causal mask.
double seen_keys(const Geometry& g) {
  const auto keys = static_cast<double>(g.keys);
  return g.causal && g.offset == 0 && g.queries == g.keys ? (keys + 1) / 2 : keys;
}

Cost cost_of(const Geometry& g, double products) {
  return {products * static_cast<double>(g.batch * g.heads * g.queries) *
          static_cast<double>(g.width + g.value_width) * seen_keys(g)};
}

Cost forward_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                  std::span<const TensorType>) {
  return cost_of(geometry_of(attributes, inputs[0], inputs[1], inputs[2], {}), 2);
}

Cost gradient_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                   std::span<const TensorType>) {
  return cost_of(geometry_of(attributes, inputs[1], inputs[2], inputs[3], {}), 5);
}

constexpr OpTraits kAttentionTraits = {KernelKind::kProduct,
                                       {PrecisionRule::kProduct, {0, 1, 2}, {0}},
                                       LayoutRule::kRowMajor,
                                       {ChunkRule::kSamples, {}, 3},
                                       Fusion::kNever};
constexpr OpTraits kAttentionGradTraits = {KernelKind::kProduct,
                                           {PrecisionRule::kProduct, {0, 1, 2, 3, 6}, {0, 1, 2}},
                                           LayoutRule::kRowMajor,
                                           {ChunkRule::kSamples, {}, 4},
                                           Fusion::kNever};

constexpr OpDef kAttentionOps[] = {
    {"Attention", kPlain, kAttentionTraits, infer_attention, differentiate_attention, forward_cost},
    {"AttentionGrad", kPlain, kAttentionGradTraits, infer_gradient, nullptr, gradient_cost},
};

}  // namespace
}  // namespace pipetrain::attention

namespace pipetrain {

const OpFamily& attention_family() {
  static const OpFamily family = {"attention",
                                  attention::kAttentionOps,
                                  attention::imports(),
                                  attention::reference_kernels(),
                                  attention::cpu_kernels(),
                                  [](Backend backend, const KernelRequest& request) {
                                    return backend == Backend::kCpu &&
                                           attention::multiplies_bfloat16(request);
                                  }};
  return family;
}

}  // namespace pipetrain
