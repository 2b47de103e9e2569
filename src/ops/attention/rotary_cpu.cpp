// Float Rotary; threads split the positions.
#include "ops/attention/rotary.h"
#include "ops/kernel/element_types.h"

namespace pipetrain::rotary {
namespace {

constexpr std::int64_t kParallelElements = 1 << 15;

std::unique_ptr<Kernel> make_rotary(const KernelRequest& request) {
  if (!is_row_major(request) || request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [g = geometry_of(request.node.attributes, request.inputs[0].shape, request.inputs[1].shape)](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const float* x = in[0].as<float>();
        const float* cosine = in[1].as<float>();
        const float* sine = in[2].as<float>();
        float* y = out[0].as<float>();
#pragma omp parallel for schedule(static) if (in[0].count() > kParallelElements)
        for (std::int64_t row = 0; row < g.batch * g.steps; ++row) {
          const std::int64_t b = row / g.steps, t = row % g.steps;
          const std::int64_t table = b * g.table_batch_stride + t * g.pairs;
          for (std::int64_t h = 0; h < g.heads; ++h) {
            const std::int64_t at = b * g.batch_stride + h * g.head_stride + t * g.step_stride;
            turn(g, x + at, cosine + table, sine + table, y + at);
          }
        }
      });
}

constexpr KernelEntry kKernels[] = {{"Rotary", make_rotary}};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::rotary
