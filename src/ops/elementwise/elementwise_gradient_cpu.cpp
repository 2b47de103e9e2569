// Gradients of element-wise operators over float32.
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/kernel/vector8_cpu.h"

namespace pipetrain::elementwise {
namespace {

template <class F>
void gradient_loop(const ErasedFunction& function, const void* gradient, const void* value,
                   void* out, std::int64_t count) {
  const F f = function.as<F>();
  const float* __restrict dy = static_cast<const float*>(gradient);
  const float* __restrict v = static_cast<const float*>(value);
  float* __restrict dx = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; ++i) dx[i] = f(dy[i], v[i]);
}

template <class F>
PIPETRAIN_WIDE_LOOP void wide_gradient_loop(const ErasedFunction& function, const void* gradient,
                                            const void* value, void* out, std::int64_t count) {
  const F f = function.as<F>();
  const float* __restrict dy = static_cast<const float*>(gradient);
  const float* __restrict v = static_cast<const float*>(value);
  float* __restrict dx = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; ++i) dx[i] = f(dy[i], v[i]);
}

}  // namespace

BinaryLoop find_gradient_loop(std::string_view op, const Attributes& attributes,
                              ErasedFunction& function) {
  BinaryLoop loop = nullptr;
  visit_gradient<float, VectorMath>(op, attributes, [&]<class F>(F f) {
    loop = has_avx512() ? wide_gradient_loop<F> : gradient_loop<F>;
    function = ErasedFunction(f);
  });
  return loop;
}

std::unique_ptr<Kernel> make_cpu_gradient(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_bfloat16(request);
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  ErasedFunction function;
  const BinaryLoop loop =
      find_gradient_loop(request.node.op->name, request.node.attributes, function);
  if (loop == nullptr) return nullptr;
  return make_kernel([=](std::span<const Tensor> in, std::span<const Tensor> out,
                         const RunContext&) {
    run_chunks(loop, function, {in[0].data, 4}, {in[1].data, 4}, {out[0].data, 4}, out[0].count());
  });
}

}  // namespace pipetrain::elementwise
