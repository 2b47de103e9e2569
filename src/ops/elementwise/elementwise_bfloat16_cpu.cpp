// Element-wise operators of one input, and their gradients, over bfloat16: an element is widened,
// computed in float and rounded within registers. For AVX-512; with narrower vectors, conversions
// of chunks (narrow_kernel.h) are as fast.
#include <algorithm>
#include <type_traits>

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/kernel/narrow_cpu.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::elementwise {
namespace {

template <class F>
PIPETRAIN_WIDE_LOOP void unary_loop(const ErasedFunction& function, const void* in, void* out,
                                    std::int64_t count) {
  const F f = function.as<F>();
  const auto* __restrict x = static_cast<const BFloat16Bits*>(in);
  auto* __restrict y = static_cast<BFloat16Bits*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = BFloat16Bits::rounded(f(x[i].widened()));
}

template <class F>
PIPETRAIN_WIDE_LOOP void binary_loop(const ErasedFunction& function, const void* left,
                                     const void* right, void* out, std::int64_t count) {
  const F f = function.as<F>();
  const auto* __restrict a = static_cast<const BFloat16Bits*>(left);
  const auto* __restrict b = static_cast<const BFloat16Bits*>(right);
  auto* __restrict y = static_cast<BFloat16Bits*>(out);
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = BFloat16Bits::rounded(f(a[i].widened(), b[i].widened()));
}

UnaryLoop find_unary(const KernelRequest& request, ErasedFunction& function) {
  return find_bfloat16_unary_loop(request.node.op->name, request.node.attributes, function);
}

BinaryLoop find_gradient(const KernelRequest& request, ErasedFunction& function) {
  return find_bfloat16_gradient_loop(request.node.op->name, request.node.attributes, function);
}

bool is_bfloat16(const KernelRequest& request, std::size_t inputs) {
  const auto narrow = [](const TensorType& type) { return type.dtype == DType::kBFloat16; };
  return has_avx512() && request.inputs.size() == inputs && request.outputs.size() == 1 &&
         std::ranges::all_of(request.inputs, narrow) && narrow(request.outputs[0]);
}

}  // namespace

UnaryLoop find_bfloat16_unary_loop(std::string_view op, const Attributes& attributes,
                                   ErasedFunction& function) {
  UnaryLoop loop = nullptr;
  if (!has_avx512()) return loop;
  visit_unary<float, VectorMath>(op, attributes, [&]<class F>(F f) {
    // Functions of the C library run as float32, where sines and cosines are vector code.
    if constexpr (!std::is_same_v<F, LibraryFunction<float>>) {
      loop = unary_loop<F>;
      function = ErasedFunction(f);
    }
  });
  return loop;
}

BinaryLoop find_bfloat16_gradient_loop(std::string_view op, const Attributes& attributes,
                                       ErasedFunction& function) {
  BinaryLoop loop = nullptr;
  if (!has_avx512()) return loop;
  visit_gradient<float, VectorMath>(op, attributes, [&]<class F>(F f) {
    loop = binary_loop<F>;
    function = ErasedFunction(f);
  });
  return loop;
}

BinaryLoop find_bfloat16_arithmetic_loop(std::string_view op, const Attributes& attributes,
                                         ErasedFunction& function) {
  BinaryLoop loop = nullptr;
  if (!has_avx512()) return loop;
  visit_arithmetic<float>(op, attributes, [&]<class F>(F f) {
    loop = binary_loop<F>;
    function = ErasedFunction(f);
  });
  return loop;
}

bool takes_bfloat16(const KernelRequest& request) {
  ErasedFunction function;
  return (is_bfloat16(request, 1) && find_unary(request, function)) ||
         (is_bfloat16(request, 2) && find_gradient(request, function));
}

std::unique_ptr<Kernel> make_bfloat16(const KernelRequest& request) {
  constexpr std::int64_t kBytes = 2;
  ErasedFunction function;
  if (is_bfloat16(request, 1)) {
    return make_kernel([loop = find_unary(request, function), function](std::span<const Tensor> in,
                                                                        std::span<const Tensor> out,
                                                                        const RunContext&) {
      run_chunks(loop, function, {in[0].data, kBytes}, {out[0].data, kBytes}, out[0].count());
    });
  }
  return make_kernel(
      [loop = find_gradient(request, function), function](
          std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        run_chunks(loop, function, {in[0].data, kBytes}, {in[1].data, kBytes},
                   {out[0].data, kBytes}, out[0].count());
      });
}

}  // namespace pipetrain::elementwise
