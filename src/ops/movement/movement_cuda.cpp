// Data movement on GPUs.
#include <cstring>

#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/kernel/type_switch.h"
#include "ops/movement/movement.h"
#include "ops/movement/movement_elements_cuda.h"
#include "ops/movement/movement_launch_cuda.h"

namespace pipetrain::movement {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

/// The bits of an element with this value.
std::uint64_t bits_of(double number, DType dtype) {
  if (dtype == DType::kBFloat16) return float_to_bfloat16(static_cast<float>(number));
  if (dtype == DType::kFloat16) return float_to_half(static_cast<float>(number));
  std::uint64_t bits = number != 0 ? 1 : 0;
  visit_number(dtype, [&]<class T>(T) {
    const T value = static_cast<T>(number);
    bits = 0;
    std::memcpy(&bits, &value, sizeof value);
  });
  return bits;
}

/// The common layout of all tensors of a node that concatenates or splits.
Layout layout_of_boxes(const KernelRequest& request) {
  const std::string_view op = request.node.op->name;
  if (op != "Concat" && op != "Slice" && op != "SliceGrad" && op != "Split")
    return Layout::kRowMajor;
  for (const auto* types : {&request.inputs, &request.outputs}) {
    for (const TensorType& type : *types) {
      if (type.dtype != DType::kUndefined && type.layout != Layout::kChannelsLast)
        return Layout::kRowMajor;
    }
  }
  return Layout::kChannelsLast;
}

/// A copy of a node as a kernel argument.
struct Walk {
  std::size_t input, output;
  CopyWalk walk;
  std::int64_t source_offset, target_offset;  // in bytes
};

Made make_movement(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  const Elements elements = elements_of(request, request.inputs.size(), layout_of_boxes(request));
  if (elements == Elements::kUnknown) return nullptr;
  const Movement movement = movement_of(request);
  std::vector<Walk> walks;
  for (const Copy& copy : movement.copies) {
    const BroadcastPlan& plan = copy.plan.walk;
    if (plan.dims.size() > CopyWalk::kMostDimensions) return nullptr;
    const auto source = static_cast<std::int64_t>(size_of(request.inputs[copy.input].dtype));
    const auto target = static_cast<std::int64_t>(size_of(request.outputs[copy.output].dtype));
    Walk walk{copy.input,
              copy.output,
              {},
              copy.plan.source_offset * source,
              copy.plan.target_offset * target};
    walk.walk.dimensions = static_cast<int>(plan.dims.size());
    walk.walk.count = plan.count();
    for (std::size_t d = 0; d < plan.dims.size(); ++d) {
      walk.walk.sizes[d] = plan.dims[d];
      walk.walk.target[d] = plan.strides[0][d];
      walk.walk.source[d] = plan.strides[1][d];
    }
    walks.push_back(walk);
  }
  const std::uint64_t bits = bits_of(movement.fill, request.outputs[0].dtype);
  const bool kept = elements == Elements::kKept;
  return make_kernel([=, fills = movement.fills](Tensors in, Tensors out, const RunContext&) {
    if (fills) launch_fill_elements(out[0].data, bits, size, out[0].count(), queue);
    std::vector<CopyTask> tasks;
    for (const Walk& walk : walks) {
      if (!out[walk.output]) continue;
      const Tensor& x = in[walk.input];
      const Tensor& y = out[walk.output];
      tasks.push_back(
          {walk.walk,
           {x.as<std::byte>() + walk.source_offset, kept ? Stored() : stored_as(x.type.dtype)},
           {y.as<std::byte>() + walk.target_offset, kept ? Stored() : stored_as(y.type.dtype)}});
    }
    launch_copies(tasks.data(), static_cast<int>(tasks.size()), kept ? size : 0, queue);
  });
}

Made make_trilu(const KernelRequest& request, const CudaQueue& queue) {
  const auto size = static_cast<int>(size_of(request.outputs[0].dtype));
  const Elements elements = elements_of(request, 1);
  if (elements == Elements::kUnknown) return nullptr;
  const Shape& shape = request.inputs[0].shape;
  const std::int64_t rows = shape[shape.rank() - 2];
  const std::int64_t columns = shape[shape.rank() - 1];
  const bool upper = request.node.attributes.integer("upper", 1) != 0;
  const std::int64_t k = request.node.attributes.integer("k", 0);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    if (elements == Elements::kKept) {
      launch_trilu(in[0].data, out[0].data, size, rows, columns, upper, k, out[0].count(), queue);
    } else {
      launch_trilu(numbers_at(in, 0), places_at(out, 0), rows, columns, upper, k, out[0].count(),
                   queue);
    }
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"Concat", make_movement},    {"Expand", make_movement},    {"Pad", make_movement},
    {"Slice", make_movement},     {"SliceGrad", make_movement}, {"Split", make_movement},
    {"Transpose", make_movement}, {"Trilu", make_trilu},
};

}  // namespace
}  // namespace pipetrain::movement

namespace pipetrain {
std::span<const CudaKernelEntry> movement_cuda_kernels() { return movement::kKernels; }
}  // namespace pipetrain
