// Element-wise operators of one float32 input as loops that become vector code.
#include <algorithm>
#include <cmath>

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_functors.h"
#include "ops/elementwise/elementwise_loops_cpu.h"
#include "ops/kernel/vector8_cpu.h"
#include "ops/kernel/vector_math_cpu.h"

namespace pipetrain::elementwise {
namespace {

template <class In, class Out, class F>
void unary_loop(const ErasedFunction& function, const void* in, void* out, std::int64_t count) {
  const F f = function.as<F>();
  const In* __restrict x = static_cast<const In*>(in);
  Out* __restrict y = static_cast<Out*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<Out>(f(x[i]));
}

template <class F>
PIPETRAIN_WIDE_LOOP void wide_unary_loop(const ErasedFunction& function, const void* in, void* out,
                                         std::int64_t count) {
  const F f = function.as<F>();
  const float* __restrict x = static_cast<const float*>(in);
  float* __restrict y = static_cast<float*>(out);
  for (std::int64_t i = 0; i < count; ++i) y[i] = f(x[i]);
}

/// Sine, or cosine with kTurns of 1. Larger arguments and NaN by the C library, one by one: the
/// bits of an element do not depend on its neighbours. `out` may be `in`.
template <int kTurns>
[[gnu::always_inline]] inline void compute_circular(const void* in, void* out, std::int64_t count) {
  constexpr std::int64_t kBlock = 256;
  const float* x = static_cast<const float*>(in);
  float* y = static_cast<float*>(out);
  alignas(64) float block[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock, x += kBlock, y += kBlock) {
    const std::int64_t size = std::min(kBlock, count - first);
    for (std::int64_t i = 0; i < size; ++i) block[i] = vector_math::circular<kTurns>(x[i]);
    for (std::int64_t i = 0; i < size; ++i) {
      if (!(vector_math::absolute(x[i]) <= vector_math::kMostRadians))
        block[i] = kTurns == 0 ? std::sin(x[i]) : std::cos(x[i]);
    }
    std::copy_n(block, size, y);
  }
}

template <int kTurns>
void circular_loop(const ErasedFunction& /*function*/, const void* in, void* out,
                   std::int64_t count) {
  compute_circular<kTurns>(in, out, count);
}

template <int kTurns>
PIPETRAIN_WIDE_LOOP void wide_circular_loop(const ErasedFunction& /*function*/, const void* in,
                                            void* out, std::int64_t count) {
  compute_circular<kTurns>(in, out, count);
}

struct IsNaN {
  bool operator()(float x) const { return x != x; }
};
struct IsZero {
  bool operator()(std::uint8_t x) const { return x == 0; }
};
struct IsNotZero {
  template <class T>
  bool operator()(T x) const {
    return x != T(0);
  }
};
struct Same {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};

/// The conversions that occur in training graphs: masks and indices to floats and back.
UnaryLoop cast_loop(DType from, DType to) {
  using enum DType;
  if (from == kBool && to == kFloat32) return unary_loop<std::uint8_t, float, IsNotZero>;
  if (from == kFloat32 && to == kBool) return unary_loop<float, std::uint8_t, IsNotZero>;
  if (from == kInt64 && to == kBool) return unary_loop<std::int64_t, std::uint8_t, IsNotZero>;
  if (from == kInt64 && to == kFloat32) return unary_loop<std::int64_t, float, Same>;
  if (from == kInt32 && to == kFloat32) return unary_loop<std::int32_t, float, Same>;
  if (from == kFloat32 && to == kInt64) return unary_loop<float, std::int64_t, Same>;
  if (from == kInt32 && to == kInt64) return unary_loop<std::int32_t, std::int64_t, Same>;
  if (from == kBool && to == kInt64) return unary_loop<std::uint8_t, std::int64_t, IsNotZero>;
  return nullptr;
}

}  // namespace

UnaryLoop find_unary_loop(std::string_view op, const Attributes& attributes,
                          ErasedFunction& function) {
  if (op == "Sin") return has_avx512() ? wide_circular_loop<0> : circular_loop<0>;
  if (op == "Cos") return has_avx512() ? wide_circular_loop<1> : circular_loop<1>;
  UnaryLoop loop = nullptr;
  visit_unary<float, VectorMath>(op, attributes, [&]<class F>(F f) {
    loop = has_avx512() ? wide_unary_loop<F> : unary_loop<float, float, F>;
    function = ErasedFunction(f);
  });
  return loop;
}

UnaryLoop find_unary_loop(std::string_view op, const Attributes& attributes, DType from, DType to,
                          ErasedFunction& function) {
  if (op == "Cast") return cast_loop(from, to);
  if (op == "Not") return unary_loop<std::uint8_t, std::uint8_t, IsZero>;
  if (from != DType::kFloat32) return nullptr;
  if (op == "IsNaN") return unary_loop<float, std::uint8_t, IsNaN>;
  return find_unary_loop(op, attributes, function);
}

std::unique_ptr<Kernel> make_cpu_unary(const KernelRequest& request) {
  if (takes_bfloat16(request)) return make_bfloat16(request);
  const DType from = request.inputs[0].dtype;
  ErasedFunction function;
  const UnaryLoop loop = find_unary_loop(request.node.op->name, request.node.attributes, from,
                                         request.outputs[0].dtype, function);
  if (loop == nullptr) return nullptr;
  const auto in_size = static_cast<std::int64_t>(size_of(from));
  const auto out_size = static_cast<std::int64_t>(size_of(request.outputs[0].dtype));
  return make_kernel(
      [=](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        run_chunks(loop, function, {in[0].data, in_size}, {out[0].data, out_size}, out[0].count());
      });
}

}  // namespace pipetrain::elementwise
