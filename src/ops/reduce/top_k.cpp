// TopK and its import. Its gradient is scattered to the selected elements.
#include "ops/reduce/top_k.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {
namespace {

void infer_top_k(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const std::int64_t axis = context.attributes.integer("axis");
  const std::int64_t k = context.attributes.integer("k");
  PT_CHECK(x.dtype != DType::kUndefined && x.dtype != DType::kBool, kModel,
           "TopK needs a numeric type, got {}", x.text());
  PT_CHECK(axis >= 0 && axis < static_cast<std::int64_t>(x.shape.rank()), kModel,
           "axis {} does not exist in {}", axis, x.text());
  TensorType out{x.dtype, x.shape};
  PT_CHECK(k >= 0 && k <= x.shape[static_cast<std::size_t>(axis)], kModel,
           "TopK cannot take {} elements along axis {} of {}", k, axis, x.text());
  out.shape[static_cast<std::size_t>(axis)] = k;
  context.outputs = {out, {DType::kInt64, out.shape}};
}

void differentiate_top_k(GradientContext& context) {
  if (!context.wants(0) || !context.output_gradient()) return;
  const Shape shape = context.input_type(0).shape;
  const std::int64_t axis = context.attributes().integer("axis");
  context.set_input_gradient(
      0, context.builder().add("GatherElementsGrad", {context.output_gradient(), context.output(1)},
                               {{"axis", axis}, {"shape", shape.dims()}}));
}

Cost top_k_cost(const Attributes&, std::span<const TensorType> inputs,
                std::span<const TensorType>) {
  return {2 * static_cast<double>(inputs[0].count())};
}

constexpr OpTraits kTopKTraits = {KernelKind::kRows,
                                  {PrecisionRule::kFloat},
                                  LayoutRule::kRowMajor,
                                  {ChunkRule::kWhole},
                                  Fusion::kNever};

constexpr OpDef kTopKOps[] = {
    {"TopK", kPlain, kTopKTraits, infer_top_k, differentiate_top_k, top_k_cost}};

// k was an attribute before opset 10; the order of the result is always the sorted one.
void import_top_k(ImportContext& context) {
  const auto rank = static_cast<std::int64_t>(context.type(0).shape.rank());
  const std::int64_t axis = context.attributes().integer("axis", -1);
  PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} does not exist in {}", axis,
           context.type(0).shape.text());
  const std::int64_t k =
      context.opset() < 10 ? context.attributes().integer("k") : context.scalar(1, "k");
  const std::vector<ValueId> outputs =
      context.builder().add_all("TopK", {context.input(0)},
                                {{"axis", axis < 0 ? axis + rank : axis},
                                 {"k", k},
                                 {"largest", context.attributes().integer("largest", 1)}});
  context.set_output(0, outputs[0]);
  if (context.output_count() > 1) context.set_output(1, outputs[1]);
}

constexpr ImportRule kTopKImports[] = {{"TopK", import_top_k}};

}  // namespace

const OpFamily& top_k_family() {
  static const OpFamily family{"top_k", kTopKOps, kTopKImports, top_k_reference_kernels(),
                               top_k_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
