// Float matrix products: large ones, and those whose rows cause cache conflicts, by the
// hand-written gemm_cpu.h, all others by oneDNN's sgemm. sgemm is as fast as oneDNN's matmul
// primitive for plain, transposed and batched operands (within 3%), and supports every broadcast
// and combination of transposes without a reference implementation.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/vectors.h"
#include "ops/kernel/adding_kernel.h"
#include "ops/kernel/element_types.h"
#include "ops/kernel/workspace.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_bfloat16.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kParallelFlops = 1 << 18;

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
    // One thread per product if there are enough products; otherwise sgemm parallelises each.
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

/// Whether sgemm would read columns of an operand whose elements are a multiple of 2 KiB apart.
bool rows_collide(const MatMulPlan& plan) {
  constexpr std::int64_t kColliding = 512;
  return (plan.trans_a && plan.m % kColliding == 0) || (!plan.trans_b && plan.n % kColliding == 0);
}

/// With cache conflicts sgemm reaches two fifths of the peak. Otherwise gemm_cpu.h is faster for
/// large products, and for a transposed left operand; sgemm reads small operands in place instead
/// of packing them.
bool use_packed_gemm(const MatMulPlan& plan) {
  constexpr std::int64_t kNarrow = 48;
  constexpr std::int64_t kFewRows = 16, kShortDepth = 8;
  constexpr std::int64_t kManyRows = 192;
  constexpr std::int64_t kLarge = 1 << 24;
  // Of the products of attention (512 x 512 x 64), sgemm's take a tenth to a sixth less time with
  // AVX-512 vectors, and a tenth to a fifth more with AVX2 (measured on Zen 4).
  if (plan.n < kNarrow || (plan.products() != 1 && has_avx512())) return false;
  if (rows_collide(plan)) return plan.m >= kFewRows && plan.k >= kShortDepth;
  return plan.m * plan.n * plan.k >= kLarge && plan.k >= kNarrow &&
         plan.m >= (plan.trans_a ? kNarrow : kManyRows);
}

/// Products of narrow operands run in chunks, whatever their result type
/// (ops/registry/narrow_kernel.h).
bool is_float32(const KernelRequest& request) {
  const auto is = [](const TensorType& type) {
    return type.dtype == DType::kFloat32 || type.dtype == DType::kUndefined;
  };
  return std::all_of(request.inputs.begin(), request.inputs.end(), is) &&
         request.outputs[0].dtype == DType::kFloat32;
}

MatrixView left_of(const MatMulPlan& plan, std::span<const Tensor> in, std::size_t product = 0) {
  return {in[0].as<float>() + plan.a_offsets[product], plan.trans_a ? 1 : plan.k,
          plan.trans_a ? plan.m : 1};
}
MatrixView right_of(const MatMulPlan& plan, std::span<const Tensor> in, std::size_t product = 0) {
  return {in[1].as<float>() + plan.b_offsets[product], plan.trans_b ? 1 : plan.n,
          plan.trans_b ? plan.k : 1};
}

/// Threads compute whole products, or share each of them where there are fewer.
std::unique_ptr<Kernel> make_packed_gemms(MatMulPlan plan, bool has_bias) {
  const GemmShape shape{plan.m, plan.n, plan.k};
  const int threads = omp_get_max_threads();
  const bool whole = plan.products() >= threads;
  const int each = whole ? 1 : threads;
  const std::size_t bytes = aligned_part(gemm_workspace_bytes(shape, each));
  const bool is_parallel = plan.products() * 2 * plan.m * plan.n * plan.k > kParallelFlops;
  return make_kernel(
      [=, plan = std::move(plan)](std::span<const Tensor> in, std::span<const Tensor> out,
                                  const RunContext& context) {
        const auto multiply = [&](std::int64_t i, int lane) {
          const auto product = static_cast<std::size_t>(i);
          gemm(shape, left_of(plan, in, product), right_of(plan, in, product),
               has_bias ? in[2].as<float>() : nullptr, out[0].as<float>() + i * plan.m * plan.n,
               context.workspace + static_cast<std::size_t>(lane) * bytes, each);
        };
        if (!whole) {
          for (std::int64_t i = 0; i < plan.products(); ++i) multiply(i, 0);
          return;
        }
#pragma omp parallel for schedule(static) num_threads(threads) if (is_parallel)
        for (std::int64_t i = 0; i < plan.products(); ++i) multiply(i, omp_get_thread_num());
      },
      bytes * static_cast<std::size_t>(whole ? threads : 1));
}

std::unique_ptr<Kernel> make_packed_gemm(const MatMulPlan& plan, bool has_bias) {
  const GemmShape shape{plan.m, plan.n, plan.k};
  const int threads = omp_get_max_threads();
  const std::size_t bytes = gemm_workspace_bytes(shape, threads);
  const auto left = [plan](std::span<const Tensor> in) { return left_of(plan, in); };
  const auto right = [plan](std::span<const Tensor> in) { return right_of(plan, in); };
  if (!has_bias && gemm_adds(shape)) {
    return make_adding_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context,
            bool add) {
          if (add) {
            gemm_adding(shape, left(in), right(in), out[0].as<float>(), context.workspace, threads);
            return;
          }
          gemm(shape, left(in), right(in), nullptr, out[0].as<float>(), context.workspace, threads);
        },
        bytes);
  }
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        gemm(shape, left(in), right(in), data_or_null<float>(in, 2), out[0].as<float>(),
             context.workspace, threads);
      },
      bytes);
}

std::unique_ptr<Kernel> make_matmul(const KernelRequest& request) {
  if (multiplies_bfloat16(request)) return make_bfloat16_matmul(request);
  if (!is_row_major(request) || request.outputs[0].dtype != DType::kFloat32) return nullptr;
  MatMulPlan plan = matmul_plan(request);
  const bool has_bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  if (use_packed_gemm(plan) && plan.products() == 1) return make_packed_gemm(plan, has_bias);
  if (use_packed_gemm(plan)) return make_packed_gemms(std::move(plan), has_bias);
  return std::make_unique<MatMulCpu>(std::move(plan));
}

std::unique_ptr<Kernel> make_pack(const KernelRequest& request) {
  if (multiplies_bfloat16(request)) return make_bfloat16_pack(request);
  const Shape& b = request.inputs[0].shape;
  const bool trans_b = request.node.attributes.flag("trans_b");
  const std::int64_t n = b[trans_b ? 0 : 1], k = b[trans_b ? 1 : 0];
  const int threads = omp_get_max_threads();
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        gemm_pack(n, k, {in[0].as<float>(), trans_b ? 1 : n, trans_b ? k : 1}, out[0].as<float>(),
                  threads);
      });
}

std::unique_ptr<Kernel> make_packed(const KernelRequest& request) {
  if (multiplies_bfloat16(request)) return make_bfloat16_packed(request);
  if (!is_row_major(request)) return nullptr;
  const Shape& a = request.inputs[0].shape;
  const std::size_t last = a.rank() - 1;
  const GemmShape shape{a.count(0, last), request.node.attributes.integer("n"), a[last]};
  const int threads = omp_get_max_threads();
  if (request.node.attributes.flag("transposed")) {
    return make_kernel(
        [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
          gemm_packed_transposed(shape, {in[0].as<float>(), shape.k, 1}, in[1].as<float>(),
                                 out[0].as<float>(), context.workspace, threads);
        },
        gemm_transposed_workspace_bytes(shape, threads));
  }
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext& context) {
        gemm_packed(shape, {in[0].as<float>(), shape.k, 1}, in[1].as<float>(),
                    data_or_null<float>(in, 2), out[0].as<float>(), context.workspace, threads);
      },
      gemm_packed_workspace_bytes(shape, threads));
}

constexpr KernelEntry kKernels[] = {
    {"MatMul", make_matmul}, {"MatMulPacked", make_packed}, {"PackMatrix", make_pack}};

}  // namespace

std::int64_t packed_matrix_elements(DType operands, std::int64_t n, std::int64_t k) {
  return operands == DType::kBFloat16 ? gemm_bfloat16_packed_elements(n, k)
                                      : gemm_packed_floats(n, k);
}

bool matmul_adds(const KernelRequest& request) {
  const bool has_bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  if (has_bias || !is_row_major(request) || request.outputs[0].dtype != DType::kFloat32)
    return false;
  if (multiplies_bfloat16(request)) return bfloat16_matmul_adds(request);
  if (!is_float32(request)) return false;
  const MatMulPlan plan = matmul_plan(request);
  return plan.products() == 1 && use_packed_gemm(plan) && gemm_adds({plan.m, plan.n, plan.k});
}

bool packing_pays(const KernelRequest& request) {
  constexpr std::int64_t kFewest = 8, kNarrow = 48, kMostRows = 512;
  constexpr std::int64_t kSmall = 1 << 20;
  const bool narrow = multiplies_bfloat16(request);
  if (!is_row_major(request) || !(narrow || is_float32(request))) return false;
  if (request.inputs[1].shape.rank() != 2) return false;
  const MatMulPlan plan = matmul_plan(request);
  if (plan.products() != 1 || plan.trans_a || plan.m > kMostRows) return false;
  return narrow || use_packed_gemm(plan) ||
         (plan.m >= kFewest && plan.n >= kNarrow && plan.k >= kNarrow &&
          plan.m * plan.n * plan.k >= kSmall);
}

bool takes_packed_transpose(const KernelRequest& request) {
  const bool has_bias = request.inputs.size() > 2 && request.inputs[2].dtype != DType::kUndefined;
  if (has_bias || !is_float32(request)) return false;
  const MatMulPlan plan = matmul_plan(request);
  return gemm_takes_transposed({plan.m, plan.n, plan.k});
}

std::span<const KernelEntry> matmul_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
