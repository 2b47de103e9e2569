// Rearrangements of tensors in terms of canonical operators.
#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/read_budget.h"
#include "ops/composed/composed.h"
#include "ops/kernel/constant_size.h"

namespace pipetrain::composed {
namespace {

std::int64_t resolved(std::int64_t axis, const Shape& shape) {
  const auto rank = static_cast<std::int64_t>(shape.rank());
  PT_CHECK(axis >= -rank && axis < rank, kModel, "axis {} does not exist in {}", axis,
           shape.text());
  return axis < 0 ? axis + rank : axis;
}

ValueId index_constant(GraphBuilder& builder, const std::vector<std::int64_t>& values) {
  return builder.constant(
      HostTensor::of<std::int64_t>(Shape{static_cast<std::int64_t>(values.size())}, values));
}

// Center-crops, or pads with zeros on both sides; an odd element goes to the end.
void import_center_crop_pad(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  Ints all(shape.rank());
  std::iota(all.begin(), all.end(), 0);
  const Ints axes = context.attributes().ints("axes", all);
  const Ints sizes = context.constant(1, "shape").to_int64s();
  PT_CHECK(sizes.size() == axes.size(), kModel,
           "CenterCropPad of {} axes needs as many sizes, got {}", axes.size(), sizes.size());
  Ints starts(shape.rank(), 0), ends = shape.dims(), pads(2 * shape.rank(), 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(resolved(axes[i], shape));
    const std::int64_t more = sizes[i] - shape[axis];
    PT_CHECK(sizes[i] >= 0, kModel, "CenterCropPad cannot give an axis {} elements", sizes[i]);
    if (more < 0) {
      starts[axis] = -more / 2;
      ends[axis] = starts[axis] + sizes[i];
    } else {
      pads[axis] = more / 2;
      pads[axis + shape.rank()] = more - more / 2;
    }
  }
  ValueId x = context.input(0);
  const Ints steps(shape.rank(), 1);
  const auto is_zero = [](std::int64_t value) { return value == 0; };
  if (ends != shape.dims() || !std::ranges::all_of(starts, is_zero)) {
    x = builder.add("Slice", {x},
                    {{"starts", starts}, {"ends", ends}, {"axes", all}, {"steps", steps}});
  }
  if (!std::ranges::all_of(pads, is_zero)) {
    x = builder.add("Pad", {x}, {{"pads", pads}, {"value", 0.0}});
  }
  context.set_output(0, x);
}

// Adds the columns of windows back to their positions: a transposed convolution of each channel
// with filters that are 1 at one tap.
void import_col2im(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape x = context.type(0).shape;
  const Ints image = context.constant(1, "image_shape").to_int64s();
  const Shape block(context.constant(2, "block_shape").to_int64s());
  const std::size_t rank = image.size();
  const std::int64_t taps = block.count();
  PT_CHECK(x.rank() == 3 && block.rank() == rank && taps > 0 && x[1] % taps == 0, kModel,
           "Col2Im cannot take {} for blocks {}", x.text(), block.text());
  const Ints strides = context.attributes().ints("strides", Ints(rank, 1));
  const Ints dilations = context.attributes().ints("dilations", Ints(rank, 1));
  const Ints pads = context.attributes().ints("pads", Ints(2 * rank, 0));
  PT_CHECK(strides.size() == rank && dilations.size() == rank && pads.size() == 2 * rank, kModel,
           "Col2Im attributes do not have {} axes: {}", rank, context.attributes().to_text());
  const std::int64_t channels = x[1] / taps;
  std::vector<std::int64_t> columns{x[0], x[1]}, output{x[0], channels}, filter{x[1], 1};
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t covered =
        image[i] + pads[i] + pads[i + rank] - dilations[i] * (block[i] - 1);
    PT_CHECK(covered >= 1 && strides[i] >= 1, kModel, "Col2Im: a window does not fit the image");
    columns.push_back((covered - 1) / strides[i] + 1);
    output.push_back(image[i]);
    filter.push_back(block[i]);
  }
  PT_CHECK(Shape(columns).count() == x.count(), kModel, "Col2Im needs {} columns, got {}",
           Shape(columns).text(), x.text());
  expect_reasonable({DType::kFloat32, Shape(filter)});
  HostTensor one_hot(TensorType{DType::kFloat32, Shape(filter)});
  for (std::int64_t i = 0; i < x[1]; ++i) one_hot.view().as<float>()[i * taps + i % taps] = 1;
  ValueId weight = builder.constant(one_hot);
  if (context.type(0).dtype != DType::kFloat32) {
    weight =
        builder.add("Cast", {weight}, {{"to", static_cast<std::int64_t>(context.type(0).dtype)}});
  }
  context.set_output(
      0, builder.add("ConvInputGrad", {builder.reshape(context.input(0), Shape(columns)), weight},
                     {{"strides", strides},
                      {"dilations", dilations},
                      {"pads", pads},
                      {"group", channels},
                      {"output_shape", output}}));
}

// Keeps the elements that a constant condition selects.
void import_compress(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  ValueId x = context.input(0);
  std::int64_t axis = 0;
  if (context.attributes().has("axis")) {
    axis = resolved(context.attributes().integer("axis"), shape);
  } else {
    x = builder.reshape(x, {shape.count()});
  }
  const std::vector<std::int64_t> condition = context.constant(1, "condition").to_int64s();
  PT_CHECK(static_cast<std::int64_t>(condition.size()) <=
               builder.shape(x)[static_cast<std::size_t>(axis)],
           kModel, "the condition of Compress has {} elements for axis {} of {}", condition.size(),
           axis, builder.shape(x).text());
  std::vector<std::int64_t> kept;
  for (std::size_t i = 0; i < condition.size(); ++i) {
    if (condition[i] != 0) kept.push_back(static_cast<std::int64_t>(i));
  }
  context.set_output(0,
                     builder.add("Gather", {x, index_constant(builder, kept)}, {{"axis", axis}}));
}

// Reverses the first sequence_lens[b] steps of sequence b.
void import_reverse_sequence(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape shape = context.type(0).shape;
  const std::int64_t batch_axis = context.attributes().integer("batch_axis", 1);
  const std::int64_t time_axis = context.attributes().integer("time_axis", 0);
  PT_CHECK(shape.rank() >= 2 && batch_axis + time_axis == 1 && batch_axis * time_axis == 0, kModel,
           "ReverseSequence needs the axes 0 and 1 of at least two, got batch {} and time {} of {}",
           batch_axis, time_axis, shape.text());
  const std::int64_t batch = shape[static_cast<std::size_t>(batch_axis)];
  const std::int64_t time = shape[static_cast<std::size_t>(time_axis)];
  const Ints lengths = context.constant(1, "sequence_lens").to_int64s();
  PT_CHECK(static_cast<std::int64_t>(lengths.size()) == batch, kModel,
           "ReverseSequence of {} sequences got {} lengths", batch, lengths.size());
  expect_reasonable({DType::kInt64, Shape{batch, time}});
  ReadBudget::charge(sizeof(std::int64_t) * static_cast<std::size_t>(batch * time));
  std::vector<std::int64_t> source(static_cast<std::size_t>(batch * time));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    PT_CHECK(length >= 0 && length <= time, kModel, "a sequence of {} steps has no first {}", time,
             length);
    for (std::int64_t t = 0; t < time; ++t) {
      const std::int64_t from = t < length ? length - 1 - t : t;
      const auto position = [&](std::int64_t step) {
        return static_cast<std::size_t>(batch_axis == 0 ? b * time + step : step * batch + b);
      };
      source[position(t)] = static_cast<std::int64_t>(position(from));
    }
  }
  const ValueId rows =
      builder.reshape(context.input(0), {batch * time, shape.count(2, shape.rank())});
  const ValueId moved =
      builder.add("Gather", {rows, index_constant(builder, source)}, {{"axis", std::int64_t{0}}});
  context.set_output(0, builder.reshape(moved, shape));
}

/// Whether these are the indices of a MaxPool of this graph, as its import makes them.
bool are_of_pooling(const Graph& graph, ValueId indices) {
  while (graph[indices].producer) {
    const Node& node = graph[graph[indices].producer];
    if (node.op->name == "MaxPool") return true;
    if (node.op->name == "Gather") {
      indices = node.inputs[1];
    } else if (node.op->name == "Add" || node.op->name == "Cast") {
      indices = node.inputs[0];
    } else {
      break;
    }
  }
  return false;
}

// Writes each element to the position where MaxPool found it; indices are offsets into the whole
// result.
void import_max_unpool(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Shape x = context.type(0).shape;
  const Ints kernel = context.attributes().ints("kernel_shape");
  const std::size_t rank = kernel.size();
  const Ints strides = context.attributes().ints("strides", Ints(rank, 1));
  const Ints pads = context.attributes().ints("pads", Ints(2 * rank, 0));
  PT_CHECK(x.rank() == rank + 2 && strides.size() == rank && pads.size() == 2 * rank, kModel,
           "MaxUnpool of {} does not fit {}", x.text(), context.attributes().to_text());
  Shape shape = x;
  for (std::size_t i = 0; i < rank; ++i) {
    shape[i + 2] = (x[i + 2] - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i];
    PT_CHECK(shape[i + 2] >= 0, kModel, "MaxUnpool computes a negative output size");
  }
  const auto scattered = [&](const Shape& result) {
    const ValueId zeros =
        builder.constant(HostTensor(TensorType{context.type(0).dtype, {result.count()}}));
    return builder.reshape(
        builder.add("ScatterElements",
                    {zeros, builder.reshape(context.input(1), {x.count()}),
                     builder.reshape(context.input(0), {x.count()})},
                    {{"axis", std::int64_t{0}}, {"reduction", std::string("none")}}),
        result);
  };
  if (!context.has_input(2)) return context.set_output(0, scattered(shape));
  const Ints given = context.constant(2, "output_shape").to_int64s();
  PT_CHECK(given.size() == shape.rank(), kModel, "output_shape of MaxUnpool needs {} entries",
           shape.rank());
  // PyTorch and ONNX Runtime take the indices of a pooling as offsets into the result; ONNX's own
  // test case, with indices from elsewhere, as those into the shape without output_shape.
  if (are_of_pooling(builder.graph(), context.input(1)))
    return context.set_output(0, scattered(Shape(given)));
  ValueId y = scattered(shape);
  Ints growth(2 * given.size(), 0);
  for (std::size_t i = 0; i < given.size(); ++i) {
    growth[i + given.size()] = given[i] - shape[i];
    PT_CHECK(given[i] >= shape[i], kModel, "output_shape of MaxUnpool is less than {}",
             shape.text());
  }
  if (Shape(given) != shape) y = builder.add("Pad", {y}, {{"pads", growth}, {"value", 0.0}});
  context.set_output(0, y);
}

// theta (N, r, r + 1) applied to the positions of a grid of `size`, in [-1, 1]; x comes first.
void import_affine_grid(ImportContext& context) {
  GraphBuilder& builder = context.builder();
  const Ints size = context.constant(1, "size").to_int64s();
  const bool align = context.attributes().flag("align_corners");
  PT_CHECK(size.size() == 4 || size.size() == 5, kModel,
           "AffineGrid needs a size (N, C, H, W) or (N, C, D, H, W), got {} entries", size.size());
  const Shape spatial(std::vector<std::int64_t>(size.begin() + 2, size.end()));
  const std::size_t rank = spatial.rank();
  const auto columns = static_cast<std::int64_t>(rank) + 1;
  const Shape theta = context.type(0).shape;
  PT_CHECK((theta == Shape{size[0], columns - 1, columns}), kModel,
           "AffineGrid needs theta of shape ({}, {}, {}), got {}", size[0], columns - 1, columns,
           theta.text());
  expect_reasonable({DType::kFloat32, spatial});
  ReadBudget::charge(sizeof(float) * static_cast<std::size_t>(spatial.count() * columns));
  std::vector<float> base(static_cast<std::size_t>(spatial.count() * columns), 1.0F);
  const std::vector<std::int64_t> strides = spatial.strides();
  for (std::int64_t i = 0; i < spatial.count(); ++i) {
    for (std::size_t axis = 0; axis < rank; ++axis) {
      const auto at = static_cast<double>(i / strides[axis] % spatial[axis]);
      const auto extent = static_cast<double>(spatial[axis]);
      const double value =
          align ? (extent > 1 ? 2 * at / (extent - 1) - 1 : 0) : (2 * at + 1) / extent - 1;
      base[static_cast<std::size_t>(i) * (rank + 1) + rank - 1 - axis] = static_cast<float>(value);
    }
  }
  const ValueId positions = builder.constant(
      HostTensor::of<float>(Shape{spatial.count(), columns}, std::span<const float>(base)));
  // (P, r + 1) times theta transposed (N, r + 1, r)
  const ValueId grid = builder.add("MatMul", {positions, context.input(0)},
                                   {{"trans_a", std::int64_t{0}},
                                    {"trans_b", std::int64_t{1}},
                                    {"keep_float", std::int64_t{1}}});
  std::vector<std::int64_t> dims{size[0]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  dims.push_back(columns - 1);
  context.set_output(0, builder.reshape(grid, Shape(std::move(dims))));
}

constexpr ImportRule kComposedMovementImports[] = {
    {"AffineGrid", import_affine_grid}, {"CenterCropPad", import_center_crop_pad},
    {"Col2Im", import_col2im},          {"Compress", import_compress},
    {"MaxUnpool", import_max_unpool},   {"ReverseSequence", import_reverse_sequence},
};

}  // namespace

std::span<const ImportRule> movement_imports() { return kComposedMovementImports; }

}  // namespace pipetrain::composed
