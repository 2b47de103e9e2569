// The products of bfloat16 matrices of ops/matmul/gemm_cpu.h on tiles (AMX), which multiply eight
// times as fast as vectors. Packing and traffic between caches count for more there: threads pack
// both operands together, once, and sums stay in the caches until they are complete. So a product
// of any depth is rounded once, or added to what is there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/tile_instructions_cpu.h"

namespace pipetrain::tiles {

/// c = (or +=) a b + bias, where b is a view or was packed by pack(). The bits depend on the shape
/// only.
template <class Out>
struct Product {
  GemmShape shape;
  BFloat16Matrix a, b;
  const std::uint16_t* packed;
  const float* bias;
  bool add;  // only if Out is float
  Out* c;
};

std::size_t workspace_bytes(const GemmShape& shape, bool packed, int threads);

template <class Out>
void multiply(const Instructions& instructions, const Product<Out>& product, std::byte* workspace,
              int threads);

std::int64_t packed_elements(std::int64_t n, std::int64_t k);

/// Element is std::uint16_t, or float, which is rounded.
template <class Element>
void pack(std::int64_t n, std::int64_t k, const MatrixOf<Element>& b, std::uint16_t* packed,
          int threads);

}  // namespace pipetrain::tiles
