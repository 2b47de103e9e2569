// RecurrentWeightGrad in float and in bfloat16: dgates, y, h0, hidden, lengths -> dr.
#include <omp.h>

#include <algorithm>

#include "ops/kernel/element_types.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/recurrent/kernels_cpu.h"

namespace pipetrain::recurrent {
namespace {

/// One product over all steps but the first; there is no initial state.
std::unique_ptr<Kernel> make_bfloat16_weight_gradient(const KernelRequest& request) {
  const std::int64_t rows = request.outputs[0].shape[0], hidden = request.outputs[0].shape[1];
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, rows / hidden);
  const GemmShape shape{rows, hidden, (g.steps - 1) * g.samples};
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        const std::uint16_t* d = in[0].as<std::uint16_t>() + (g.reverse ? 0 : g.samples * rows);
        const std::uint16_t* y = in[1].as<std::uint16_t>() + (g.reverse ? g.state() : 0);
        gemm_bfloat16(shape, {d, 1, rows}, {y, hidden, 1}, nullptr, out[0].as<float>(),
                      context.workspace, threads);
      },
      gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
}

}  // namespace

std::unique_ptr<Kernel> make_weight_gradient(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_bfloat16_weight_gradient(request);
  for (std::size_t input = 3; input < request.inputs.size(); ++input) {
    if (request.inputs[input].dtype != DType::kUndefined) return nullptr;
  }
  if (!is_row_major(request) || request.outputs[0].dtype != DType::kFloat32) return nullptr;
  const std::int64_t rows = request.outputs[0].shape[0];
  const std::int64_t hidden = request.outputs[0].shape[1];
  const Geometry g = geometry_of(request.node.attributes, request.inputs[0].shape, rows / hidden);
  const int threads = omp_get_max_threads();
  // One product over all steps but the first, and one of the first step with the initial state.
  const GemmShape later{rows, hidden, std::max<std::int64_t>(g.steps - 1, 0) * g.samples};
  const GemmShape first{rows, hidden, g.samples};
  return make_kernel(
      [=](Tensors in, Tensors out, const RunContext& context) {
        const float* d = in[0].as<float>();
        const float* y = in[1].as<float>();
        const float* h0 = data_or_null<float>(in, 2);
        float* dr = out[0].as<float>();
        if (later.k > 0 && hidden > 0) {
          const float* gradient = g.reverse ? d : d + g.samples * rows;
          const float* states = g.reverse ? y + g.state() : y;
          gemm(later, {gradient, 1, rows}, {states, hidden, 1}, nullptr, dr, context.workspace,
               threads);
        } else {
          std::fill_n(dr, rows * hidden, 0.0f);
        }
        if (h0 && g.steps > 0 && g.state() > 0) {
          gemm_adding(first, {d + g.step(0) * g.samples * rows, 1, rows}, {h0, hidden, 1}, dr,
                      context.workspace, threads);
        }
      },
      std::max(gemm_workspace_bytes(later, threads), gemm_workspace_bytes(first, threads)));
}

}  // namespace pipetrain::recurrent
