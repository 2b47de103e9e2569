// Cumulative sums and products of float32: all lines of a block of columns in parallel.
#include <omp.h>

#include <algorithm>

#include "graph/op.h"
#include "ops/reduce/cumulative.h"

namespace pipetrain {
namespace {

using Tensors = std::span<const Tensor>;
constexpr std::int64_t kParallelElements = 1 << 15;
constexpr std::int64_t kColumns = 64;

/// Calls body(o, first column, columns) for all lines, in blocks of columns.
template <class Body>
void for_blocks(const CumulativeAxis& axis, Body body) {
  const std::int64_t blocks = (axis.inner + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static) if (axis.outer * axis.size * axis.inner > \
                                              kParallelElements)
  for (std::int64_t task = 0; task < axis.outer * blocks; ++task) {
    const std::int64_t first = task % blocks * kColumns;
    body(task / blocks, first, std::min(kColumns, axis.inner - first));
  }
}

template <bool kProduct>
void run(const CumulativeAxis& axis, const float* x, float* y) {
  for_blocks(axis, [&](std::int64_t o, std::int64_t first, std::int64_t columns) {
    float total[kColumns];
    std::fill_n(total, columns, kProduct ? 1.0F : 0.0F);
    for (std::int64_t step = 0; step < axis.size; ++step) {
      const std::int64_t at = axis.at(o, step, first);
      const float* __restrict from = x + at;
      float* __restrict to = y + at;
      for (std::int64_t i = 0; i < columns; ++i) {
        const float next = kProduct ? total[i] * from[i] : total[i] + from[i];
        to[i] = axis.exclusive ? total[i] : next;
        total[i] = next;
      }
    }
  });
}

std::unique_ptr<Kernel> make_cumulative(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  const bool product = request.node.op->name == "CumProd";
  return make_kernel(
      [axis = cumulative_axis(request), product](Tensors in, Tensors out, const RunContext&) {
        const auto loop = product ? run<true> : run<false>;
        loop(axis, in[0].as<float>(), out[0].as<float>());
      });
}

// The recurrence of the reference kernel, on a block of columns.
std::unique_ptr<Kernel> make_gradient(const KernelRequest& request) {
  if (request.inputs[0].dtype != DType::kFloat32) return nullptr;
  return make_kernel([axis = cumulative_axis(request)](Tensors in, Tensors out, const RunContext&) {
    const float* dy = in[0].as<float>();
    const float* x = in[1].as<float>();
    float* dx = out[0].as<float>();
    for_blocks(axis, [&](std::int64_t o, std::int64_t first, std::int64_t columns) {
      float carried[kColumns] = {};
      for (std::int64_t step = axis.size; step-- > 0;) {
        const bool last = step + 1 == axis.size;
        const std::int64_t at = axis.at(o, step, first);
        const std::int64_t next = last ? at : axis.at(o, step + 1, first);
        const float* __restrict gradient = dy + (axis.exclusive ? next : at);
        const float* __restrict factor = x + next;
        for (std::int64_t i = 0; i < columns; ++i) {
          const float after = last ? 0.0F : factor[i] * carried[i];
          carried[i] = axis.exclusive && last ? 0.0F : gradient[i] + after;
          dx[at + i] = carried[i];
        }
      }
      std::fill_n(carried, columns, 1.0F);
      for (std::int64_t step = 0; step < axis.size; ++step) {
        const std::int64_t at = axis.at(o, step, first);
        for (std::int64_t i = 0; i < columns; ++i) {
          dx[at + i] *= carried[i];
          carried[i] *= x[at + i];
        }
      }
    });
  });
}

constexpr KernelEntry kKernels[] = {
    {"CumProd", make_cumulative},
    {"CumProdGrad", make_gradient},
    {"CumSum", make_cumulative},
};

}  // namespace

std::span<const KernelEntry> cumulative_cpu_kernels() { return kKernels; }

}  // namespace pipetrain
