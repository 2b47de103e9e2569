// Conv, its gradients with respect to input and weight, and the import of Conv and ConvTranspose. A
// transposed convolution is the input gradient of a convolution with the same weight.
#include "ops/conv/conv.h"

#include <algorithm>

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

ConvGeometry conv_geometry(const Attributes& attributes, const Shape& x, const Shape& w) {
  PT_CHECK(x.rank() >= 3 && x.rank() <= 5, kModel, "Conv input must have rank 3, 4 or 5, got {}",
           x.text());
  PT_CHECK(w.rank() == x.rank(), kModel, "Conv weight must have the input's rank {}, got {}",
           x.rank(), w.text());
  ConvGeometry out;
  out.batch = x[0];
  out.group = attributes.integer("group", 1);
  PT_CHECK(out.group >= 1 && x[1] % out.group == 0 && w[0] % out.group == 0, kModel,
           "Conv group {} must divide {} input and {} output channels", out.group, x[1], w[0]);
  out.inputs = x[1] / out.group;
  out.outputs = w[0] / out.group;
  PT_CHECK(w[1] == out.inputs, kModel,
           "Conv weight {} must have {} input channels per group for an input {}", w.text(),
           out.inputs, x.text());
  out.window = make_window(attributes, spatial_of(x), spatial_of(w));
  return out;
}

bool stands_for_no_bias(const HostTensor& bias) {
  if (!bias || bias.type().shape.rank() != 2 || bias.type().shape[1] != 2) return false;
  return std::ranges::all_of(bias.to_doubles(), [](double number) { return number == 0; });
}

std::int64_t conv_groups_together(const Shape& w, std::int64_t group, std::int64_t block) {
  constexpr std::int64_t kMost = 4;  // merging multiplies the number of products by as much
  const std::int64_t inputs = w[1], outputs = w[0] / group;
  for (std::int64_t together = 1; together <= kMost; ++together) {
    if (group % together == 0 && together * inputs % block == 0 && together * outputs % block == 0)
      return together;
  }
  return 0;
}

namespace {

Shape output_shape(const ConvGeometry& geometry) {
  return window_outputs(geometry.batch, geometry.group * geometry.outputs, geometry.window);
}

void check_float(const TensorType& x, const TensorType& w) {
  PT_CHECK(is_float(x.dtype) && x.dtype == w.dtype, kModel,
           "Conv input and weight must have one float type, got {} and {}", x.text(), w.text());
}

Cost conv_cost(const Attributes& attributes, const Shape& x, const Shape& w) {
  const ConvGeometry geometry = conv_geometry(attributes, x, w);
  return {2.0 * static_cast<double>(output_shape(geometry).count()) *
          static_cast<double>(w.count(1, w.rank()))};
}

Attributes with_output_shape(Attributes attributes, const Shape& shape) {
  attributes.set("output_shape", shape.dims());
  return attributes;
}

// Only what describes the window: output_shape and with_bias belong to one of the three operators.
Attributes window_attributes(const Attributes& attributes) {
  Attributes out;
  for (const auto& [name, value] : attributes.items()) {
    if (name != "output_shape" && name != "with_bias") out.set(name, value);
  }
  return out;
}

// --- Conv(x, w[, b]) -> y ---

void infer_conv(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const TensorType& w = context.inputs[1];
  check_float(x, w);
  const Shape y = output_shape(conv_geometry(context.attributes, x.shape, w.shape));
  if (context.inputs.size() > 2 && context.inputs[2].dtype != DType::kUndefined) {
    PT_CHECK(context.inputs[2].shape == Shape{w.shape[0]}, kModel,
             "Conv bias must have shape ({}), got {}", w.shape[0], context.inputs[2].shape.text());
  }
  context.outputs = {{x.dtype, y}};
}

void differentiate_conv(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId dy = context.output_gradient();
  const Attributes attributes = context.attributes();
  if (context.wants(0)) {
    const Shape shape = context.input_type(0).shape;
    context.set_input_gradient(0, builder.add("ConvInputGrad", {dy, context.input(1)},
                                              with_output_shape(attributes, shape)));
  }
  const bool bias = context.input_count() > 2 && context.input(2) && context.wants(2);
  if (context.wants(1)) {
    Attributes weight = with_output_shape(attributes, context.input_type(1).shape);
    weight.set("with_bias", std::int64_t{bias});
    const std::vector<ValueId> gradients =
        builder.add_all("ConvWeightGrad", {context.input(0), dy}, std::move(weight));
    context.set_input_gradient(1, gradients[0]);
    if (bias) context.set_input_gradient(2, gradients[1]);
    return;
  }
  if (!bias) return;
  Ints axes;
  for (std::size_t i = 0; i < context.output_type(0).shape.rank(); ++i) {
    if (i != 1) axes.push_back(static_cast<std::int64_t>(i));
  }
  context.set_input_gradient(
      2, builder.add("ReduceSum", {dy}, {{"axes", axes}, {"keepdims", std::int64_t{0}}}));
}

// --- ConvInputGrad(dy, w) -> dx ---

void infer_input_gradient(InferContext& context) {
  const TensorType& dy = context.inputs[0];
  const TensorType& w = context.inputs[1];
  check_float(dy, w);
  const Shape x(context.attributes.ints("output_shape"));
  const Shape expected = output_shape(conv_geometry(context.attributes, x, w.shape));
  PT_CHECK(dy.shape == expected, kModel, "ConvInputGrad to {} needs dy of shape {}, got {}",
           x.text(), expected.text(), dy.shape.text());
  context.outputs = {{dy.dtype, x}};
}

void differentiate_input_gradient(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId gradient = context.output_gradient();
  const Attributes window = window_attributes(context.attributes());
  if (context.wants(0)) {
    context.set_input_gradient(0, builder.add("Conv", {gradient, context.input(1)}, window));
  }
  if (context.wants(1)) {
    const Shape shape = context.input_type(1).shape;
    context.set_input_gradient(1, builder.add("ConvWeightGrad", {gradient, context.input(0)},
                                              with_output_shape(window, shape)));
  }
}

// --- ConvWeightGrad{with_bias}(x, dy) -> dw[, db] ---

void infer_weight_gradient(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const TensorType& dy = context.inputs[1];
  check_float(x, dy);
  const Shape w(context.attributes.ints("output_shape"));
  const Shape expected = output_shape(conv_geometry(context.attributes, x.shape, w));
  PT_CHECK(dy.shape == expected, kModel, "ConvWeightGrad to {} needs dy of shape {}, got {}",
           w.text(), expected.text(), dy.shape.text());
  context.outputs = {{x.dtype, w}};
  if (context.attributes.flag("with_bias")) context.outputs.push_back({x.dtype, Shape{w[0]}});
}

// --- packed weights ---

void infer_pack_convolution(InferContext& context) {
  const TensorType& w = context.inputs[0];
  PT_CHECK(w.dtype == DType::kFloat32 && w.shape.rank() >= 3, kModel,
           "PackConvolution needs float weights of a convolution, got {}", w.text());
  context.outputs = {
      {w.dtype, Shape{packed_weight_floats(w.shape, context.attributes.flag("input_gradient"))}}};
}

void check_packed(const InferContext& context, const Shape& w, bool input_gradient) {
  const Shape floats{packed_weight_floats(w, input_gradient)};
  PT_CHECK(context.inputs[1] == (TensorType{DType::kFloat32, floats}), kModel,
           "Weights of shape {} do not fit a packed {}", w.text(), context.inputs[1].text());
}

void infer_packed_conv(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const Shape w(context.attributes.ints("weight_shape"));
  check_packed(context, w, /*input_gradient=*/false);
  context.outputs = {{x.dtype, output_shape(conv_geometry(context.attributes, x.shape, w))}};
}

void infer_packed_input_gradient(InferContext& context) {
  const TensorType& dy = context.inputs[0];
  const Shape w(context.attributes.ints("weight_shape"));
  check_packed(context, w, /*input_gradient=*/true);
  const Shape x(context.attributes.ints("output_shape"));
  const Shape expected = output_shape(conv_geometry(context.attributes, x, w));
  PT_CHECK(dy.shape == expected, kModel, "ConvInputGradPacked to {} needs dy of shape {}, got {}",
           x.text(), expected.text(), dy.shape.text());
  context.outputs = {{dy.dtype, x}};
}

// --- import ---

Shape kernel_of(const ImportContext& context) {
  const TensorType& x = context.type(0);
  const TensorType& w = context.type(1);
  PT_CHECK(x.shape.rank() >= 3 && w.shape.rank() == x.shape.rank(), kModel,
           "{} needs an input (N, C, spatial...) and a weight of the same rank, got {} and {}",
           context.op_type(), x.shape.text(), w.shape.text());
  const Shape kernel = spatial_of(w.shape);
  const Ints stated = context.attributes().ints("kernel_shape", kernel.dims());
  PT_CHECK(stated == kernel.dims(), kModel, "kernel_shape does not agree with the weight {}",
           w.shape.text());
  return kernel;
}

/// Whether the node has a bias to add.
bool adds_bias(const ImportContext& context) {
  if (!context.has_input(2)) return false;
  const Shape& bias = context.type(2).shape;
  if (bias.rank() != 2 || bias[0] != context.type(1).shape[0]) return true;
  return !stands_for_no_bias(context.constant_or_empty(2));
}

void import_conv(ImportContext& context) {
  const Shape kernel = kernel_of(context);
  Attributes attributes = import_window(context, spatial_of(context.type(0).shape), kernel);
  attributes.set("group", context.attributes().integer("group", 1));
  std::vector<ValueId> inputs{context.input(0), context.input(1)};
  if (adds_bias(context)) inputs.push_back(context.input(2));
  context.set_output(0, context.builder().add("Conv", std::move(inputs), std::move(attributes)));
}

// One axis of a transposed convolution: fills in the padding or the output extent, whichever is not
// given.
void resolve_transposed_axis(WindowAxis& axis, std::int64_t output_padding,
                             const std::string& auto_pad, std::int64_t output) {
  const std::int64_t full = (axis.input - 1) * axis.stride + output_padding + axis.extent();
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (same && output <= 0) output = axis.input * axis.stride;
  if (output <= 0) {
    axis.output = full - axis.pad_begin - axis.pad_end;
    return;
  }
  const std::int64_t total = std::max<std::int64_t>(full - output, 0);
  axis.output = output;
  axis.pad_begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
  axis.pad_end = total - axis.pad_begin;
}

/// Positions at the end of a transposed convolution's output that a convolution of its gradient
/// would reach with further windows, as output_padding of the stride or more makes them.
std::int64_t positions_beyond(const WindowAxis& axis) {
  const std::int64_t windows = (axis.input - 1) * axis.stride + axis.extent();
  const std::int64_t rest = axis.output + axis.pad_begin + axis.pad_end - windows;
  return rest < axis.stride ? 0 : rest - (axis.stride - 1);
}

void import_conv_transpose(ImportContext& context) {
  const Attributes& given = context.attributes();
  const Shape x = context.type(0).shape;
  const Shape w = context.type(1).shape;
  const Shape kernel = kernel_of(context);
  const Shape input = spatial_of(x);
  const std::size_t rank = input.rank();
  const std::int64_t group = given.integer("group", 1);
  PT_CHECK(group >= 1 && w[0] == x[1] && x[1] % group == 0, kModel,
           "ConvTranspose weight {} does not fit an input {} with group {}", w.text(), x.text(),
           group);

  const std::string auto_pad = auto_pad_of(given);
  const auto read = [&](std::string_view name, std::size_t length, std::int64_t fallback) {
    const Ints out = given.ints(name, Ints(length, fallback));
    PT_CHECK(out.size() == length, kModel, "{} must have {} entries, got {}", name, length,
             out.size());
    return out;
  };
  const Ints strides = read("strides", rank, 1);
  const Ints dilations = read("dilations", rank, 1);
  const Ints output_padding = read("output_padding", rank, 0);
  Ints output = given.ints("output_shape", Ints(rank, 0));
  // Some exporters write the whole shape, batch and channels included.
  if (output.size() == rank + 2) output.erase(output.begin(), output.begin() + 2);
  PT_CHECK(output.size() == rank, kModel, "output_shape must have {} entries, got {}", rank,
           output.size());
  Ints pads = auto_pad == "NOTSET" ? read("pads", 2 * rank, 0) : Ints(2 * rank, 0);

  std::vector<std::int64_t> shape{x[0], w[1] * group};
  Ints zeros(2 * (rank + 2), 0);  // behind what windows reach
  for (std::size_t i = 0; i < rank; ++i) {
    WindowAxis axis{input[i], kernel[i], strides[i], dilations[i], pads[i], pads[i + rank], 0};
    resolve_transposed_axis(axis, output_padding[i], auto_pad, output[i]);
    const std::int64_t beyond = positions_beyond(axis);
    const std::int64_t from_padding = std::clamp<std::int64_t>(axis.pad_end, 0, beyond);
    axis.pad_end -= from_padding;
    axis.output -= beyond - from_padding;
    zeros[rank + 4 + i] = beyond - from_padding;
    pads[i] = axis.pad_begin;
    pads[i + rank] = axis.pad_end;
    shape.push_back(axis.output);
  }
  GraphBuilder& builder = context.builder();
  ValueId y = builder.add("ConvInputGrad", {context.input(0), context.input(1)},
                          {{"strides", strides},
                           {"dilations", dilations},
                           {"pads", pads},
                           {"group", group},
                           {"output_shape", shape}});
  if (std::ranges::any_of(zeros, [](std::int64_t n) { return n > 0; }))
    y = builder.add("Pad", {y}, {{"pads", zeros}, {"value", 0.0}});
  if (context.has_input(2)) {
    std::vector<std::int64_t> bias(rank + 2, 1);
    bias[1] = shape[1];
    y = builder.add("Add", {y, builder.reshape(context.input(2), Shape(std::move(bias)))});
  }
  context.set_output(0, y);
}

constexpr OpTraits kConvTraits = {KernelKind::kProduct,
                                  {PrecisionRule::kProduct, {0, 1}, {0}},
                                  LayoutRule::kConvolution,
                                  {ChunkRule::kSamples, {1, 2}},
                                  Fusion::kNever};
constexpr OpTraits kConvInputGradTraits = {KernelKind::kProduct,
                                           {PrecisionRule::kProduct, {0, 1}, {0}},
                                           LayoutRule::kConvolution,
                                           {ChunkRule::kSamples, {1}},
                                           Fusion::kNever};
constexpr OpTraits kConvWeightGradTraits = {KernelKind::kProduct,
                                            {PrecisionRule::kProduct, {0, 1}},
                                            LayoutRule::kConvolution,
                                            {.kind = ChunkRule::kSamples, .summed = true},
                                            Fusion::kNever};
/// With weights that pack_weights() has packed, when precision and layouts are chosen.
constexpr OpTraits kPackedConvTraits = {KernelKind::kProduct,
                                        {PrecisionRule::kFloat},
                                        LayoutRule::kRowMajor,
                                        {ChunkRule::kWhole},
                                        Fusion::kNever};
constexpr OpTraits kPackConvolutionTraits = {KernelKind::kReorder,
                                             {PrecisionRule::kFloat},
                                             LayoutRule::kRowMajor,
                                             {ChunkRule::kWhole},
                                             Fusion::kNever};

constexpr OpDef kConvOps[] = {
    {"Conv", kPlain, kConvTraits, infer_conv, differentiate_conv,
     [](const Attributes& attributes, std::span<const TensorType> in, std::span<const TensorType>) {
       return conv_cost(attributes, in[0].shape, in[1].shape);
     }},
    {"ConvInputGrad", kPlain, kConvInputGradTraits, infer_input_gradient,
     differentiate_input_gradient,
     [](const Attributes& attributes, std::span<const TensorType> in,
        std::span<const TensorType> out) {
       return conv_cost(attributes, out[0].shape, in[1].shape);
     }},
    {"ConvWeightGrad", kPlain, kConvWeightGradTraits, infer_weight_gradient, nullptr,
     [](const Attributes& attributes, std::span<const TensorType> in,
        std::span<const TensorType> out) {
       return conv_cost(attributes, in[0].shape, out[0].shape);
     }},
    {"ConvPacked", kPlain, kPackedConvTraits, infer_packed_conv, nullptr,
     [](const Attributes& attributes, std::span<const TensorType> in, std::span<const TensorType>) {
       return conv_cost(attributes, in[0].shape, Shape(attributes.ints("weight_shape")));
     }},
    {"ConvInputGradPacked", kPlain, kPackedConvTraits, infer_packed_input_gradient, nullptr,
     [](const Attributes& attributes, std::span<const TensorType>,
        std::span<const TensorType> out) {
       return conv_cost(attributes, out[0].shape, Shape(attributes.ints("weight_shape")));
     }},
    {"PackConvolution", kPlain, kPackConvolutionTraits, infer_pack_convolution, nullptr, nullptr},
};

constexpr ImportRule kConvImports[] = {
    {"Conv", import_conv},
    {"ConvTranspose", import_conv_transpose},
};

}  // namespace

const OpFamily& conv_family() {
  static const OpFamily family{"conv",
                               kConvOps,
                               kConvImports,
                               conv_reference_kernels(),
                               conv_cpu_kernels(),
                               [](Backend backend, const KernelRequest& request) {
                                 return backend == Backend::kCpu &&
                                        convolution_takes_bfloat16(request);
                               }};
  return family;
}

}  // namespace pipetrain
