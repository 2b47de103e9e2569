// Float GridSample; threads split the positions. The gradient splits samples, so that every sum is
// added in the order of the positions.
#include <omp.h>

#include "graph/op.h"
#include "ops/kernel/element_types.h"
#include "ops/resample/grid_sample.h"
#include "ops/resample/grid_sample_loops.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;
constexpr std::int64_t kParallelElements = 1 << 12;
constexpr std::int64_t kChunk = 256;

std::unique_ptr<Kernel> make_sample(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const GridGeometry g =
      grid_geometry(request.node.attributes, request.inputs[0].shape, request.inputs[1].shape);
  return make_kernel([g](Tensors in, Tensors out, const RunContext&) {
    const std::int64_t count = g.batch * g.positions;
    const std::int64_t chunks = (count + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static) if (count * g.channels > kParallelElements)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      sample_positions(g, in[0].as<float>(), in[1].as<float>(), out[0].as<float>(), chunk * kChunk,
                       std::min(count, (chunk + 1) * kChunk));
    }
  });
}

std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const GridGeometry g =
      grid_geometry(request.node.attributes, request.inputs[1].shape, request.inputs[2].shape);
  return make_kernel([g](Tensors in, Tensors out, const RunContext&) {
#pragma omp parallel for schedule(static) if (in[0].count() > kParallelElements)
    for (std::int64_t sample = 0; sample < g.batch; ++sample) {
      sample_gradients(g, sample, in[0].as<float>(), in[1].as<float>(), in[2].as<float>(),
                       data_or_null<float>(out, 0), data_or_null<float>(out, 1));
    }
  });
}

constexpr KernelEntry kKernels[] = {
    {"GridSample", make_sample},
    {"GridSampleGrad", make_gradient},
};

}  // namespace

std::span<const KernelEntry> grid_sample_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
