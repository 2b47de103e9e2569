// What the float loops of the element-wise operators share: vectorisable functions, and the split
// of large tensors into chunks for several threads.
#pragma once

#include <string_view>

#include "graph/attributes.h"
#include "ops/kernel/element_loop.h"
#include "ops/kernel/vector_math_cpu.h"

/// Before a loop whose functions become vectors of 16 floats, to be called only where has_avx512().
/// Results have the same bits as with narrower vectors.
#ifdef __x86_64__
#define PIPETRAIN_WIDE_LOOP \
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]]
#else
#define PIPETRAIN_WIDE_LOOP
#endif

namespace pipetrain::elementwise {

constexpr std::int64_t kParallelElements = 65536;
constexpr std::int64_t kTileElements = 32768;

/// An untyped tensor: its bytes and element size.
struct Elements {
  const void* data;
  std::int64_t size;
  const void* at(std::int64_t index) const {
    return static_cast<const std::byte*>(data) + index * size;
  }
};

/// The float32 loop of an operator with one input; null for a name that has none. `function` is
/// what the loop is called with.
UnaryLoop find_unary_loop(std::string_view op, const Attributes& attributes,
                          ErasedFunction& function);
/// The same with Cast, Not and IsNaN, from and to other types.
UnaryLoop find_unary_loop(std::string_view op, const Attributes& attributes, DType from, DType to,
                          ErasedFunction& function);
/// The loop of a gradient operator: (dy, y or x).
BinaryLoop find_gradient_loop(std::string_view op, const Attributes& attributes,
                              ErasedFunction& function);

/// The same over bfloat16, and of an operator with two operands: elements are widened, computed in
/// float and rounded within registers. Null without AVX-512, too.
UnaryLoop find_bfloat16_unary_loop(std::string_view op, const Attributes& attributes,
                                   ErasedFunction& function);
BinaryLoop find_bfloat16_gradient_loop(std::string_view op, const Attributes& attributes,
                                       ErasedFunction& function);
BinaryLoop find_bfloat16_arithmetic_loop(std::string_view op, const Attributes& attributes,
                                         ErasedFunction& function);

/// Runs the loop on consecutive chunks of [0, count).
void run_chunks(UnaryLoop loop, const ErasedFunction& function, Elements x, Elements y,
                std::int64_t count);
void run_chunks(BinaryLoop loop, const ErasedFunction& function, Elements a, Elements b, Elements y,
                std::int64_t count);

namespace {

/// Functions without branches instead of the C library's.
struct VectorMath {
  static float exp(float x) { return vector_math::exp(x); }
  static float log(float x) { return vector_math::log(x); }
  static float tanh(float x) { return vector_math::tanh(x); }
  static float erf(float x) { return vector_math::erf(x); }
  static float sigmoid(float x) { return vector_math::sigmoid(x); }
  /// Φ(-t) = e^(-t^2 / 2) k P(k) with k = 1 / (1 + 0.34 t): one exponential for the function and
  /// its derivative. P is minimax over t in [0, 6.5] (relative error 5e-7 in float); beyond, Φ(-t)
  /// < 1e-10.
  static float normal_below(float x, float& bell) {
    const float k = 1 / (1 + 0.34F * vector_math::absolute(x));
    float p = 0.04573251708560875F;
    p = p * k - 0.20474963595126822F;
    p = p * k + 0.27203692711072053F;
    p = p * k - 0.03847926105520981F;
    p = p * k + 0.1606852392149109F;
    p = p * k + 0.1286293745616571F;
    p = p * k + 0.13614473796936907F;
    bell = vector_math::exp_nonpositive(-0.5F * x * x);
    const float beyond = p * k * bell;
    return x > 0 ? 1 - beyond : beyond;
  }
  static float softplus(float x) {
    return (x > 0 ? x : 0) + vector_math::log1p(vector_math::exp(-vector_math::absolute(x)));
  }
};

}  // namespace

}  // namespace pipetrain::elementwise
