// Element-wise operators over float32: flat where the operands lie alike, and with rows of stride 0
// or 1 where one is broadcast. Threads share the work only where a tensor exceeds the caches of a
// core. Here: the table of all of them, the pieces they run in, and Sum.
#include <omp.h>

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/elementwise_loops_cpu.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;

/// Calls body(first, count) for consecutive pieces of [0, count).
template <class Body>
void for_pieces(std::int64_t count, Body body) {
  const std::int64_t pieces = (count + kTileElements - 1) / kTileElements;
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::int64_t first = piece * kTileElements;
    body(first, std::min(kTileElements, count - first));
  }
}

// --- Sum ---

Made make_sum(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        float* y = out[0].as<float>();
        for_pieces(out[0].count(), [=](std::int64_t start, std::int64_t length) {
          // Pieces that stay in the first cache while the operands are added one after another.
          constexpr std::int64_t kPiece = 2048;
          for (std::int64_t first = start; first < start + length; first += kPiece) {
            const std::int64_t count = std::min(kPiece, start + length - first);
            float* __restrict to = y + first;
            const float* __restrict a = in[0].as<float>() + first;
            if (in.size() == 1) std::copy_n(a, count, to);
            for (std::size_t k = 1; k < in.size(); ++k) {
              const float* __restrict b = in[k].as<float>() + first;
              if (k == 1) {
                for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
              } else {
                for (std::int64_t i = 0; i < count; ++i) to[i] += b[i];
              }
            }
          }
        });
      });
}

constexpr KernelEntry kKernels[] = {
    {"Abs", make_cpu_unary},
    {"Acos", make_cpu_unary},
    {"Acosh", make_cpu_unary},
    {"Asin", make_cpu_unary},
    {"Asinh", make_cpu_unary},
    {"Atan", make_cpu_unary},
    {"Atanh", make_cpu_unary},
    {"Cast", make_cpu_unary},
    {"Ceil", make_cpu_unary},
    {"Clip", make_cpu_unary},
    {"Cos", make_cpu_unary},
    {"Cosh", make_cpu_unary},
    {"Elu", make_cpu_unary},
    {"Erf", make_cpu_unary},
    {"Exp", make_cpu_unary},
    {"Floor", make_cpu_unary},
    {"Gelu", make_cpu_unary},
    {"HardSigmoid", make_cpu_unary},
    {"HardSwish", make_cpu_unary},
    {"IsNaN", make_cpu_unary},
    {"LeakyRelu", make_cpu_unary},
    {"Log", make_cpu_unary},
    {"Neg", make_cpu_unary},
    {"Not", make_cpu_unary},
    {"PowScalar", make_cpu_unary},
    {"Reciprocal", make_cpu_unary},
    {"Relu", make_cpu_unary},
    {"Round", make_cpu_unary},
    {"Sigmoid", make_cpu_unary},
    {"Sign", make_cpu_unary},
    {"Silu", make_cpu_unary},
    {"Sin", make_cpu_unary},
    {"Sinh", make_cpu_unary},
    {"Softplus", make_cpu_unary},
    {"Sqrt", make_cpu_unary},
    {"Tan", make_cpu_unary},
    {"Tanh", make_cpu_unary},
    {"ClipGrad", make_cpu_gradient},
    {"EluGrad", make_cpu_gradient},
    {"ErfGrad", make_cpu_gradient},
    {"GeluGrad", make_cpu_gradient},
    {"HardSigmoidGrad", make_cpu_gradient},
    {"HardSwishGrad", make_cpu_gradient},
    {"LeakyReluGrad", make_cpu_gradient},
    {"PowScalarGrad", make_cpu_gradient},
    {"ReciprocalGrad", make_cpu_gradient},
    {"ReluGrad", make_cpu_gradient},
    {"SigmoidGrad", make_cpu_gradient},
    {"SiluGrad", make_cpu_gradient},
    {"SoftplusGrad", make_cpu_gradient},
    {"SqrtGrad", make_cpu_gradient},
    {"TanhGrad", make_cpu_gradient},
    {"Add", make_cpu_broadcast},
    {"Div", make_cpu_broadcast},
    {"Max", make_cpu_broadcast},
    {"Min", make_cpu_broadcast},
    {"Mod", make_cpu_broadcast},
    {"Mul", make_cpu_broadcast},
    {"Pow", make_cpu_broadcast},
    {"Sub", make_cpu_broadcast},
    {"Equal", make_cpu_broadcast},
    {"Greater", make_cpu_broadcast},
    {"GreaterOrEqual", make_cpu_broadcast},
    {"Less", make_cpu_broadcast},
    {"LessOrEqual", make_cpu_broadcast},
    {"And", make_cpu_broadcast},
    {"Or", make_cpu_broadcast},
    {"Xor", make_cpu_broadcast},
    {"Sum", make_sum},
    {"Where", make_cpu_where},
};

}  // namespace

void run_pieces(UnaryLoop loop, const ErasedFunction& function, Elements x, Elements y,
                std::int64_t count) {
  for_pieces(count, [&](std::int64_t first, std::int64_t length) {
    loop(function, x.at(first), const_cast<void*>(y.at(first)), length);
  });
}

void run_pieces(BinaryLoop loop, const ErasedFunction& function, Elements a, Elements b, Elements y,
                std::int64_t count) {
  for_pieces(count, [&](std::int64_t first, std::int64_t length) {
    loop(function, a.at(first), b.at(first), const_cast<void*>(y.at(first)), length);
  });
}

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::elementwise
