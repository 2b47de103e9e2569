// Operators that move data without arithmetic: Reshape, Transpose, Concat, Split, Slice, Expand,
// Pad, Trilu.
#include "ops/movement/movement.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/kernel/channel_block.h"
#include "ops/registry/all_ops.h"

namespace pipetrain {
namespace {

const TensorType& only_input(const InferContext& context) {
  PT_CHECK(context.inputs.size() == 1, kModel, "expected 1 input, got {}", context.inputs.size());
  PT_CHECK(context.inputs[0].dtype != DType::kUndefined, kModel, "an input is absent");
  return context.inputs[0];
}

const TensorType& only_row_major_input(const InferContext& context) {
  const TensorType& type = only_input(context);
  PT_CHECK(type.layout == Layout::kRowMajor, kInternal, "{} must be row-major here", type.text());
  return type;
}

std::size_t axis_of(const Attributes& attributes, std::size_t rank) {
  const std::int64_t axis = attributes.integer("axis");
  PT_CHECK(axis >= 0 && axis < static_cast<std::int64_t>(rank), kModel,
           "axis {} does not exist in rank {}", axis, rank);
  return static_cast<std::size_t>(axis);
}

/// Concat and Split keep a blocked layout along the batch axis, and along channels at multiples of
/// the block.
void expect_whole_blocks(const TensorType& type, std::size_t axis) {
  if (type.layout == Layout::kRowMajor) return;
  const std::int64_t block = type.layout == Layout::kChannelsLast ? 1 : channel_block(type);
  PT_CHECK(axis == 0 || (axis == 1 && type.shape[1] % block == 0), kInternal,
           "cannot split {} along axis {} in a blocked layout", type.text(), axis);
}

// --- types ---

void infer_reshape(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  const Shape shape(context.attributes.ints("shape"));
  PT_CHECK(std::all_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim >= 0; }) &&
               shape.count() == x.count(),
           kModel, "cannot reshape {} to {}", x.shape.text(), shape.text());
  context.outputs = {{x.dtype, shape}};
}

void infer_transpose(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  const Ints perm = context.attributes.ints("perm");
  Ints sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  Ints expected(x.shape.rank());
  std::iota(expected.begin(), expected.end(), 0);
  PT_CHECK(sorted == expected, kModel, "a permutation of {} axes is needed, got {}", x.shape.rank(),
           context.attributes.to_text());
  std::vector<std::int64_t> dims;
  for (const std::int64_t axis : perm) dims.push_back(x.shape[static_cast<std::size_t>(axis)]);
  context.outputs = {{x.dtype, Shape(std::move(dims))}};
}

void infer_expand(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  const Shape shape(context.attributes.ints("shape"));
  PT_CHECK(broadcast(x.shape, shape) == shape, kModel, "cannot expand {} to {}", x.shape.text(),
           shape.text());
  context.outputs = {{x.dtype, shape}};
}

void infer_concat(InferContext& context) {
  PT_CHECK(!context.inputs.empty(), kModel, "expected at least one input");
  TensorType out = context.inputs[0];
  const std::size_t axis = axis_of(context.attributes, out.shape.rank());
  expect_whole_blocks(out, axis);
  for (const TensorType& type : context.inputs.subspan(1)) {
    PT_CHECK(type.dtype == out.dtype && type.layout == out.layout &&
                 type.shape.rank() == out.shape.rank(),
             kModel, "cannot join {} and {}", out.text(), type.text());
    expect_whole_blocks(type, axis);
    for (std::size_t i = 0; i < out.shape.rank(); ++i) {
      PT_CHECK(i == axis || type.shape[i] == out.shape[i], kModel,
               "cannot join {} and {} along axis {}", out.text(), type.text(), axis);
    }
    out.shape[axis] += type.shape[axis];
  }
  context.outputs = {out};
}

void infer_split(InferContext& context) {
  const TensorType& x = only_input(context);
  const std::size_t axis = axis_of(context.attributes, x.shape.rank());
  const Ints sizes = context.attributes.ints("sizes");
  PT_CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == x.shape[axis] &&
               std::all_of(sizes.begin(), sizes.end(),
                           [&](std::int64_t size) { return size >= 0 && size <= x.shape[axis]; }),
           kModel, "cannot split {} along axis {} into {}", x.text(), axis,
           context.attributes.to_text());
  for (const std::int64_t size : sizes) {
    TensorType part = x;
    part.shape[axis] = size;
    expect_whole_blocks(part, axis);
    context.outputs.push_back(std::move(part));
  }
}

/// The box (starts, steps and extents) that Slice reads and SliceGrad writes in a tensor of
/// `shape`.
struct SliceBox {
  std::vector<BoxAxis> axes;
  Shape extents;
};

SliceBox slice_box(const Attributes& attributes, const Shape& shape) {
  const Ints starts = attributes.ints("starts");
  const Ints ends = attributes.ints("ends");
  const Ints axes = attributes.ints("axes");
  const Ints steps = attributes.ints("steps");
  PT_CHECK(
      starts.size() == axes.size() && ends.size() == axes.size() && steps.size() == axes.size(),
      kModel, "starts, ends, axes and steps of a slice differ in length: {}", attributes.to_text());
  SliceBox box{std::vector<BoxAxis>(shape.rank()), shape};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    PT_CHECK(axes[i] >= 0 && axes[i] < static_cast<std::int64_t>(shape.rank()), kModel,
             "axis {} does not exist in {}", axes[i], shape.text());
    const auto axis = static_cast<std::size_t>(axes[i]);
    PT_CHECK(steps[i] != 0, kModel, "a slice cannot have step 0");
    const std::int64_t longest = std::max<std::int64_t>(1, shape[axis]);
    const std::int64_t step = std::clamp(steps[i], -longest, longest);  // larger: one element
    const std::int64_t distance = ends[i] - starts[i];
    const std::int64_t count =
        step > 0 ? (distance + step - 1) / step : (-distance - step - 1) / -step;
    box.extents[axis] = std::max<std::int64_t>(0, count);
    box.axes[axis] = {starts[i], step};
    if (box.extents[axis] == 0) {
      box.axes[axis] = {};
      continue;
    }
    const std::int64_t last = starts[i] + (box.extents[axis] - 1) * step;
    PT_CHECK(std::min(starts[i], last) >= 0 && std::max(starts[i], last) < shape[axis], kModel,
             "slice {} is out of range of {}", attributes.to_text(), shape.text());
  }
  return box;
}

void infer_slice(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  context.outputs = {{x.dtype, slice_box(context.attributes, x.shape).extents}};
}

void infer_slice_grad(InferContext& context) {
  const TensorType& dy = only_row_major_input(context);
  const Shape shape(context.attributes.ints("shape"));
  const Shape extents = slice_box(context.attributes, shape).extents;
  PT_CHECK(extents == dy.shape, kModel, "a slice of {} has shape {}, got {}", shape.text(),
           extents.text(), dy.shape.text());
  context.outputs = {{dy.dtype, shape}};
}

void infer_pad(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  const Ints pads = context.attributes.ints("pads");
  PT_CHECK(pads.size() == 2 * x.shape.rank(), kModel, "expected {} pads for {}, got {}",
           2 * x.shape.rank(), x.shape.text(), pads.size());
  TensorType out = x;
  for (std::size_t axis = 0; axis < x.shape.rank(); ++axis) {
    const std::int64_t after = pads[axis + x.shape.rank()];
    PT_CHECK(pads[axis] >= 0 && after >= 0, kModel, "pads must not be negative here, got {}",
             context.attributes.to_text());
    out.shape[axis] += pads[axis] + after;
  }
  context.outputs = {out};
}

void infer_trilu(InferContext& context) {
  const TensorType& x = only_row_major_input(context);
  PT_CHECK(x.shape.rank() >= 2, kModel, "expected a matrix, got {}", x.text());
  context.outputs = {x};
}

// --- gradients ---

void reshape_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Shape shape = context.input_type(0).shape;
  context.set_input_gradient(0, context.builder().reshape(context.output_gradient(), shape));
}

void transpose_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Ints perm = context.attributes().ints("perm");
  Ints inverse(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  }
  context.set_input_gradient(
      0, context.builder().add("Transpose", {context.output_gradient()}, {{"perm", inverse}}));
}

void expand_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Shape shape = context.input_type(0).shape;
  context.set_input_gradient(0, context.builder().sum_to(context.output_gradient(), shape));
}

void concat_gradient(GradientContext& context) {
  const std::int64_t axis = context.attributes().integer("axis");
  std::int64_t start = 0;
  for (std::size_t i = 0; i < context.input_count(); ++i) {
    const std::int64_t size = context.input_type(i).shape[static_cast<std::size_t>(axis)];
    if (context.wants(i)) {
      context.set_input_gradient(i, context.builder().add("Slice", {context.output_gradient()},
                                                          {{"starts", Ints{start}},
                                                           {"ends", Ints{start + size}},
                                                           {"axes", Ints{axis}},
                                                           {"steps", Ints{1}}}));
    }
    start += size;
  }
}

void split_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  GraphBuilder& builder = context.builder();
  const std::int64_t axis = context.attributes().integer("axis");
  const Ints sizes = context.attributes().ints("sizes");
  const TensorType whole = context.input_type(0);
  std::vector<ValueId> parts;
  std::size_t present = 0;
  std::size_t only = 0;
  std::int64_t only_start = 0;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(context.output_gradient(i));
    if (parts.back()) {
      ++present;
      only = i;
      only_start = start;
    }
    start += sizes[i];
  }
  if (present == 0) return;
  if (present == 1 && sizes.size() > 1 && whole.layout == Layout::kRowMajor) {
    context.set_input_gradient(0, builder.add("SliceGrad", {parts[only]},
                                              {{"shape", whole.shape.dims()},
                                               {"starts", Ints{only_start}},
                                               {"ends", Ints{only_start + sizes[only]}},
                                               {"axes", Ints{axis}},
                                               {"steps", Ints{1}}}));
    return;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!parts[i]) parts[i] = builder.constant(HostTensor(TensorType(context.output_type(i))));
  }
  context.set_input_gradient(0, builder.add("Concat", std::move(parts), {{"axis", axis}}));
}

void slice_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  Attributes attributes = context.attributes();
  attributes.set("shape", context.input_type(0).shape.dims());
  context.set_input_gradient(
      0, context.builder().add("SliceGrad", {context.output_gradient()}, std::move(attributes)));
}

void slice_grad_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Attributes& from = context.attributes();
  Attributes attributes{{"starts", from.ints("starts")},
                        {"ends", from.ints("ends")},
                        {"axes", from.ints("axes")},
                        {"steps", from.ints("steps")}};
  context.set_input_gradient(
      0, context.builder().add("Slice", {context.output_gradient()}, std::move(attributes)));
}

void pad_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Ints pads = context.attributes().ints("pads");
  const Shape shape = context.input_type(0).shape;
  Ints axes(shape.rank());
  std::iota(axes.begin(), axes.end(), 0);
  Ints starts(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(shape.rank()));
  Ints ends = starts;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) ends[axis] += shape[axis];
  context.set_input_gradient(
      0,
      context.builder().add(
          "Slice", {context.output_gradient()},
          {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", Ints(shape.rank(), 1)}}));
}

void trilu_gradient(GradientContext& context) {
  if (!context.wants(0)) return;
  const Attributes attributes = context.attributes();
  context.set_input_gradient(
      0, context.builder().add("Trilu", {context.output_gradient()}, attributes));
}

constexpr OpTraits kCopyTraits = {KernelKind::kReorder,
                                  {PrecisionRule::kFirst},
                                  LayoutRule::kRowMajor,
                                  {ChunkRule::kCopies},
                                  Fusion::kNever};
constexpr OpTraits kConcatTraits = {KernelKind::kReorder,
                                    {PrecisionRule::kJoined},
                                    LayoutRule::kWholeBlocks,
                                    {ChunkRule::kCopies},
                                    Fusion::kNever};
constexpr OpTraits kSliceTraits = {KernelKind::kReorder,
                                   {PrecisionRule::kFirst},
                                   LayoutRule::kWholeBlocks,
                                   {ChunkRule::kCopies},
                                   Fusion::kNever};
constexpr OpTraits kSplitTraits = {KernelKind::kReorder,
                                   {PrecisionRule::kAllFirst},
                                   LayoutRule::kWholeBlocks,
                                   {ChunkRule::kCopies},
                                   Fusion::kNever};
constexpr OpTraits kPadTraits = {KernelKind::kReorder,
                                 {PrecisionRule::kFirst},
                                 LayoutRule::kRowMajor,
                                 {ChunkRule::kWhole},
                                 Fusion::kNever};
constexpr OpTraits kReshapeTraits = {KernelKind::kReorder,
                                     {PrecisionRule::kFirst},
                                     LayoutRule::kRowMajor,
                                     {ChunkRule::kWhole},
                                     Fusion::kNever};
constexpr OpTraits kTriluTraits = {KernelKind::kElementwise,
                                   {PrecisionRule::kFirst},
                                   LayoutRule::kRowMajor,
                                   {ChunkRule::kWhole},
                                   Fusion::kNever};

constexpr OpDef kMovementOps[] = {
    {"Concat", kPlain, kConcatTraits, infer_concat, concat_gradient},
    {"Expand", kPlain, kCopyTraits, infer_expand, expand_gradient},
    {"Pad", kPlain, kPadTraits, infer_pad, pad_gradient},
    {"Reshape", kView, kReshapeTraits, infer_reshape, reshape_gradient},
    {"Slice", kPlain, kSliceTraits, infer_slice, slice_gradient},
    {"SliceGrad", kPlain, kCopyTraits, infer_slice_grad, slice_grad_gradient},
    {"Split", kPlain, kSplitTraits, infer_split, split_gradient},
    {"Transpose", kPlain, kCopyTraits, infer_transpose, transpose_gradient},
    {"Trilu", kPlain, kTriluTraits, infer_trilu, trilu_gradient},
};

/// The shape of a tensor in memory: (N, C / block, H, W, block) when it is blocked.
Shape shape_in_memory(const TensorType& type) {
  if (type.layout == Layout::kRowMajor) return type.shape;
  const std::int64_t block = channel_block(type);
  std::vector<std::int64_t> dims = type.shape.dims();
  dims[1] /= block;
  dims.push_back(block);
  return Shape(std::move(dims));
}

/// The axis of shape_in_memory() that corresponds to an axis: channels-last channels are innermost.
std::size_t axis_in_memory(const TensorType& type, std::size_t axis) {
  return type.layout == Layout::kChannelsLast && axis == 1 ? type.shape.rank() : axis;
}

/// The box of a slice within shape_in_memory(). Slices of blocked tensors consist of whole blocks
/// of channels, so their offset does not depend on the layout.
std::vector<BoxAxis> box_in_memory(const TensorType& type, std::vector<BoxAxis> axes) {
  if (type.layout != Layout::kChannelsLast) return axes;
  axes.push_back(axes[1]);
  axes[1] = {};
  return axes;
}

}  // namespace

movement::Movement movement::movement_of(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  const Attributes& attributes = request.node.attributes;
  const Shape in = shape_in_memory(request.inputs[0]);
  const Shape out = shape_in_memory(request.outputs[0]);
  if (op == "Transpose") return {{{0, 0, plan_transpose(in, attributes.ints("perm"))}}};
  if (op == "Expand") return {{{0, 0, plan_expand(in, out)}}};
  if (op == "Slice" || op == "SliceGrad") {
    const TensorType& whole = op == "Slice" ? request.inputs[0] : request.outputs[0];
    const auto axes = box_in_memory(whole, slice_box(attributes, whole.shape).axes);
    const bool last = whole.layout == Layout::kChannelsLast;
    const Shape& from = last ? in : request.inputs[0].shape;
    const Shape& to = last ? out : request.outputs[0].shape;
    if (op == "Slice") return {{{0, 0, plan_read_box(from, to, axes)}}};
    return {{{0, 0, plan_write_box(from, to, axes)}}, /*fills=*/true};
  }
  std::vector<BoxAxis> box(in.rank());
  if (op == "Pad") {
    const Ints pads = attributes.ints("pads");
    for (std::size_t axis = 0; axis < in.rank(); ++axis) box[axis].start = pads[axis];
    return {{{0, 0, plan_write_box(in, out, box)}}, /*fills=*/true, attributes.real("value", 0)};
  }
  Movement movement;
  const std::size_t axis =
      axis_in_memory(request.inputs[0], static_cast<std::size_t>(attributes.integer("axis")));
  if (op == "Concat") {
    for (std::size_t i = 0; i < request.inputs.size(); ++i) {
      const Shape part = shape_in_memory(request.inputs[i]);
      movement.copies.push_back({i, 0, plan_write_box(part, out, box)});
      box[axis].start += part[axis];
    }
    return movement;
  }
  PT_CHECK(op == "Split", kInternal, "{} is not a copy", op);
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const Shape part = shape_in_memory(request.outputs[i]);
    movement.copies.push_back({0, i, plan_read_box(in, part, box)});
    box[axis].start += part[axis];
  }
  return movement;
}

const OpFamily& movement_family() {
  static const OpFamily family{"movement", kMovementOps, movement::imports(),
                               movement::reference_kernels(), movement::cpu_kernels()};
  return family;
}

}  // namespace pipetrain
