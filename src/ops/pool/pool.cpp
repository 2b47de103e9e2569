// MaxPool, AveragePool and their gradients, and the import of the ONNX pooling operators. Rounding
// up (ceil_mode) becomes end padding on import, so that the canonical operators always round down.
#include "ops/pool/pool.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/composed/composed.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

Window pool_window(const Attributes& attributes, const Shape& x) {
  return make_window(attributes, spatial_of(x), Shape(attributes.ints("kernel")));
}

std::vector<std::int64_t> averaged_positions(const Attributes& attributes, const Window& window,
                                             std::size_t axis) {
  const WindowAxis& a = window[axis];
  const bool padding = attributes.flag("count_include_pad");
  const std::int64_t overhang = attributes.ints("overhang", Ints(window.size(), 0)).at(axis);
  const std::int64_t begin = padding ? -a.pad_begin : 0;
  const std::int64_t end = padding ? a.input + a.pad_end - overhang : a.input;
  std::vector<std::int64_t> out;
  for (std::int64_t o = 0; o < a.output; ++o) {
    std::int64_t count = 0;
    for (std::int64_t tap = 0; tap < a.kernel; ++tap) {
      const std::int64_t at = a.start(o) + tap * a.dilation;
      if (at >= begin && at < end) ++count;
    }
    out.push_back(std::max<std::int64_t>(count, 1));
  }
  return out;
}

namespace {

Shape pooled_shape(const Attributes& attributes, const Shape& x) {
  PT_CHECK(x.rank() >= 3 && x.rank() <= 5, kModel,
           "pooling needs an input of rank 3, 4 or 5, got {}", x.text());
  return window_outputs(x[0], x[1], pool_window(attributes, x));
}

Cost pool_cost(const Attributes& attributes, const Shape& y) {
  return {static_cast<double>(y.count()) *
          static_cast<double>(Shape(attributes.ints("kernel")).count())};
}

Attributes with_pooled_shape(Attributes attributes, const Shape& shape) {
  attributes.set("shape", shape.dims());
  return attributes;
}

// The output of a gradient: the input's shape; dy must have the shape that pooling it gives.
TensorType gradient_type(const InferContext& context) {
  const TensorType& dy = context.inputs[0];
  const Shape x(context.attributes.ints("shape"));
  const Shape expected = pooled_shape(context.attributes, x);
  PT_CHECK(dy.shape == expected, kModel, "a pooling gradient to {} needs dy of shape {}, got {}",
           x.text(), expected.text(), dy.shape.text());
  return {dy.dtype, x};
}

void infer_max(InferContext& context) {
  const TensorType& x = context.inputs[0];
  const Shape y = pooled_shape(context.attributes, x.shape);
  PT_CHECK(x.shape.count(2, x.shape.rank()) < (std::int64_t{1} << 31), kModel,
           "MaxPool supports up to 2147483647 positions, got {}", x.shape.text());
  context.outputs = {{x.dtype, y}, {DType::kInt32, y}};
}

void differentiate_max(GradientContext& context) {
  const Shape shape = context.input_type(0).shape;
  const ValueId dx =
      context.builder().add("MaxPoolGrad", {context.output_gradient(), context.output(1)},
                            with_pooled_shape(context.attributes(), shape));
  context.set_input_gradient(0, dx);
}

void infer_max_gradient(InferContext& context) {
  const TensorType& index = context.inputs[1];
  context.outputs = {gradient_type(context)};
  PT_CHECK(index.dtype == DType::kInt32 && index.shape == context.inputs[0].shape, kModel,
           "MaxPoolGrad needs an int32 index of dy's shape {}, got {}",
           context.inputs[0].shape.text(), index.text());
}

void infer_average(InferContext& context) {
  const TensorType& x = context.inputs[0];
  PT_CHECK(is_float(x.dtype), kModel, "AveragePool needs a float input, got {}", x.text());
  context.outputs = {{x.dtype, pooled_shape(context.attributes, x.shape)}};
}

void differentiate_average(GradientContext& context) {
  const Shape shape = context.input_type(0).shape;
  context.set_input_gradient(0,
                             context.builder().add("AveragePoolGrad", {context.output_gradient()},
                                                   with_pooled_shape(context.attributes(), shape)));
}

void infer_average_gradient(InferContext& context) { context.outputs = {gradient_type(context)}; }

// --- import ---

/// Rounds the number of windows up by growing the end padding; returns by how much it grew. A
/// window that would start in the end padding is dropped, as in PyTorch and ONNX 22.
Ints round_up(Attributes& attributes, const Shape& input, const Shape& kernel) {
  Ints pads = attributes.ints("pads");
  Ints overhang(input.rank(), 0);
  const Window window = make_window(attributes, input, kernel);
  for (std::size_t i = 0; i < window.size(); ++i) {
    const WindowAxis& axis = window[i];
    const std::int64_t padded = axis.input + axis.pad_begin + axis.pad_end;
    const std::int64_t covered = axis.output * axis.stride + axis.extent();
    const bool rest = (padded - axis.extent()) % axis.stride != 0;
    if (!rest || axis.output * axis.stride >= axis.input + axis.pad_begin) continue;
    overhang[i] = covered - padded;
    pads[i + window.size()] += overhang[i];
  }
  attributes.set("pads", pads);
  return overhang;
}

/// Where no whole window fits, rounding up leaves one of those taps that lie in the padded input.
void cut_large_windows(Attributes& attributes, const Shape& input, Ints& kernel) {
  const Ints pads = attributes.ints("pads"), dilations = attributes.ints("dilations");
  Ints strides = attributes.ints("strides");
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    const std::int64_t padded = input[i] + pads[i] + pads[i + kernel.size()];
    const std::int64_t missing = (kernel[i] - 1) * dilations[i] + 1 - padded;
    if (padded < 1 || missing <= 0 || missing >= strides[i]) continue;
    kernel[i] = (padded + dilations[i] - 1) / dilations[i];
    strides[i] = padded;  // the one window has no next
  }
  attributes.set("strides", strides);
}

Attributes import_pool(ImportContext& context, Ints* overhang) {
  const Shape input = spatial_of(context.type(0).shape);
  Ints kernel = context.attributes().ints("kernel_shape");
  PT_CHECK(kernel.size() == input.rank(), kModel, "kernel_shape must have {} entries, got {}",
           input.rank(), kernel.size());
  Attributes out = import_window(context, input, Shape(kernel));
  overhang->assign(input.rank(), 0);
  const bool rounds_up = context.attributes().flag("ceil_mode");
  if (rounds_up) cut_large_windows(out, input, kernel);
  out.set("kernel", kernel);
  if (rounds_up) *overhang = round_up(out, input, Shape(kernel));
  return out;
}

/// Maps row-major positions of a plane to column-major ones.
HostTensor column_major(const Shape& plane) {
  HostTensor out(TensorType{DType::kInt64, {plane.count()}});
  for (std::int64_t i = 0; i < plane.count(); ++i) {
    std::int64_t rest = i;
    std::int64_t position = 0;
    for (std::size_t axis = plane.rank(); axis-- > 0;) {
      position = position * plane[axis] + rest % plane[axis];
      rest /= plane[axis];
    }
    out.span<std::int64_t>()[static_cast<std::size_t>(i)] = position;
  }
  return out;
}

void import_max_pool(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape x = context.type(0).shape;
  Ints overhang;
  const std::vector<ValueId> outputs =
      builder.add_all("MaxPool", {context.input(0)}, import_pool(context, &overhang));
  context.set_output(0, outputs[0]);
  if (context.output_count() < 2) return;
  // ONNX indices are offsets into the whole tensor, canonical ones into one plane.
  const Shape plane = spatial_of(x);
  std::vector<std::int64_t> planes(x.rank(), 1);
  planes[0] = x[0];
  planes[1] = x[1];
  HostTensor offsets(TensorType{DType::kInt64, Shape(std::move(planes))});
  for (std::size_t i = 0; i < offsets.span<std::int64_t>().size(); ++i) {
    offsets.span<std::int64_t>()[i] = static_cast<std::int64_t>(i) * plane.count();
  }
  const bool columns = context.attributes().flag("storage_order");
  const ValueId index =
      columns
          ? builder.add("Gather", {builder.constant(column_major(plane)), outputs[1]},
                        {{"axis", std::int64_t{0}}})
          : builder.add("Cast", {outputs[1]}, {{"to", static_cast<std::int64_t>(DType::kInt64)}});
  context.set_output(1, builder.add("Add", {index, builder.constant(offsets)}));
}

void import_average_pool(ImportContext& context) {
  Ints overhang;
  Attributes attributes = import_pool(context, &overhang);
  attributes.set("overhang", overhang);
  attributes.set("count_include_pad", context.attributes().integer("count_include_pad", 0));
  context.set_output(
      0, context.builder().add("AveragePool", {context.input(0)}, std::move(attributes)));
}

// (sum of |x|^p over the window)^(1/p), padding counting as zeros.
void import_lp_pool(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const std::int64_t p = context.attributes().integer("p", 2);
  PT_CHECK(p >= 1, kModel, "LpPool needs p of at least 1, got {}", p);
  const auto power = static_cast<double>(p);
  Ints overhang;
  Attributes attributes = import_pool(context, &overhang);
  const std::int64_t taps = Shape(attributes.ints("kernel")).count();
  attributes.set("overhang", Ints(overhang.size(), 0));
  attributes.set("count_include_pad", std::int64_t{1});
  const ValueId powers = composed::absolute_power(builder, context.input(0), power);
  const ValueId mean = builder.add("AveragePool", {powers}, std::move(attributes));
  const ValueId count = builder.scalar(static_cast<double>(taps), context.type(0).dtype);
  context.set_output(0, composed::root(builder, builder.add("Mul", {mean, count}), power));
}

void reduce_spatial(ImportContext& context, std::string_view op) {
  Ints axes(spatial_of(context.type(0).shape).rank());
  std::iota(axes.begin(), axes.end(), 2);
  context.set_output(0, context.builder().add(op, {context.input(0)},
                                              {{"axes", axes}, {"keepdims", std::int64_t{1}}}));
}

void import_global_average(ImportContext& context) { reduce_spatial(context, "ReduceMean"); }
void import_global_max(ImportContext& context) { reduce_spatial(context, "ReduceMax"); }

Cost cost_of_output(const Attributes& attributes, std::span<const TensorType>,
                    std::span<const TensorType> out) {
  return pool_cost(attributes, out[0].shape);
}
Cost cost_of_input(const Attributes& attributes, std::span<const TensorType> in,
                   std::span<const TensorType>) {
  return pool_cost(attributes, in[0].shape);
}

constexpr OpTraits kPoolTraits = {KernelKind::kRows,
                                  {PrecisionRule::kFirst},
                                  LayoutRule::kFollows,
                                  {ChunkRule::kSamples},
                                  Fusion::kNever};

constexpr OpDef kPoolOps[] = {
    {"MaxPool", kPlain, kPoolTraits, infer_max, differentiate_max, cost_of_output},
    {"MaxPoolGrad", kPlain, kPoolTraits, infer_max_gradient, nullptr, cost_of_input},
    {"AveragePool", kPlain, kPoolTraits, infer_average, differentiate_average, cost_of_output},
    {"AveragePoolGrad", kPlain, kPoolTraits, infer_average_gradient, nullptr, cost_of_input},
};

constexpr ImportRule kPoolImports[] = {
    {"MaxPool", import_max_pool},
    {"AveragePool", import_average_pool},
    {"GlobalAveragePool", import_global_average},
    {"GlobalMaxPool", import_global_max},
    {"LpPool", import_lp_pool},
};

}  // namespace

const OpFamily& pool_family() {
  static const OpFamily family{"pool", kPoolOps, kPoolImports, pool_reference_kernels(),
                               pool_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
