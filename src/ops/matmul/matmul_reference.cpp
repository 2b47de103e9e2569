// Plain loops for the matrix product. Float sums are carried in double, so that the CPU kernel can
// be compared with it.
#include <type_traits>

#include "ops/kernel/element_types.h"
#include "ops/matmul/matmul.h"

namespace pipetrain {
namespace {

template <class T>
void multiply(const MatMulPlan& plan, const T* a, const T* b, const T* bias, T* y) {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, double, T>;
  const std::int64_t a_row = plan.trans_a ? 1 : plan.k;
  const std::int64_t a_column = plan.trans_a ? plan.m : 1;
  const std::int64_t b_row = plan.trans_b ? 1 : plan.n;
  const std::int64_t b_column = plan.trans_b ? plan.k : 1;
  for (std::size_t i = 0; i < plan.a_offsets.size(); ++i) {
    const T* left = a + plan.a_offsets[i];
    const T* right = b + plan.b_offsets[i];
    for (std::int64_t row = 0; row < plan.m; ++row) {
      for (std::int64_t column = 0; column < plan.n; ++column) {
        Sum sum = bias ? static_cast<Sum>(bias[column]) : Sum{0};
        for (std::int64_t k = 0; k < plan.k; ++k) {
          sum += static_cast<Sum>(left[row * a_row + k * a_column]) *
                 static_cast<Sum>(right[k * b_row + column * b_column]);
        }
        *y++ = static_cast<T>(sum);
      }
    }
  }
}

std::unique_ptr<Kernel> make_matmul(const KernelRequest& request) {
  if (!is_row_major(request)) return nullptr;
  return for_element_type<float, double, std::int32_t, std::int64_t>(
      request.outputs[0].dtype, [&]<class T>() {
        return make_kernel([plan = matmul_plan(request)](std::span<const Tensor> in,
                                                         std::span<const Tensor> out,
                                                         const RunContext&) {
          multiply<T>(plan, in[0].as<T>(), in[1].as<T>(), data_or_null<T>(in, 2), out[0].as<T>());
        });
      });
}

constexpr KernelEntry kMatmulReferenceKernels[] = {{"MatMul", make_matmul}};

}  // namespace

std::span<const KernelEntry> matmul_reference_kernels() { return kMatmulReferenceKernels; }

}  // namespace pipetrain
