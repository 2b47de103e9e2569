// Float matrix product c = a b (+ bias) in the blocked form of Goto and van de Geijn (2008) and
// BLIS: operands are packed into panels that the micro-kernel reads in order, so transposes and row
// lengths that cause cache conflicts (powers of two) cost nothing. oneDNN's sgemm drops to a third
// of its rate on such operands.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

/// Element (i, j) of the matrix is data[i * row_stride + j * column_stride]; one of the strides is
/// 1.
template <class Element>
struct MatrixOf {
  const Element* data;
  std::int64_t row_stride, column_stride;
};
using MatrixView = MatrixOf<float>;

struct GemmShape {
  std::int64_t m, n, k;  // a is (m, k), b (k, n), c (m, n)
};

std::size_t gemm_workspace_bytes(const GemmShape& shape, int threads);

/// c is row-major and overwritten; bias (n) may be null. The bits do not depend on `threads`.
void gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, const float* bias,
          float* c, std::byte* workspace, int threads);

/// Whether gemm_adding() gives the bits of gemm() followed by an addition: if k fits one k-block.
bool gemm_adds(const GemmShape& shape);

/// Adds the product to c. Workspace and threads as for gemm().
void gemm_adding(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float* c,
                 std::byte* workspace, int threads);

/// Packs b (k, n) in advance for many products with few rows: packing takes as long as multiplying
/// 60 rows.
std::int64_t gemm_packed_floats(std::int64_t n, std::int64_t k);
void gemm_pack(std::int64_t n, std::int64_t k, const MatrixView& b, float* packed, int threads);

/// gemm() with a packed b; same bits.
std::size_t gemm_packed_workspace_bytes(const GemmShape& shape, int threads);
void gemm_packed(const GemmShape& shape, const MatrixView& a, const float* packed,
                 const float* bias, float* c, std::byte* workspace, int threads);

/// Whether gemm_packed_transposed() is as fast as gemm_packed(), so that one packed matrix serves
/// both directions: with AVX2, for few rows that fill vectors.
bool gemm_takes_transposed(const GemmShape& shape);

/// gemm() with the packed transpose of b, gemm_pack(k, n, …); same bits. a is row-major.
std::size_t gemm_transposed_workspace_bytes(const GemmShape& shape, int threads);
void gemm_packed_transposed(const GemmShape& shape, const MatrixView& a, const float* packed,
                            float* c, std::byte* workspace, int threads);

// --- products of bfloat16 matrices, with AMX, AVX512_BF16, or as floats where that is faster ---
//
// Sums are float; the result (Out) is float, or bfloat16 as std::uint16_t, rounded once. As above,
// no bit depends on the number of threads, nor on whether b is packed.

using BFloat16Matrix = MatrixOf<std::uint16_t>;

/// Whether this processor has the instructions that the functions below need.
bool has_gemm_bfloat16();

template <class Out>
std::size_t gemm_bfloat16_workspace_bytes(const GemmShape& shape, bool packed, int threads);

template <class Out>
void gemm_bfloat16(const GemmShape& shape, const BFloat16Matrix& a, const BFloat16Matrix& b,
                   const float* bias, Out* c, std::byte* workspace, int threads);

/// As gemm_adds() and gemm_adding().
bool gemm_bfloat16_adds(const GemmShape& shape);
void gemm_bfloat16_adding(const GemmShape& shape, const BFloat16Matrix& a, const BFloat16Matrix& b,
                          float* c, std::byte* workspace, int threads);

/// A float b is rounded to bfloat16 while it is packed.
std::int64_t gemm_bfloat16_packed_elements(std::int64_t n, std::int64_t k);
void gemm_bfloat16_pack(std::int64_t n, std::int64_t k, const BFloat16Matrix& b,
                        std::uint16_t* packed, int threads);
void gemm_bfloat16_pack(std::int64_t n, std::int64_t k, const MatrixView& b, std::uint16_t* packed,
                        int threads);

template <class Out>
void gemm_bfloat16_packed(const GemmShape& shape, const BFloat16Matrix& a,
                          const std::uint16_t* packed, const float* bias, Out* c,
                          std::byte* workspace, int threads);

}  // namespace pipetrain
