#include "ops/conv/pointwise_cpu.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "ops/kernel/vector8_cpu.h"
#include "ops/kernel/workspace.h"
#include "ops/matmul/gemm_cpu.h"

namespace pipetrain {
namespace {

constexpr std::int64_t kLanes = 8;

template <class Element>
constexpr bool kIsFloat = std::is_same_v<Element, float>;

template <class Element, class Out>
std::size_t product_bytes(const GemmShape& shape, int threads) {
  if constexpr (kIsFloat<Element>) {
    return aligned_part(gemm_workspace_bytes(shape, threads));
  } else {
    return aligned_part(gemm_bfloat16_workspace_bytes<Out>(shape, /*packed=*/false, threads));
  }
}

template <class Element, class Out>
void product(const GemmShape& shape, const MatrixOf<Element>& a, const MatrixOf<Element>& b, Out* c,
             std::byte* workspace, int threads) {
  if constexpr (kIsFloat<Element>) {
    gemm(shape, a, b, nullptr, c, workspace, threads);
  } else {
    gemm_bfloat16(shape, a, b, nullptr, c, workspace, threads);
  }
}

template <class Element>
void add_product(const GemmShape& shape, const MatrixOf<Element>& a, const MatrixOf<Element>& b,
                 float* c, std::byte* workspace, int threads) {
  if constexpr (kIsFloat<Element>) {
    gemm_adding(shape, a, b, c, workspace, threads);
  } else {
    gemm_bfloat16_adding(shape, a, b, c, workspace, threads);
  }
}

/// The result of a pass over a sample: its channels times positions.
GemmShape sample_shape(const Pointwise& shape, bool input_gradient) {
  return input_gradient ? GemmShape{shape.inputs, shape.positions, shape.outputs}
                        : GemmShape{shape.outputs, shape.positions, shape.inputs};
}

/// Threads that a sample's product is made by: one where there are samples for all.
int threads_of_sample(const Pointwise& shape, int threads) {
  return shape.batch >= threads ? 1 : threads;
}

/// result(n) = weights times from(n).
template <class Element>
void multiply_samples(const Pointwise& shape, bool input_gradient, const MatrixOf<Element>& weights,
                      const Element* from, const float* bias, Element* to, std::byte* workspace,
                      int threads) {
  const GemmShape product_shape = sample_shape(shape, input_gradient);
  const int inner = threads_of_sample(shape, threads);
  const std::size_t bytes = product_bytes<Element, Element>(product_shape, inner);
  const auto multiply = [&](std::int64_t n, int thread) {
    std::byte* own = workspace + static_cast<std::size_t>(thread) * bytes;
    const MatrixOf<Element> sample{from + n * product_shape.k * product_shape.n, product_shape.n,
                                   1};
    Element* result = to + n * product_shape.m * product_shape.n;
    product<Element, Element>(product_shape, weights, sample, result, own, inner);
    if constexpr (kIsFloat<Element>) {
      for (std::int64_t m = 0; bias && m < product_shape.m; ++m) {
        float* line = result + m * product_shape.n;
        for (std::int64_t p = 0; p < product_shape.n; ++p) line[p] += bias[m];
      }
    }
  };
  if (inner > 1) {  // not within a parallel region, which would start threads again and again
    for (std::int64_t n = 0; n < shape.batch; ++n) multiply(n, 0);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t n = 0; n < shape.batch; ++n) multiply(n, omp_get_thread_num());
}

/// The sum of a channel of dy over all samples.
template <class Element>
float sum_channel(const Pointwise& shape, const Element* dy, std::int64_t channel) {
  double total = 0;
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    const Element* line = dy + (n * shape.outputs + channel) * shape.positions;
    Vector8 sums = {};
    std::int64_t p = 0;
    for (; p + kLanes <= shape.positions; p += kLanes) sums += load8(line + p);
    float sum = 0;
    for (; p < shape.positions; ++p) sum += to_float(line[p]);
    for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    total += static_cast<double>(sum);
  }
  return static_cast<float>(total);
}

GemmShape weight_shape(const Pointwise& shape) {
  return {shape.outputs, shape.inputs, shape.positions};
}
std::size_t sums_bytes(const Pointwise& shape) {
  return aligned_part(static_cast<std::size_t>(shape.outputs * shape.inputs) * sizeof(float));
}

}  // namespace

std::optional<Pointwise> pointwise(const ConvGeometry& geometry) {
  constexpr std::int64_t kFewestPositions = 64;
  if (geometry.group != 1) return {};
  std::int64_t positions = 1;
  for (const WindowAxis& axis : geometry.window) {
    if (axis.kernel != 1 || axis.stride != 1 || axis.pad_begin != 0 || axis.pad_end != 0) return {};
    positions *= axis.input;
  }
  if (positions < kFewestPositions) return {};
  return Pointwise{geometry.batch, geometry.inputs, geometry.outputs, positions};
}

template <class Element>
std::size_t pointwise_workspace_bytes(const Pointwise& shape, bool input_gradient, int threads) {
  const int inner = threads_of_sample(shape, threads);
  return product_bytes<Element, Element>(sample_shape(shape, input_gradient), inner) *
         static_cast<std::size_t>(inner == 1 ? threads : 1);
}

template <class Element>
void pointwise_forward(const Pointwise& shape, const Element* x, const Element* w,
                       const float* bias, Element* y, std::byte* workspace, int threads) {
  multiply_samples<Element>(shape, /*input_gradient=*/false, {w, shape.inputs, 1}, x, bias, y,
                            workspace, threads);
}

template <class Element>
void pointwise_input_gradient(const Pointwise& shape, const Element* dy, const Element* w,
                              Element* dx, std::byte* workspace, int threads) {
  multiply_samples<Element>(shape, /*input_gradient=*/true, {w, 1, shape.inputs}, dy, nullptr, dx,
                            workspace, threads);
}

template <class Element>
std::size_t pointwise_weight_gradient_workspace_bytes(const Pointwise& shape, int threads) {
  return sums_bytes(shape) + product_bytes<Element, float>(weight_shape(shape), threads);
}

template <class Element>
void pointwise_weight_gradient(const Pointwise& shape, const Element* x, const Element* dy,
                               bool add, float* dw, float* dbias, std::byte* workspace,
                               int threads) {
  const GemmShape product_shape = weight_shape(shape);
  auto* const sums = add ? reinterpret_cast<float*>(workspace) : dw;
  std::byte* rest = workspace + sums_bytes(shape);
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    const MatrixOf<Element> a{dy + n * shape.outputs * shape.positions, shape.positions, 1};
    const MatrixOf<Element> b{x + n * shape.inputs * shape.positions, 1, shape.positions};
    if (n == 0) {
      product<Element, float>(product_shape, a, b, sums, rest, threads);
    } else {
      add_product<Element>(product_shape, a, b, sums, rest, threads);
    }
  }
  const std::int64_t count = add ? shape.outputs * shape.inputs : 0;
  for (std::int64_t i = 0; i < count; ++i) dw[i] += sums[i];
  if (!dbias) return;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t m = 0; m < shape.outputs; ++m) {
    // As numbers that load8() widens.
    using Stored = std::conditional_t<kIsFloat<Element>, float, BFloat16>;
    const float sum = sum_channel(shape, reinterpret_cast<const Stored*>(dy), m);
    dbias[m] = add ? dbias[m] + sum : sum;
  }
}

#define PIPETRAIN_POINTWISE_OF(Element)                                                           \
  template std::size_t pointwise_workspace_bytes<Element>(const Pointwise&, bool, int);           \
  template std::size_t pointwise_weight_gradient_workspace_bytes<Element>(const Pointwise&, int); \
  template void pointwise_forward(const Pointwise&, const Element*, const Element*, const float*, \
                                  Element*, std::byte*, int);                                     \
  template void pointwise_input_gradient(const Pointwise&, const Element*, const Element*,        \
                                         Element*, std::byte*, int);                              \
  template void pointwise_weight_gradient(const Pointwise&, const Element*, const Element*, bool, \
                                          float*, float*, std::byte*, int)
PIPETRAIN_POINTWISE_OF(float);
PIPETRAIN_POINTWISE_OF(std::uint16_t);
#undef PIPETRAIN_POINTWISE_OF

}  // namespace pipetrain
