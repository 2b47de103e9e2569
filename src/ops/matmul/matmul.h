// Matrix products: what the definition and the kernels share.
//
//   MatMul{trans_a, trans_b, keep_float}(a, b[, bias]) -> y
//   a: (batch…, M, K), or (batch…, K, M) with trans_a     b: (batch…, K, N), or (batch…, N, K)
//   bias: (N)     y: (batch…, M, N); batch axes broadcast as in numpy
//
// A b that is the same in many products with few rows is packed once (CPU only):
//
//   PackMatrix{trans_b, to}(b) -> p: (K, N), or (N, K) with trans_b, as the micro-kernel
//   reads it; a float b is rounded to bfloat16 if `to` says so
//   MatMulPacked{n, transposed}(a, p[, bias]) -> y: the bits of MatMul(a, b[, bias]); transposed: p
//   is the packed transpose of b, and there is no bias
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernel/kernel.h"

namespace pipetrain {

struct MatMulGeometry {
  bool trans_a = false;
  bool trans_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Shape output;
};

/// Error (kModel) when the shapes are incompatible.
MatMulGeometry matmul_geometry(const Attributes& attributes, const Shape& a, const Shape& b);

/// The products of a (batched) MatMul: one for each offset, results contiguous.
struct MatMulPlan {
  bool trans_a = false;
  bool trans_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  /// Offsets of the matrices of each product, in elements.
  std::vector<std::int64_t> a_offsets;
  std::vector<std::int64_t> b_offsets;

  std::int64_t products() const { return static_cast<std::int64_t>(a_offsets.size()); }
};

/// No products when the result is empty. A batch with a shared b and contiguous rows of a is one
/// product with batch × M rows.
MatMulPlan matmul_plan(const KernelRequest& request);

/// Whether GPUs support padded rows (Layout::kPaddedRows) in these operands or the result: for a
/// single product without an epilogue other than sums.
bool takes_padded_rows(const KernelRequest& request);

/// Elements of a packed b for float or bfloat16 products.
std::int64_t packed_matrix_elements(DType operands, std::int64_t n, std::int64_t k);

/// Whether MatMulPacked has the bits of this MatMul and is faster if b is used in several products.
bool packing_pays(const KernelRequest& request);

/// Whether this MatMul, for which packing_pays(), is as fast with the packed transpose of its b.
bool takes_packed_transpose(const KernelRequest& request);

/// Whether the CPU's kernel for a MatMul is an AddingKernel.
bool matmul_adds(const KernelRequest& request);

/// Whether the CPU multiplies the bfloat16 operands of this MatMul, MatMulPacked or PackMatrix
/// directly. Otherwise they are converted to float (ops/registry/narrow_kernel.h).
bool multiplies_bfloat16(const KernelRequest& request);

std::span<const KernelEntry> matmul_reference_kernels();
std::span<const KernelEntry> matmul_cpu_kernels();

}  // namespace pipetrain
