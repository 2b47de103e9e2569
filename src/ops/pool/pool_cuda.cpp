// Pooling on GPUs.
#include "ops/cuda/kernels_cuda.h"
#include "ops/cuda/stored_tensor_cuda.h"
#include "ops/pool/pool.h"
#include "ops/pool/pool_launch_cuda.h"

namespace pipetrain::pool {
namespace {

using Made = std::unique_ptr<Kernel>;
using Tensors = std::span<const Tensor>;

bool floats(const KernelRequest& request) {
  return is_stored_float(request.inputs[0].dtype) &&
         takes_types(request, feature_map_layout(request));
}

Pool pool_of(const KernelRequest& request, const Shape& x) {
  const Attributes& attributes = request.node.attributes;
  const Window window = pool_window(attributes, x);
  const auto axes = three_axes(window);
  const bool padding = attributes.flag("count_include_pad");
  const Ints overhang = attributes.ints("overhang", Ints(window.size(), 0));
  const std::size_t added = 3 - window.size();
  Pool pool{};
  const bool last = feature_map_layout(request) == Layout::kChannelsLast;
  pool.planes = last ? x[0] : x[0] * x[1];
  pool.inner = last ? x[1] : 1;
  for (std::size_t d = 0; d < 3; ++d) {
    const WindowAxis& a = axes[d];
    const std::int64_t over = d < added ? 0 : overhang.at(d - added);
    pool.axes[d] = {a.input,
                    a.kernel,
                    a.stride,
                    a.dilation,
                    a.pad_begin,
                    a.output,
                    padding ? -a.pad_begin : 0,
                    padding ? a.input + a.pad_end - over : a.input};
  }
  return pool;
}

Made make_max(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Pool pool = pool_of(request, request.inputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_max_pool(pool, numbers_at(in, 0), places_at(out, 0),
                    out.size() > 1 ? out[1].as<std::int32_t>() : nullptr, queue);
  });
}

Made make_max_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Pool pool = pool_of(request, request.outputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_max_pool_gradient(pool, numbers_at(in, 0), in[1].as<std::int32_t>(), places_at(out, 0),
                             queue);
  });
}

Made make_average(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Pool pool = pool_of(request, request.inputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_average_pool(pool, numbers_at(in, 0), places_at(out, 0), queue);
  });
}

Made make_average_gradient(const KernelRequest& request, const CudaQueue& queue) {
  if (!floats(request)) return nullptr;
  const Pool pool = pool_of(request, request.outputs[0].shape);
  return make_kernel([=](Tensors in, Tensors out, const RunContext&) {
    launch_average_pool_gradient(pool, numbers_at(in, 0), places_at(out, 0), queue);
  });
}

constexpr CudaKernelEntry kKernels[] = {
    {"AveragePool", make_average},
    {"AveragePoolGrad", make_average_gradient},
    {"MaxPool", make_max},
    {"MaxPoolGrad", make_max_gradient},
};

}  // namespace
}  // namespace pipetrain::pool

namespace pipetrain {
std::span<const CudaKernelEntry> pool_cuda_kernels() { return pool::kKernels; }
}  // namespace pipetrain
