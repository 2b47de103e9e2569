// Dropout and its import. Its gradient is the same operator with the same mask on dy.
#include "ops/random/dropout.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

DropoutParameters dropout_parameters(const Attributes& attributes) {
  const double ratio = attributes.real("ratio");
  PT_CHECK(ratio >= 0.0 && ratio < 1.0, kModel,
           "dropout ratio must be at least 0 and below 1, got {}", ratio);
  DropoutParameters out;
  out.threshold = static_cast<std::uint32_t>(std::min(std::round(ratio * 0x1p32), 0x1p32 - 1));
  out.scale = 1.0 / (1.0 - ratio);
  out.node_key = static_cast<std::uint64_t>(attributes.integer("key"));
  return out;
}

namespace {

void infer_dropout(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "Dropout needs a floating-point input, got {}", x.text());
  dropout_parameters(context.attributes);
  context.outputs = {x};
}

void differentiate_dropout(GradientContext& context) {
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add("Dropout", {context.output_gradient()}, attributes));
}

constexpr OpTraits kDropoutTraits = {KernelKind::kElementwise,
                                     {PrecisionRule::kFirst},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kWhole},
                                     Fusion::kFloats};

constexpr OpDef kDropoutOps[] = {
    {"Dropout", kRandom, kDropoutTraits, infer_dropout, differentiate_dropout}};

/// A key that is unique among the dropouts of the graph and independent of all other nodes: how
/// many of them there are before it.
std::int64_t next_key(const Graph& graph) {
  const auto is_dropout = [](const Node& node) { return node.op->name == "Dropout"; };
  auto node = std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), is_dropout);
  if (node == graph.nodes.rend()) return 0;
  // The last key is the number of those before it, and all nodes of one import have one key.
  const std::int64_t last = node->attributes.integer("key");
  std::int64_t key = last;
  for (; node != graph.nodes.rend() && is_dropout(*node); ++node) {
    if (node->attributes.integer("key") != last) break;
    ++key;
  }
  return key;
}

double import_ratio(const ImportContext& context) {
  if (context.opset() < 12) return context.attributes().real("ratio", 0.5);
  if (!context.has_input(1)) return 0.5;
  const std::vector<double> values = context.constant(1, "ratio").to_doubles();
  PT_CHECK(values.size() == 1, kModel, "Dropout ratio must be a scalar, got {}", values.size());
  return values[0];
}

HostTensor ones(DType dtype, const Shape& shape) {
  HostTensor out(TensorType{dtype, shape});
  if (dtype == DType::kFloat64) std::fill_n(out.view().as<double>(), out.type().count(), 1.0);
  if (dtype == DType::kFloat32) std::fill_n(out.view().as<float>(), out.type().count(), 1.0f);
  if (dtype == DType::kBool) std::fill_n(out.view().as<bool>(), out.type().count(), true);
  return out;
}

void import_dropout(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId x = context.input(0);
  const TensorType type = builder.type(x);
  const bool drops = context.mode().training && context.mode().dropout;
  const double ratio = drops ? import_ratio(context) : 0.0;
  const DType mask = context.opset() < 10 ? type.dtype : DType::kBool;
  if (ratio == 0.0) {
    context.set_output(0, x);
    if (context.output_count() > 1) context.set_output(1, builder.constant(ones(mask, type.shape)));
    return;
  }
  if (ratio == 1.0) {
    context.set_output(0, builder.add("Mul", {x, builder.scalar(0, type.dtype)}));
    if (context.output_count() > 1)
      context.set_output(1, builder.constant(HostTensor(TensorType{mask, type.shape})));
    return;
  }
  const Attributes attributes = {{"ratio", ratio}, {"key", next_key(builder.graph())}};
  context.set_output(0, builder.add("Dropout", {x}, attributes));
  if (context.output_count() > 1) {
    // The mask is the same dropout of ones; it is removed if it is unused.
    const ValueId kept =
        builder.add("Dropout", {builder.constant(ones(type.dtype, type.shape))}, attributes);
    const ValueId flags =
        builder.add("Cast", {kept}, {{"to", static_cast<std::int64_t>(DType::kBool)}});
    context.set_output(
        1, mask == DType::kBool
               ? flags
               : builder.add("Cast", {flags}, {{"to", static_cast<std::int64_t>(mask)}}));
  }
}

constexpr ImportRule kDropoutImports[] = {{"Dropout", import_dropout}};

}  // namespace

const OpFamily& dropout_family() {
  static const OpFamily family = {"dropout", kDropoutOps, kDropoutImports,
                                  dropout_reference_kernels(), dropout_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
