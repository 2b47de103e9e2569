// Gathers, their gradients and scatters on GPUs.
#include <optional>
#include <string_view>

#include "graph/op.h"
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/gather/gather.h"
#include "ops/gather/gather_launch_cuda.h"
#include "ops/movement/movement_elements_cuda.h"
#include "ops/movement/movement_launch_cuda.h"

namespace pipetrain::gather {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

using movement::Elements;
using movement::elements_of;

/// The gather of a node from data of this shape; none if it has too many axes.
std::optional<GatherShape> gather_shape(const KernelRequest& request, const Shape& data) {
  const Attributes& attributes = request.node.attributes;
  const TensorType& indices = request.inputs[1];
  const std::string_view op = request.node.op->name;
  RowRule row;
  row.wide = indices.dtype == DType::kInt64;
  if (op.starts_with("GatherElements") || op == "ScatterElements") {
    const ElementGather gather = element_gather(attributes, data, indices.shape);
    const auto axis = static_cast<std::size_t>(gather.axis);
    if (data.rank() > RowRule::kMostAxes) return std::nullopt;
    row.extents[0] = data[axis];
    row.strides[0] = gather.strides[axis];
    row.dimensions = static_cast<int>(data.rank());
    for (std::size_t d = 0; d < data.rank(); ++d) {
      row.sizes[d] = indices.shape[d];
      row.steps[d] = d == axis ? 0 : gather.strides[d];
    }
    return GatherShape{1, data.count(), 1, indices.count(), row};
  }
  const bool tuples = op.starts_with("GatherND") || op == "ScatterND";
  const SliceGather gather =
      slice_gather(tuples ? "GatherND" : "Gather", attributes, data, indices.shape);
  if (gather.extents.size() > RowRule::kMostAxes) return std::nullopt;
  row.axes = static_cast<int>(gather.extents.size());
  std::int64_t stride = 1;
  for (std::size_t axis = gather.extents.size(); axis-- > 0; stride *= gather.extents[axis]) {
    row.extents[axis] = gather.extents[axis];
    row.strides[axis] = stride;
  }
  if (gather.shared || gather.outer == 1)
    return GatherShape{gather.outer, gather.rows(), gather.slice, gather.count, row};
  // Each repetition has tuples of its own: its rows follow those of the one before.
  row.dimensions = 2;
  row.sizes[0] = gather.outer;
  row.sizes[1] = gather.count;
  row.steps[0] = gather.rows();
  return GatherShape{1, gather.outer * gather.rows(), gather.slice, gather.outer * gather.count,
                     row};
}

Made make_gather(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  const Elements elements = elements_of(request, 1);
  if (elements == Elements::kUnknown) return nullptr;
  const std::optional<GatherShape> shape = gather_shape(request, request.inputs[0].shape);
  // The host says which index is wrong where there is no row to read.
  if (!shape || shape->extent == 0) return nullptr;
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if (elements == Elements::kKept) {
      launch_gather(*shape, in[0].data, in[1].data, out[0].data, size, queue);
    } else {
      launch_gather(*shape, numbers_at(in, 0), in[1].data, places_at(out, 0), queue);
    }
  });
}

Made make_gather_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!takes_types(request) || !is_stored_float(request.outputs[0].dtype)) return nullptr;
  const std::optional<GatherShape> shape = gather_shape(request, request.outputs[0].shape);
  if (!shape || !sorts_indices(*shape)) return nullptr;
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        launch_gather_gradient(*shape, numbers_at(in, 0), in[1].data, places_at(out, 0),
                               context.workspace, queue);
      },
      static_cast<std::size_t>(gather_gradient_workspace(*shape)));
}

std::optional<Scatter> scatter_of(std::string_view reduction) {
  if (reduction == "none") return Scatter::kReplace;
  if (reduction == "add") return Scatter::kAdd;
  if (reduction == "mul") return Scatter::kMultiply;
  if (reduction == "max") return Scatter::kMax;
  if (reduction == "min") return Scatter::kMin;
  return std::nullopt;
}

Made make_scatter(const KernelRequest& request, const CudaQueue& queue) {
  const DType type = request.outputs[0].dtype, of_data = request.inputs[0].dtype,
              of_updates = request.inputs[2].dtype;
  const auto how = scatter_of(request.node.attributes.text("reduction", "none"));
  const bool floats =
      is_stored_float(type) && is_stored_float(of_data) && is_stored_float(of_updates);
  const bool kept = how == Scatter::kReplace && of_data == type && of_updates == type;
  const auto size = static_cast<int>(size_of(type));
  if (!is_row_major(request) || !how || (!floats && (!kept || size > 8))) return nullptr;
  const std::optional<GatherShape> shape = gather_shape(request, request.inputs[0].shape);
  if (!shape || shape->extent == 0 || !sorts_indices(*shape)) return nullptr;
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        movement::CopyTask copy;
        copy.walk.dimensions = 1;
        copy.walk.sizes[0] = copy.walk.count = out[0].count();
        copy.walk.source[0] = copy.walk.target[0] = 1;
        if (out[0].count() == 0) return;
        if (floats) {
          copy.from = numbers_at(in, 0);
          copy.to = places_at(out, 0);
          movement::launch_copies(&copy, 1, 0, queue);
          launch_scatter(*how, *shape, numbers_at(in, 2), in[1].data, copy.to, context.workspace,
                         queue);
          return;
        }
        copy.from.data = in[0].data;
        copy.to.data = out[0].data;
        movement::launch_copies(&copy, 1, size, queue);
        launch_scatter(*shape, in[2].data, in[1].data, out[0].data, size, context.workspace, queue);
      },
      static_cast<std::size_t>(sort_workspace(*shape)));
}

constexpr CudaKernelEntry kKernels[] = {
    {"Gather", make_gather},
    {"GatherElements", make_gather},
    {"GatherND", make_gather},
    {"GatherElementsGrad", make_gather_gradient},
    {"GatherGrad", make_gather_gradient},
    {"GatherNDGrad", make_gather_gradient},
    {"ScatterElements", make_scatter},
    {"ScatterND", make_scatter},
};

}  // namespace
}  // namespace pipetrain::gather

namespace pipetrain {
std::span<const CudaKernelEntry> gather_cuda_kernels() { return gather::kKernels; }
}  // namespace pipetrain
