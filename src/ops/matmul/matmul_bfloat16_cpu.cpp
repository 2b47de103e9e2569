#include <omp.h>

#include "graph/op.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_bfloat16.h"

namespace pipetrain {
namespace {

using Bfloat16 = std::uint16_t;  // the bits of a bfloat16

bool is_bfloat16(const TensorType& type) { return type.dtype == DType::kBFloat16; }

GemmShape shape_of(const MatMulPlan& plan) { return {plan.m, plan.n, plan.k}; }

struct Operands {
  BFloat16Matrix a, b;
};

Operands operands_of(const MatMulPlan& plan, std::span<const Tensor> in) {
  return {{in[0].as<Bfloat16>() + plan.a_offsets[0], plan.trans_a ? 1 : plan.k,
           plan.trans_a ? plan.m : 1},
          {in[1].as<Bfloat16>() + plan.b_offsets[0], plan.trans_b ? 1 : plan.n,
           plan.trans_b ? plan.k : 1}};
}

template <class Out>
std::unique_ptr<Kernel> make_matmul(const MatMulPlan& plan) {
  const GemmShape shape = shape_of(plan);
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        const auto [a, b] = operands_of(plan, in);
        gemm_bfloat16(shape, a, b, data_or_null<float>(in, 2), out[0].as<Out>(), context.workspace,
                      threads);
      },
      gemm_bfloat16_workspace_bytes<Out>(shape, /*packed=*/false, threads));
}

std::unique_ptr<Kernel> make_adding_matmul(const MatMulPlan& plan) {
  const GemmShape shape = shape_of(plan);
  const int threads = omp_get_max_threads();
  return make_adding_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
          bool add) {
        const auto [a, b] = operands_of(plan, in);
        float* const c = out[0].as<float>();
        if (add) return gemm_bfloat16_adding(shape, a, b, c, context.workspace, threads);
        gemm_bfloat16(shape, a, b, nullptr, c, context.workspace, threads);
      },
      gemm_bfloat16_workspace_bytes<float>(shape, /*packed=*/false, threads));
}

template <class Out>
std::unique_ptr<Kernel> make_packed(const GemmShape& shape) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        gemm_bfloat16_packed(shape, {in[0].as<Bfloat16>(), shape.k, 1}, in[1].as<Bfloat16>(),
                             data_or_null<float>(in, 2), out[0].as<Out>(), context.workspace,
                             threads);
      },
      gemm_bfloat16_workspace_bytes<Out>(shape, /*packed=*/true, threads));
}

template <class Element>
std::unique_ptr<Kernel> make_pack(std::int64_t n, std::int64_t k, bool trans_b) {
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        const MatrixOf<Element> b{in[0].as<Element>(), trans_b ? 1 : n, trans_b ? k : 1};
        gemm_bfloat16_pack(n, k, b, out[0].as<Bfloat16>(), threads);
      });
}

}  // namespace

bool multiplies_bfloat16(const KernelRequest& request) {
  if (!has_gemm_bfloat16() || !is_row_major(request)) return false;
  if (request.node.op->name == "PackMatrix") return is_bfloat16(request.outputs[0]);
  if (request.node.op->name != "MatMul" && request.node.op->name != "MatMulPacked") return false;
  const DType bias = request.inputs.size() > 2 ? request.inputs[2].dtype : DType::kUndefined;
  const bool fits =
      is_bfloat16(request.inputs[0]) && is_bfloat16(request.inputs[1]) &&
      (bias == DType::kUndefined || bias == DType::kFloat32) &&
      (is_bfloat16(request.outputs[0]) || request.outputs[0].dtype == DType::kFloat32);
  if (!fits || request.node.op->name == "MatMulPacked") return fits;
  const MatMulPlan plan = matmul_plan(request);
  return plan.products() == 1 && plan.k > 0;
}

bool bfloat16_matmul_adds(const KernelRequest& request) {
  return gemm_bfloat16_adds(shape_of(matmul_plan(request)));
}

std::unique_ptr<Kernel> make_bfloat16_matmul(const KernelRequest& request) {
  const MatMulPlan plan = matmul_plan(request);
  if (is_bfloat16(request.outputs[0])) return make_matmul<Bfloat16>(plan);
  return matmul_adds(request) ? make_adding_matmul(plan) : make_matmul<float>(plan);
}

std::unique_ptr<Kernel> make_bfloat16_packed(const KernelRequest& request) {
  const Shape& a = request.inputs[0].shape;
  const std::size_t last = a.rank() - 1;
  const GemmShape shape{a.count(0, last), request.node.attributes.integer("n"), a[last]};
  return is_bfloat16(request.outputs[0]) ? make_packed<Bfloat16>(shape) : make_packed<float>(shape);
}

std::unique_ptr<Kernel> make_bfloat16_pack(const KernelRequest& request) {
  const Shape& b = request.inputs[0].shape;
  const bool trans_b = request.node.attributes.flag("trans_b");
  const std::int64_t n = b[trans_b ? 0 : 1], k = b[trans_b ? 1 : 0];
  return is_bfloat16(request.inputs[0]) ? make_pack<Bfloat16>(n, k, trans_b)
                                        : make_pack<float>(n, k, trans_b);
}

}  // namespace pipetrain
