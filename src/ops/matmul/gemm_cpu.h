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
template <class Element>
struct MatrixOf {
  const Element* data;
  std::int64_t row_stride, column_stride;
};
using MatrixView = MatrixOf<float>;

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

/// One packed matrix for both directions: whether gemm_packed_transposed() is as fast as
/// gemm_packed(). It is for few rows that fill vectors, with AVX2.
bool gemm_takes_transposed(const GemmShape& shape);

/// gemm() where the transpose of b is packed, gemm_pack(k, n, …): the same bits. a is row-major.
std::size_t gemm_transposed_workspace_bytes(const GemmShape& shape, int threads);
void gemm_packed_transposed(const GemmShape& shape, const MatrixView& a, const float* packed,
                            float* c, std::byte* workspace, int threads);

// --- products of bfloat16 numbers, with instructions of AVX-512 for them ---
//
// Sums are float; what is written (Out) is float, or std::uint16_t: a bfloat16 number, rounded
// once. As above, no bit depends on the number of threads, nor on whether b is packed.

using BFloat16Matrix = MatrixOf<std::uint16_t>;

/// Whether this machine has what the functions below need.
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

/// b may be given in float, and is then rounded on the way.
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
