// RecurrentWeightGrad in float and in bfloat16: dgates, y, h0, hidden, lengths -> dr.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "base/error.h"
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
  return make_kernel([g, rows, hidden](Tensors in, Tensors out, const RunContext&) {
    const float* d = in[0].as<float>();
    const float* y = in[1].as<float>();
    const float* h0 = data_or_null<float>(in, 2);
    float* dr = out[0].as<float>();
    // dr = beta dr + gradient' states, over `depth` consecutive rows.
    const auto multiply = [&](const float* gradient, const float* states, std::int64_t depth,
                              float beta) {
      PT_CHECK(dnnl_sgemm('T', 'N', rows, hidden, depth, 1.0f, gradient, rows, states, hidden, beta,
                          dr, hidden) == dnnl_success,
               kResource, "oneDNN's sgemm failed; is there enough memory?");
    };
    const std::int64_t later = (g.steps - 1) * g.samples;
    if (later > 0 && hidden > 0) {
      const float* gradient = g.reverse ? d : d + g.samples * rows;
      const float* states = g.reverse ? y + g.state() : y;
      multiply(gradient, states, later, 0.0f);
    } else {
      std::fill_n(dr, rows * hidden, 0.0f);
    }
    if (h0 && g.state() > 0) multiply(d + g.step(0) * g.samples * rows, h0, g.samples, 1.0f);
  });
}

}  // namespace pipetrain::recurrent
