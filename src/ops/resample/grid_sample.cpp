// GridSample, its gradient and its import.
#include "ops/resample/grid_sample.h"

#include "base/error.h"
#include "ops/registry/all_ops.h"
#include "ops/registry/registry.h"

namespace pipetrain {

GridGeometry grid_geometry(const Attributes& attributes, const Shape& x, const Shape& grid) {
  PT_CHECK(x.rank() >= 3 && x.rank() <= 5 && grid.rank() == x.rank() && grid[0] == x[0] &&
               grid[grid.rank() - 1] == static_cast<std::int64_t>(x.rank()) - 2,
           kModel, "GridSample of {} cannot use a grid {}", x.text(), grid.text());
  GridGeometry out;
  const std::string mode = attributes.text("mode", "linear");
  const std::string padding = attributes.text("padding_mode", "zeros");
  PT_CHECK(mode == "linear" || mode == "nearest" || mode == "cubic", kModel,
           "GridSample has no mode \"{}\"", printable(mode));
  PT_CHECK(padding == "zeros" || padding == "border" || padding == "reflection", kModel,
           "GridSample has no padding_mode \"{}\"", printable(padding));
  out.mode = mode == "linear" ? GridMode::kLinear
                              : (mode == "cubic" ? GridMode::kCubic : GridMode::kNearest);
  out.padding = padding == "zeros"    ? GridPadding::kZeros
                : padding == "border" ? GridPadding::kBorder
                                      : GridPadding::kReflection;
  out.align_corners = attributes.flag("align_corners");
  out.batch = x[0];
  out.channels = x[1];
  out.rank = static_cast<std::int64_t>(x.rank()) - 2;
  out.plane = x.count(2, x.rank());
  PT_CHECK(out.plane > 0 || grid.count() == 0, kModel, "GridSample cannot read from {}", x.text());
  const std::vector<std::int64_t> strides = x.strides();
  std::vector<std::int64_t> dims{x[0], x[1]};
  for (std::size_t axis = 0; axis + 2 < x.rank(); ++axis) {
    out.extent[axis] = x[axis + 2];
    out.stride[axis] = strides[axis + 2];
    dims.push_back(grid[axis + 1]);
  }
  out.positions = grid.count(1, grid.rank() - 1);
  out.output = Shape(std::move(dims));
  return out;
}

namespace {

void check_types(const TensorType& x, const TensorType& grid) {
  PT_CHECK(is_float(x.dtype) && x.dtype == grid.dtype, kModel,
           "GridSample needs equal float types, got {} and {}", x.text(), grid.text());
}

void infer_sample(InferContext& context) {
  PT_CHECK(context.inputs.size() == 2, kModel, "expected 2 inputs, got {}", context.inputs.size());
  check_types(context.inputs[0], context.inputs[1]);
  const Shape shape =
      grid_geometry(context.attributes, context.inputs[0].shape, context.inputs[1].shape).output;
  context.outputs = {{context.inputs[0].dtype, shape}};
}

void infer_grid_sample_gradient(InferContext& context) {
  PT_CHECK(context.inputs.size() == 3, kModel, "expected 3 inputs, got {}", context.inputs.size());
  check_types(context.inputs[1], context.inputs[2]);
  const Shape shape =
      grid_geometry(context.attributes, context.inputs[1].shape, context.inputs[2].shape).output;
  PT_CHECK(context.inputs[0] == (TensorType{context.inputs[1].dtype, shape}), kModel,
           "the gradient of GridSample must have shape {}, got {}", shape.text(),
           context.inputs[0].text());
  context.outputs = {context.inputs[1], context.inputs[2]};
}

void differentiate(GradientContext& context) {
  const Attributes attributes = context.attributes();
  const std::vector<ValueId> gradients = context.builder().add_all(
      "GridSampleGrad", {context.output_gradient(), context.input(0), context.input(1)},
      attributes);
  for (const std::size_t i : {0, 1}) {
    if (context.wants(i)) context.set_input_gradient(i, gradients[i]);
  }
}

Cost grid_sample_cost(const Attributes& attributes, std::span<const TensorType> inputs,
                      std::span<const TensorType>) {
  const std::size_t last = inputs.size() - 1;
  const GridGeometry g = grid_geometry(attributes, inputs[last - 1].shape, inputs[last].shape);
  const double taps = g.mode == GridMode::kNearest ? 1 : (g.mode == GridMode::kCubic ? 4 : 2);
  return {2 * std::pow(taps, static_cast<double>(g.rank)) * static_cast<double>(g.output.count())};
}

constexpr OpTraits kGridSampleTraits = {KernelKind::kRows,
                                        {PrecisionRule::kFloat},
                                        LayoutRule::kRowMajor,
                                        {ChunkRule::kWhole},
                                        Fusion::kNever};

constexpr OpDef kGridSampleOps[] = {
    {"GridSample", kPlain, kGridSampleTraits, infer_sample, differentiate, grid_sample_cost},
    {"GridSampleGrad", kPlain, kGridSampleTraits, infer_grid_sample_gradient, nullptr,
     grid_sample_cost},
};

// The modes were called bilinear and bicubic before opset 20.
void import_grid_sample(ImportContext& context) {
  std::string mode = context.attributes().text("mode", "linear");
  if (mode == "bilinear") mode = "linear";
  if (mode == "bicubic") mode = "cubic";
  context.set_output(0, context.builder().add(
                            "GridSample", {context.input(0), context.input(1)},
                            {{"mode", mode},
                             {"padding_mode", context.attributes().text("padding_mode", "zeros")},
                             {"align_corners", context.attributes().integer("align_corners", 0)}}));
}

constexpr ImportRule kGridSampleImports[] = {{"DeformConv", import_deform_conv},
                                             {"GridSample", import_grid_sample}};

}  // namespace

const OpFamily& grid_sample_family() {
  static const OpFamily family{"grid_sample", kGridSampleOps, kGridSampleImports,
                               grid_sample_reference_kernels(), grid_sample_cpu_kernels()};
  return family;
}

}  // namespace pipetrain
