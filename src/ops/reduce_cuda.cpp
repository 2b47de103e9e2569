// Reductions on GPUs.
#include "ops/kernels_cuda.h"
#include "ops/reduce.h"
#include "ops/reduce_launch_cuda.h"

namespace pipetrain::reduce {
namespace {

std::unique_ptr<Kernel> make(const KernelRequest& request, const CudaQueue& queue) {
  const TensorType& x = request.inputs[0];
  if (x.dtype != DType::kFloat32 || x.layout != Layout::kRowMajor) return nullptr;
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
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        launch_reduce(reduction, walk, in[0].as<float>(), out[0].as<float>(),
                      reinterpret_cast<float*>(context.workspace), queue);
      },
      static_cast<std::size_t>(workspace_of(walk)) * sizeof(float));
}

constexpr CudaKernelEntry kKernels[] = {
    {"ReduceMax", make},  {"ReduceMean", make}, {"ReduceMin", make},
    {"ReduceProd", make}, {"ReduceSum", make},  {"SumTo", make},
};

}  // namespace
}  // namespace pipetrain::reduce

namespace pipetrain {
std::span<const CudaKernelEntry> reduce_cuda_kernels() { return reduce::kKernels; }
}  // namespace pipetrain
