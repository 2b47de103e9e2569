// Reductions on GPUs.
#include <algorithm>

#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/kernel/element_types.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/reduce_launch_cuda.h"

namespace pipetrain::reduce {
namespace {

/// Channels-last feature maps are reduced over height and width, with or without channels.
bool takes_layout(const KernelRequest& request) {
  if (request.inputs[0].layout != Layout::kChannelsLast) return takes_types(request);
  const Ints axes = request.node.op->name == "SumTo"
                        ? axes_of_sum_to(request.inputs[0].shape, request.outputs[0].shape)
                        : request.node.attributes.ints("axes", {});
  const auto reduces = [&](std::int64_t axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  };
  return reduces(2) && reduces(3) && request.outputs[0].layout == Layout::kRowMajor &&
         is_stored_float(request.outputs[0].dtype);
}

std::unique_ptr<Kernel> make(const KernelRequest& request, const CudaQueue& queue) {
  const TensorType& x = request.inputs[0];
  const bool integers = x.dtype == DType::kInt32 || x.dtype == DType::kInt64;
  if (integers ? !is_row_major(request) : !is_stored_float(x.dtype) || !takes_layout(request))
    return nullptr;
  const ReducePlan plan = plan_of(request);
  if (plan.kept * plan.reduced == 0) return nullptr;
  ReduceWalk walk;
  walk.kept = plan.kept;
  walk.reduced = plan.reduced;
  for (const ReducePlan::Dimension& dim : plan.dims) {
    int& count = dim.reduced ? walk.reduced_dimensions : walk.kept_dimensions;
    if (count == ReduceWalk::kMostDimensions) return nullptr;
    (dim.reduced ? walk.reduced_sizes : walk.kept_sizes)[count] = dim.size;
    (dim.reduced ? walk.reduced_strides : walk.kept_strides)[count] = dim.input_stride;
    ++count;
    walk.innermost_is_reduced = dim.reduced;
  }
  const std::string_view op = request.node.op->name;
  const Reduction reduction = op == "ReduceMean"   ? Reduction::kMean
                              : op == "ReduceMax"  ? Reduction::kMax
                              : op == "ReduceMin"  ? Reduction::kMin
                              : op == "ReduceProd" ? Reduction::kProduct
                                                   : Reduction::kSum;
  if (integers) {
    const bool narrow = x.dtype == DType::kInt32;
    return make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          if (narrow) {
            launch_reduce(reduction, walk, in[0].as<const std::int32_t>(),
                          out[0].as<std::int32_t>(), queue);
          } else {
            launch_reduce(reduction, walk, in[0].as<const std::int64_t>(),
                          out[0].as<std::int64_t>(), queue);
          }
        });
  }
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        launch_reduce(reduction, walk, numbers_at(in, 0), places_at(out, 0),
                      reinterpret_cast<float*>(context.workspace), queue);
      },
      static_cast<std::size_t>(workspace_of(walk)) * sizeof(float));
}

std::unique_ptr<Kernel> make_arg(const KernelRequest& request, const CudaQueue& queue) {
  const TensorType& x = request.inputs[0];
  if (x.layout != Layout::kRowMajor) return nullptr;
  const ArgRule rule = arg_rule(request);
  const auto made = [&](auto operand) {
    return make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
          launch_arg(rule, operand(in), out[0].as<std::int64_t>(), queue);
        });
  };
  if (x.dtype == DType::kInt32)
    return made([](std::span<const Tensor> in) { return in[0].as<std::int32_t>(); });
  if (x.dtype == DType::kInt64)
    return made([](std::span<const Tensor> in) { return in[0].as<std::int64_t>(); });
  if (!is_stored_float(x.dtype)) return nullptr;
  return made([](std::span<const Tensor> in) { return numbers_at(in, 0); });
}

constexpr CudaKernelEntry kKernels[] = {
    {"ArgMax", make_arg}, {"ArgMin", make_arg}, {"ReduceMax", make}, {"ReduceMean", make},
    {"ReduceMin", make},  {"ReduceProd", make}, {"ReduceSum", make}, {"SumTo", make},
};

}  // namespace
}  // namespace pipetrain::reduce

namespace pipetrain {
std::span<const CudaKernelEntry> reduce_cuda_kernels() { return reduce::kKernels; }

void sums_of_squares_cuda(std::span<const std::span<const float>> values, double* sums,
                          double* scratch, const CudaQueue& queue) {
  for (std::size_t first = 0; first < values.size(); first += kMostSquared) {
    SquareList list;
    for (std::size_t i = first; i < values.size() && list.count < kMostSquared; ++i) {
      list.values[list.count] = values[i].data();
      list.counts[list.count++] = static_cast<std::int64_t>(values[i].size());
    }
    launch_sums_of_squares(list, sums + first, scratch + first * kSquareParts, queue);
  }
}

}  // namespace pipetrain
