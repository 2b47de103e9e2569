// Float matrix products: large ones, and those whose rows collide in the caches, through our own
// (gemm_cpu.h), all others through oneDNN's sgemm, which against its matmul primitive is as fast
// for plain, transposed and batched operands (within 3% on AVX2) and takes every broadcast and
// every combination of transposes without falling to a reference implementation.
#include <dnnl.h>
#include <omp.h>

#include <atomic>

#include "base/error.h"
#include "ops/element_types.h"
#include "ops/gemm_cpu.h"
#include "ops/matmul.h"

namespace pipetrain {
namespace {

class MatMulCpu final : public Kernel {
 public:
  explicit MatMulCpu(MatMulPlan plan) : plan_(std::move(plan)) {}

  void run(std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) override {
    const float* a = in[0].as<float>();
    const float* b = in[1].as<float>();
    const float* bias = data_or_null<float>(in, 2);
    float* y = out[0].as<float>();
    const std::int64_t products = plan_.products();
    if (products == 0) return;
    const std::int64_t flops = 2 * plan_.m * plan_.n * plan_.k;
    // One thread per product where there are enough of them; otherwise sgemm shares each out.
    std::atomic<bool> failed = false;
    if (products >= omp_get_max_threads() && products > 1 && products * flops > kParallelFlops) {
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < products; ++i) {
        if (!multiply(i, a, b, y)) failed = true;
      }
    } else {
      for (std::int64_t i = 0; i < products; ++i) {
        if (!multiply(i, a, b, y)) failed = true;
      }
    }
    PT_CHECK(!failed, kResource, "oneDNN's sgemm failed; is there enough memory?");
    if (bias) add_bias(bias, y);
  }

 private:
  static constexpr std::int64_t kParallelFlops = 1 << 18;
  static constexpr std::int64_t kParallelElements = 1 << 15;

  bool multiply(std::int64_t i, const float* a, const float* b, float* y) const {
    const auto& [trans_a, trans_b, m, n, k, a_offsets, b_offsets] = plan_;
    float* product = y + i * m * n;
    if (k == 0) {
      std::fill_n(product, m * n, 0.0f);
      return true;
    }
    const auto index = static_cast<std::size_t>(i);
    return dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1.0f, a + a_offsets[index],
                      trans_a ? m : k, b + b_offsets[index], trans_b ? k : n, 0.0f, product,
                      n) == dnnl_success;
  }

  void add_bias(const float* bias, float* y) const {
    const std::int64_t n = plan_.n;
    const std::int64_t rows = plan_.products() * plan_.m;
#pragma omp parallel for schedule(static) if (rows * n > kParallelElements)
    for (std::int64_t row = 0; row < rows; ++row) {
      float* line = y + row * n;
#pragma omp simd
      for (std::int64_t column = 0; column < n; ++column) line[column] += bias[column];
    }
  }

  MatMulPlan plan_;
};

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

/// Whether sgemm would read an operand down columns whose elements are a multiple of 2 KiB apart.
bool rows_collide(const MatMulPlan& plan) {
  constexpr std::int64_t kColliding = 512;
  return (plan.trans_a && plan.m % kColliding == 0) || (!plan.trans_b && plan.n % kColliding == 0);
}

/// With vectors of 8 floats ours is the faster one for large products; sgemm reads small ones where
/// they lie instead of packing them, and has code for AVX-512.
bool use_own_gemm(const MatMulPlan& plan) {
  constexpr std::int64_t kSmall = 48;
  constexpr std::int64_t kLarge = 1 << 24;
  if (plan.products() != 1 || plan.m < kSmall || plan.n < kSmall || plan.k < kSmall) return false;
  return rows_collide(plan) || (!has_avx512() && plan.m * plan.n * plan.k >= kLarge);
}

std::unique_ptr<Kernel> make_own_gemm(const MatMulPlan& plan) {
  const GemmShape shape{plan.m, plan.n, plan.k};
  const int threads = omp_get_max_threads();
  return make_kernel(
      [plan, shape, threads](std::span<const Tensor> in, std::span<const Tensor> out,
                             const RunContext& context) {
        const MatrixView a{in[0].as<float>() + plan.a_offsets[0], plan.trans_a ? 1 : plan.k,
                           plan.trans_a ? plan.m : 1};
        const MatrixView b{in[1].as<float>() + plan.b_offsets[0], plan.trans_b ? 1 : plan.n,
                           plan.trans_b ? plan.k : 1};
        gemm(shape, a, b, data_or_null<float>(in, 2), out[0].as<float>(), context.workspace,
             threads);
      },
      gemm_workspace_bytes(shape, threads));
}

std::unique_ptr<Kernel> make_matmul(const KernelRequest& request) {
  if (!is_row_major(request) || request.outputs[0].dtype != DType::kFloat32) return nullptr;
  MatMulPlan plan = matmul_plan(request);
  if (use_own_gemm(plan)) return make_own_gemm(plan);
  return std::make_unique<MatMulCpu>(std::move(plan));
}

constexpr KernelEntry kKernels[] = {{"MatMul", make_matmul}};

}  // namespace

std::span<const KernelEntry> matmul_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
