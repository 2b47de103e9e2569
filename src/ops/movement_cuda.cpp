// Data movement and gathers on GPUs.
#include <cstring>

#include "ops/gather.h"
#include "ops/kernels_cuda.h"
#include "ops/movement.h"
#include "ops/movement_launch_cuda.h"
#include "ops/type_switch.h"

namespace pipetrain::movement {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool row_major(const KernelRequest& request) {
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.layout != Layout::kRowMajor) return false;
    }
  }
  return true;
}

/// A copy of a node with its walk as kernels take it.
struct Walk {
  std::size_t input, output;
  CopyWalk walk;
  std::int64_t source_offset, target_offset;  // in bytes
};

Made make_movement(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  if (!row_major(request) || size > 8) return nullptr;
  const Movement movement = movement_of(request);
  std::vector<Walk> walks;
  for (const Copy& copy : movement.copies) {
    const BroadcastPlan& plan = copy.plan.walk;
    if (plan.dims.size() > CopyWalk::kMostDimensions) return nullptr;
    Walk walk{copy.input,
              copy.output,
              {},
              copy.plan.source_offset * size,
              copy.plan.target_offset * size};
    walk.walk.dimensions = static_cast<int>(plan.dims.size());
    walk.walk.count = plan.count();
    for (std::size_t d = 0; d < plan.dims.size(); ++d) {
      walk.walk.sizes[d] = plan.dims[d];
      walk.walk.target[d] = plan.strides[0][d];
      walk.walk.source[d] = plan.strides[1][d];
    }
    walks.push_back(walk);
  }
  std::uint64_t bits = movement.fill != 0 ? 1 : 0;
  visit_number(request.outputs[0].dtype, [&]<class T>(T) {
    const T value = static_cast<T>(movement.fill);
    bits = 0;
    std::memcpy(&bits, &value, sizeof value);
  });
  return make_kernel([=, fills = movement.fills](Tensors in, Tensors out, const RunContext&) {
    if (fills) launch_fill_elements(out[0].data, bits, size, out[0].count(), queue);
    for (const Walk& walk : walks) {
      if (!out[walk.output]) continue;
      launch_copy(walk.walk, in[walk.input].as<std::byte>() + walk.source_offset,
                  out[walk.output].as<std::byte>() + walk.target_offset, size, queue);
    }
  });
}

Made make_trilu(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  if (!row_major(request) || size > 8) return nullptr;
  const Shape& shape = request.inputs[0].shape;
  const std::int64_t rows = shape[shape.rank() - 2];
  const std::int64_t columns = shape[shape.rank() - 1];
  const bool upper = request.node.attributes.integer("upper", 1) != 0;
  const std::int64_t k = request.node.attributes.integer("k", 0);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_trilu(in[0].data, out[0].data, size, rows, columns, upper, k, out[0].count(), queue);
  });
}

/// Gather as (outer, extent, slice) at one list of indices.
GatherShape gather_shape(const KernelRequest& request, const Shape& data) {
  const SliceGather gather =
      slice_gather("Gather", request.node.attributes, data, request.inputs[1].shape);
  return {gather.outer, gather.rows(), gather.slice, gather.count,
          request.inputs[1].dtype == DType::kInt64};
}

Made make_gather(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  if (!row_major(request) || size > 8) return nullptr;
  const GatherShape shape = gather_shape(request, request.inputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_gather(shape, in[0].data, in[1].data, out[0].data, size, queue);
  });
}

Made make_gather_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!row_major(request) || request.outputs[0].dtype != DType::kFloat32) return nullptr;
  const GatherShape shape = gather_shape(request, request.outputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_gather_gradient(shape, in[0].as<float>(), in[1].data, out[0].as<float>(), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"Concat", make_movement},    {"Expand", make_movement},
    {"Pad", make_movement},       {"Slice", make_movement},
    {"SliceGrad", make_movement}, {"Split", make_movement},
    {"Transpose", make_movement}, {"Trilu", make_trilu},
    {"Gather", make_gather},      {"GatherGrad", make_gather_gradient},
};

}  // namespace
}  // namespace pipetrain::movement

namespace pipetrain {
std::span<const CudaKernelEntry> movement_cuda_kernels() { return movement::kKernels; }
}  // namespace pipetrain
