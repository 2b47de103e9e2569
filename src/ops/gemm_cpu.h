// Float matrix product c = a b (+ bias) in the blocked form of Goto and van de Geijn (2008) and
// BLIS: operands are packed into panels that the inner loop reads in order, so neither transposes
// nor row lengths that collide in the caches (powers of two) cost anything. oneDNN's sgemm falls to
// a third of its rate on such operands.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// Element (i, j) of the matrix lies at data[i * row_stride + j * column_stride]; one of the
/// strides is 1.
struct MatrixView {
  const float* data;
  std::int64_t row_stride, column_stride;
};

struct GemmShape {
  std::int64_t m, n, k;  // c is (m, n), the sums run over k
};

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads);

/// c is row-major and overwritten; bias (n) may be null. The bits do not depend on `threads`.
void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads);

/// Whether gemm_adding() gives the bits of gemm() and an addition behind it: where the sums over k
/// are made in one pass.
bool gemm_adds(const GemmShape& shape);

/// Adds the product to c, with the workspace and the freedom of threads of gemm().
void gemm_adding(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                 std::byte* workspace, int threads);

/// b (k, n) in the form that the inner loop reads, for many products with few rows: packing it anew
/// takes as long as 60 rows do.
std::int64_t gemm_packed_floats(std::int64_t n, std::int64_t k);
void gemm_pack(std::int64_t n, std::int64_t k, const MatrixView& b, float* packed, int threads);

/// gemm() with a packed b: the same bits.
std::size_t gemm_packed_workspace_bytes(const GemmShape& shape, int threads);
void gemm_packed(const GemmShape& shape, const MatrixView& a, const float* packed,
                 const float* bias, float* c, std::byte* workspace, int threads);

}  // namespace pipetrain
