// Plain loops for the matrix product. Float sums are carried in double, so that this is what the
// CPU kernel is measured against.
#include <type_traits>

#include "ops/element_types.h"
#include "ops/matmul.h"

namespace pipetrain {
namespace {

template <class T>
void multiply(const MatMulGeometry& geometry, const T* a, const T* b, const T* bias, T* y) {
  using Sum = std::conditional_t<std::is_floating_point_v<T>, double, T>;
  const std::int64_t a_row = geometry.trans_a ? 1 : geometry.k;
  const std::int64_t a_column = geometry.trans_a ? geometry.m : 1;
  const std::int64_t b_row = geometry.trans_b ? 1 : geometry.n;
  const std::int64_t b_column = geometry.trans_b ? geometry.k : 1;
  for (std::size_t i = 0; i < geometry.a_offsets.size(); ++i) {
    const T* left = a + geometry.a_offsets[i];
    const T* right = b + geometry.b_offsets[i];
    for (std::int64_t row = 0; row < geometry.m; ++row) {
      for (std::int64_t column = 0; column < geometry.n; ++column) {
        Sum sum = bias ? static_cast<Sum>(bias[column]) : Sum{0};
        for (std::int64_t k = 0; k < geometry.k; ++k) {
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
        return make_kernel(
            [geometry = matmul_geometry(request.node.attributes, request.inputs[0].shape,
                                        request.inputs[1].shape)](
                std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
              multiply<T>(geometry, in[0].as<T>(), in[1].as<T>(), tensor_or_empty(in, 2).as<T>(),
                          out[0].as<T>());
            });
      });
}

constexpr KernelEntry kKernels[] = {{"MatMul", make_matmul}};

}  // namespace

std::span<const KernelEntry> matmul_reference_kernels() { return kKernels; }

}  // namespace pipetrain
