// Imports ONNX's data movement operators of every opset as canonical ones.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/read_budget.h"
#include "ops/movement/movement.h"

namespace pipetrain::movement {
namespace {

std::int64_t rank_of(const TensorType& type) {
  return static_cast<std::int64_t>(type.shape.rank());
}

/// An axis counted from 0; negative ones count from the end of `rank`.
std::int64_t resolve_axis(std::int64_t axis, std::int64_t rank) {
  PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} does not exist in rank {}", axis, rank);
  return axis < 0 ? axis + rank : axis;
}

/// A list that became a constant input in some opset and was an attribute before. Empty when
/// absent.
Ints ints_at(ImportContext& context, std::int64_t since, std::size_t input, const char* name) {
  if (context.opset() < since) return context.attributes().ints(name, {});
  if (!context.has_input(input)) return {};
  return context.constant(input, name).to_int64s();
}

void set_reshaped(ImportContext& context, std::vector<std::int64_t> dims) {
  context.set_output(0, context.builder().reshape(context.input(0), Shape(std::move(dims))));
}

// 0 copies the dimension of the input (unless allowzero), -1 is inferred.
void import_reshape(ImportContext& context) {
  const Shape from = context.type(0).shape;
  Ints dims = ints_at(context, 5, 1, "shape");
  const bool zero_is_zero = context.attributes().flag("allowzero");
  std::int64_t known = 1;
  std::int64_t* unknown = nullptr;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !zero_is_zero) {
      PT_CHECK(i < from.rank(), kModel, "Reshape copies dimension {}, which {} does not have", i,
               from.text());
      dims[i] = from[i];
    }
    if (dims[i] == -1) {
      PT_CHECK(unknown == nullptr, kModel, "Reshape has more than one unknown dimension");
      unknown = &dims[i];
    } else {
      known *= dims[i];
    }
  }
  if (unknown) {
    PT_CHECK(known > 0 && from.count() % known == 0, kModel,
             "cannot reshape {} into rows of {} elements", from.text(), known);
    *unknown = from.count() / known;
  }
  set_reshaped(context, std::move(dims));
}

void import_flatten(ImportContext& context) {
  const Shape shape = context.type(0).shape;
  const auto rank = static_cast<std::int64_t>(shape.rank());
  const std::int64_t given = context.attributes().integer("axis", 1);
  PT_CHECK(given >= -rank && given <= rank, kModel, "axis {} does not exist in rank {}", given,
           rank);
  const auto axis = static_cast<std::size_t>(given < 0 ? given + rank : given);
  set_reshaped(context, {shape.count(0, axis), shape.count(axis, shape.rank())});
}

void import_squeeze(ImportContext& context) {
  const Shape shape = context.type(0).shape;
  Ints axes = ints_at(context, 13, 1, "axes");
  const bool all = axes.empty();
  for (std::int64_t& axis : axes) axis = resolve_axis(axis, rank_of(context.type(0)));
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const bool named =
        std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(i)) != axes.end();
    PT_CHECK(!named || shape[i] == 1, kModel, "cannot squeeze axis {} of {}", i, shape.text());
    if (!(named || (all && shape[i] == 1))) dims.push_back(shape[i]);
  }
  set_reshaped(context, std::move(dims));
}

void import_unsqueeze(ImportContext& context) {
  const Shape shape = context.type(0).shape;
  Ints axes = ints_at(context, 13, 1, "axes");
  const std::size_t rank = shape.rank() + axes.size();
  PT_CHECK(rank <= kMostAxesOfValue, kModel, "Unsqueeze to rank {}; {} is the most", rank,
           kMostAxesOfValue);
  for (std::int64_t& axis : axes) axis = resolve_axis(axis, static_cast<std::int64_t>(rank));
  std::vector<std::int64_t> dims;
  auto next = shape.begin();
  for (std::size_t i = 0; i < rank; ++i) {
    const auto times = std::count(axes.begin(), axes.end(), static_cast<std::int64_t>(i));
    PT_CHECK(times <= 1, kModel, "Unsqueeze names axis {} more than once", i);
    dims.push_back(times ? 1 : *next++);
  }
  set_reshaped(context, std::move(dims));
}

void import_identity(ImportContext& context) { context.set_output(0, context.input(0)); }

ValueId transpose(GraphBuilder& builder, ValueId x, const Ints& perm) {
  if (std::is_sorted(perm.begin(), perm.end())) return x;
  // Moving axes of size 1 only changes the shape.
  const Shape shape = builder.shape(x);
  std::int64_t previous = -1;
  bool moves = false;
  std::vector<std::int64_t> dims;
  for (const std::int64_t axis : perm) {
    const std::int64_t dim = shape[static_cast<std::size_t>(axis)];
    dims.push_back(dim);
    if (dim == 1) continue;
    moves = moves || axis < previous;
    previous = axis;
  }
  if (!moves) return builder.reshape(x, Shape(std::move(dims)));
  return builder.add("Transpose", {x}, {{"perm", perm}});
}

void import_transpose(ImportContext& context) {
  Ints reversed(context.type(0).shape.rank());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Ints perm = context.attributes().ints("perm", reversed);
  Ints sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  std::sort(reversed.begin(), reversed.end());
  PT_CHECK(sorted == reversed, kModel, "perm of Transpose must name each axis of {} once, got {}",
           context.type(0).text(), context.attributes().to_text());
  context.set_output(0, transpose(context.builder(), context.input(0), perm));
}

void import_concat(ImportContext& context) {
  if (context.input_count() == 1) return context.set_output(0, context.input(0));
  const std::int64_t given = context.opset() < 4 ? context.attributes().integer("axis", 1)
                                                 : context.attributes().integer("axis");
  const std::int64_t axis = resolve_axis(given, rank_of(context.type(0)));
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < context.input_count(); ++i) inputs.push_back(context.input(i));
  context.set_output(0, context.builder().add("Concat", std::move(inputs), {{"axis", axis}}));
}

/// Slices x along `axes` with ONNX's semantics: negative indices count from the end, all are
/// clamped.
ValueId slice(GraphBuilder& builder, ValueId x, Ints starts, Ints ends, Ints axes,
              const Ints& steps) {
  const Shape shape = builder.shape(x);
  bool whole = true;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    axes[i] = resolve_axis(axes[i], static_cast<std::int64_t>(shape.rank()));
    const std::int64_t dim = shape[static_cast<std::size_t>(axes[i])];
    PT_CHECK(steps[i] != 0, kModel, "a slice cannot have step 0");
    if (dim == 0) {
      starts[i] = ends[i] = 0;
      whole = whole && steps[i] == 1;
      continue;
    }
    if (starts[i] < 0) starts[i] += dim;
    if (ends[i] < 0) ends[i] = ends[i] < -dim ? -1 : ends[i] + dim;
    const bool forward = steps[i] > 0;
    starts[i] =
        std::clamp<std::int64_t>(starts[i], 0, forward ? dim : std::max<std::int64_t>(0, dim - 1));
    ends[i] = forward ? std::clamp<std::int64_t>(ends[i], 0, dim)
                      : std::clamp<std::int64_t>(ends[i], -1, dim - 1);
    if (forward && ends[i] < starts[i]) ends[i] = starts[i];
    whole = whole && starts[i] == 0 && ends[i] == dim && steps[i] == 1;
  }
  if (whole) return x;
  return builder.add("Slice", {x},
                     {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", steps}});
}

void import_slice(ImportContext& context) {
  Ints starts = ints_at(context, 10, 1, "starts");
  Ints ends = ints_at(context, 10, 2, "ends");
  Ints axes = ints_at(context, 10, 3, "axes");
  Ints steps = context.opset() < 10 ? Ints{} : ints_at(context, 10, 4, "steps");
  if (axes.empty()) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  PT_CHECK(
      ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size(),
      kModel, "starts, ends, axes and steps of Slice differ in length");
  context.set_output(0, slice(context.builder(), context.input(0), std::move(starts),
                              std::move(ends), std::move(axes), steps));
}

constexpr std::int64_t kMostParts = std::int64_t{1} << 31;
constexpr std::uint64_t kBytesOfPart = 64;  // at least, in the graph

void import_split(ImportContext& context) {
  const std::int64_t axis =
      resolve_axis(context.attributes().integer("axis", 0), rank_of(context.type(0)));
  const std::int64_t dim = context.type(0).shape[static_cast<std::size_t>(axis)];
  Ints sizes = ints_at(context, 13, 1, "split");
  if (sizes.empty()) {
    // Equal parts; since opset 18 the last may be smaller.
    const auto parts = context.attributes().integer(
        "num_outputs", static_cast<std::int64_t>(context.output_count()));
    PT_CHECK(parts > 0 && parts < kMostParts, kModel, "Split into {} parts", parts);
    PT_CHECK(context.opset() >= 18 || dim % parts == 0, kModel,
             "cannot split {} along axis {} into {} equal parts", context.type(0).text(), axis,
             parts);
    ReadBudget::charge(kBytesOfPart * static_cast<std::uint64_t>(parts));
    const std::int64_t size = (dim + parts - 1) / parts;
    for (std::int64_t left = dim; static_cast<std::int64_t>(sizes.size()) < parts;
         left -= sizes.back()) {
      sizes.push_back(std::min(size, left));
    }
  }
  if (sizes.size() == 1 && sizes[0] == dim) return context.set_output(0, context.input(0));
  const std::vector<ValueId> parts =
      context.builder().add_all("Split", {context.input(0)}, {{"axis", axis}, {"sizes", sizes}});
  for (std::size_t i = 0; i < parts.size(); ++i) context.set_output(i, parts[i]);
}

ValueId expand(GraphBuilder& builder, ValueId x, const Shape& shape) {
  if (builder.shape(x) == shape) return x;
  if (builder.shape(x).count() == shape.count()) return builder.reshape(x, shape);
  return builder.add("Expand", {x}, {{"shape", shape.dims()}});
}

void import_expand(ImportContext& context) {
  const Shape to(context.constant(1, "shape").to_int64s());
  context.set_output(
      0, expand(context.builder(), context.input(0), broadcast(context.type(0).shape, to)));
}

// Tile: an axis of size 1 in front of each repeated axis is expanded.
void import_tile(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  const Ints repeats = context.constant(1, "repeats").to_int64s();
  PT_CHECK(repeats.size() == shape.rank(), kModel, "Tile of {} needs {} repeats, got {}",
           shape.text(), shape.rank(), repeats.size());
  std::vector<std::int64_t> inner, expanded, result;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    PT_CHECK(repeats[i] >= 0, kModel, "Tile cannot repeat {} times", repeats[i]);
    inner.insert(inner.end(), {1, shape[i]});
    expanded.insert(expanded.end(), {repeats[i], shape[i]});
    result.push_back(repeats[i] * shape[i]);
  }
  const ValueId spread =
      expand(builder, builder.reshape(context.input(0), Shape(inner)), Shape(expanded));
  context.set_output(0, builder.reshape(spread, Shape(result)));
}

constexpr std::int64_t kMostPadding = std::int64_t{1} << 31;

/// The source index of position i (possibly outside) of an axis padded by reflect, edge or wrap.
std::int64_t mirrored(std::int64_t i, std::int64_t dim, const std::string& mode) {
  if (mode == "edge") return std::clamp<std::int64_t>(i, 0, dim - 1);
  if (mode == "wrap") return ((i % dim) + dim) % dim;
  const std::int64_t period = std::max<std::int64_t>(1, 2 * (dim - 1));
  const std::int64_t at = ((i % period) + period) % period;
  return at < dim ? at : period - at;
}

// Constant padding is the operator Pad, negative pads are a slice, the other modes a gather.
void import_pad(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  const std::string mode = context.attributes().text("mode", "constant");
  const Ints given = ints_at(context, 11, 1, "pads");
  double value = context.opset() < 11 ? context.attributes().real("value", 0) : 0;
  if (context.opset() >= 11 && context.has_input(2)) value = context.real_scalar(2, "value");
  Ints axes(shape.rank());
  std::iota(axes.begin(), axes.end(), 0);
  if (context.opset() >= 18 && context.has_input(3)) axes = context.constant(3, "axes").to_int64s();
  PT_CHECK(given.size() == 2 * axes.size(), kModel, "Pad of {} axes needs {} pads, got {}",
           axes.size(), 2 * axes.size(), given.size());
  Ints pads(2 * shape.rank(), 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(resolve_axis(axes[i], rank_of(context.type(0))));
    pads[axis] = given[i];
    pads[axis + shape.rank()] = given[i + axes.size()];
  }
  for (const std::int64_t pad : pads) {
    PT_CHECK(pad > -kMostPadding && pad < kMostPadding, kModel,
             "pads must be between -2147483647 and 2147483647, got {}", pad);
  }
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t before = pads[axis], after = pads[axis + shape.rank()];
    PT_CHECK(
        shape[axis] + std::min<std::int64_t>(0, before) + std::min<std::int64_t>(0, after) >= 0,
        kModel, "pads {} and {} cut more than the {} elements of axis {}", before, after,
        shape[axis], axis);
  }

  ValueId x = context.input(0);
  if (mode != "constant") {
    PT_CHECK(mode == "reflect" || mode == "edge" || mode == "wrap", kModel,
             "Pad has no mode \"{}\"", printable(mode));
    for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
      const std::int64_t before = pads[axis];
      const std::int64_t after = pads[axis + shape.rank()];
      if (before == 0 && after == 0) continue;
      PT_CHECK(shape[axis] > 0, kModel, "cannot pad {} with this mode: it has no elements",
               shape.text());
      ReadBudget::charge(sizeof(std::int64_t) * static_cast<std::size_t>(std::max<std::int64_t>(
                                                    0, before + shape[axis] + after)));
      Ints source;
      for (std::int64_t i = -before; i < shape[axis] + after; ++i)
        source.push_back(mirrored(i, shape[axis], mode));
      const auto length = static_cast<std::int64_t>(source.size());
      const ValueId index = builder.constant(HostTensor::of<std::int64_t>(Shape{length}, source));
      x = builder.add("Gather", {x, index}, {{"axis", static_cast<std::int64_t>(axis)}});
    }
    return context.set_output(0, x);
  }
  Ints starts, ends, cut_axes;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    std::int64_t& before = pads[axis];
    std::int64_t& after = pads[axis + shape.rank()];
    if (before >= 0 && after >= 0) continue;
    starts.push_back(std::max<std::int64_t>(0, -before));
    ends.push_back(shape[axis] + std::min<std::int64_t>(0, after));
    cut_axes.push_back(static_cast<std::int64_t>(axis));
    before = std::max<std::int64_t>(0, before);
    after = std::max<std::int64_t>(0, after);
  }
  if (!cut_axes.empty()) {
    const Ints steps(cut_axes.size(), 1);
    x = slice(builder, x, std::move(starts), std::move(ends), std::move(cut_axes), steps);
  }
  if (std::any_of(pads.begin(), pads.end(), [](std::int64_t pad) { return pad != 0; })) {
    x = builder.add("Pad", {x}, {{"pads", pads}, {"value", value}});
  }
  context.set_output(0, x);
}

void import_trilu(ImportContext& context) {
  const std::int64_t k = context.has_input(1) ? context.scalar(1, "k") : 0;
  context.set_output(
      0, context.builder().add("Trilu", {context.input(0)},
                               {{"upper", context.attributes().integer("upper", 1)}, {"k", k}}));
}

/// DepthToSpace and SpaceToDepth: reshape to six axes, transpose, reshape.
void rearrange(ImportContext& context, const Shape& cut, const Ints& perm, const Shape& result) {
  GraphBuilder& builder = context.builder();
  const ValueId six = builder.reshape(context.input(0), cut);
  context.set_output(0, builder.reshape(transpose(builder, six, perm), result));
}

void import_depth_to_space(ImportContext& context) {
  const Shape x = context.type(0).shape;
  const std::int64_t b = context.attributes().integer("blocksize");
  PT_CHECK(x.rank() == 4 && b > 0 && b <= x[1] && x[1] % b == 0 && x[1] / b % b == 0, kModel,
           "DepthToSpace cannot split {} into blocks of {}", x.text(), b);
  const std::int64_t c = x[1] / (b * b);
  const Shape result{x[0], c, x[2] * b, x[3] * b};
  const bool crd = context.attributes().text("mode", "DCR") == "CRD";
  if (crd) return rearrange(context, {x[0], c, b, b, x[2], x[3]}, {0, 1, 4, 2, 5, 3}, result);
  rearrange(context, {x[0], b, b, c, x[2], x[3]}, {0, 3, 4, 1, 5, 2}, result);
}

void import_space_to_depth(ImportContext& context) {
  const Shape x = context.type(0).shape;
  const std::int64_t b = context.attributes().integer("blocksize");
  PT_CHECK(x.rank() == 4 && b > 0 && b <= x[2] && x[2] % b == 0 && x[3] % b == 0, kModel,
           "SpaceToDepth cannot split {} into blocks of {}", x.text(), b);
  const bool crd = context.attributes().text("mode", "DCR") == "CRD";
  const Ints perm = crd ? Ints{0, 1, 3, 5, 2, 4} : Ints{0, 3, 5, 1, 2, 4};
  rearrange(context, {x[0], x[1], x[2] / b, b, x[3] / b, b}, perm,
            {x[0], x[1] * b * b, x[2] / b, x[3] / b});
}

constexpr ImportRule kMovementImports[] = {
    {"Concat", import_concat},
    {"DepthToSpace", import_depth_to_space},
    {"Expand", import_expand},
    {"Flatten", import_flatten},
    {"Identity", import_identity},
    {"Pad", import_pad},
    {"Reshape", import_reshape},
    {"Slice", import_slice},
    {"SpaceToDepth", import_space_to_depth},
    {"Split", import_split},
    {"Squeeze", import_squeeze},
    {"Tile", import_tile},
    {"Transpose", import_transpose},
    {"Trilu", import_trilu},
    {"Unsqueeze", import_unsqueeze},
};

}  // namespace

std::span<const ImportRule> imports() { return kMovementImports; }

}  // namespace pipetrain::movement
