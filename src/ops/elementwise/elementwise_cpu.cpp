// Element-wise operators over float32: flat loops where the operands have one layout, and rows of
// stride 0 or 1 where one is broadcast. Several threads are used only for tensors that exceed the
// caches of a core. Here: the kernel table, the split into chunks, and Sum.
#include <omp.h>

#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_list.h"
#include "ops/elementwise/elementwise_loops_cpu.h"

namespace pipetrain::elementwise {
namespace {

using Made = std::unique_ptr<Kernel>;

/// Calls body(first, count) for consecutive chunks of [0, count).
template <class Body>
void for_chunks(std::int64_t count, Body body) {
  const std::int64_t chunks = (count + kTileElements - 1) / kTileElements;
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = chunk * kTileElements;
    body(first, std::min(kTileElements, count - first));
  }
}

// --- Sum ---

Made make_sum(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel(
      [](std::span<const Tensor> in, std::span<const Tensor> out, const RunContext&) {
        float* y = out[0].as<float>();
        for_chunks(out[0].count(), [=](std::int64_t start, std::int64_t length) {
          // Chunks that stay in the L1 cache while the operands are added one after another.
          constexpr std::int64_t kChunk = 2048;
          for (std::int64_t first = start; first < start + length; first += kChunk) {
            const std::int64_t count = std::min(kChunk, start + length - first);
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
// clang-format off
#define PT_ENTRY(Operator, ...) {#Operator, make_cpu_unary},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
    PT_UNARY(PT_ENTRY)
    PT_UNARY_OF_LIBRARY(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator "Grad", make_cpu_gradient},
    PT_UNARY_WITH_GRADIENT(PT_ENTRY)
#undef PT_ENTRY
#define PT_ENTRY(Operator, ...) {#Operator, make_cpu_broadcast},
    PT_ARITHMETIC(PT_ENTRY)
    PT_COMPARISONS(PT_ENTRY)
    PT_LOGIC(PT_ENTRY)
#undef PT_ENTRY
    {"Cast", make_cpu_unary},
    {"IsNaN", make_cpu_unary},
    {"Not", make_cpu_unary},
    {"Sum", make_sum},
    {"Where", make_cpu_where},
    // clang-format on
};

}  // namespace

void run_chunks(UnaryLoop loop, const ErasedFunction& function, Elements x, Elements y,
                std::int64_t count) {
  for_chunks(count, [&](std::int64_t first, std::int64_t length) {
    loop(function, x.at(first), const_cast<void*>(y.at(first)), length);
  });
}

void run_chunks(BinaryLoop loop, const ErasedFunction& function, Elements a, Elements b, Elements y,
                std::int64_t count) {
  for_chunks(count, [&](std::int64_t first, std::int64_t length) {
    loop(function, a.at(first), b.at(first), const_cast<void*>(y.at(first)), length);
  });
}

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace pipetrain::elementwise
