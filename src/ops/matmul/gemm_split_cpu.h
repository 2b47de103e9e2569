// Float products by matrix instructions for bfloat16 numbers (AMX), which multiply 16 times as many
// numbers as vectors of floats do. A float is the sum of three bfloat16 numbers: a = a1 + a2 + a3,
// each a rounding of what the ones before leave. Six of the nine products of parts are added up in
// float; the other three are below 2^-22 of a b. The error is within the bound of float sums: each
// sum is rounded far less often (docs/precision.md). As everywhere, no bit depends on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pipetrain {

struct GemmShape;

/// Whether this processor has the instructions and the product is large enough.
bool gemm_splits(const GemmShape& shape);

/// Where the elements of a matrix are: lines of blocks of 16 adjacent elements.
class LineMap {
 public:
  static constexpr std::int64_t kBlock = 16;
  static constexpr std::int64_t kZeros = -1;  // offset of a block of zeros that is nowhere

  virtual ~LineMap() = default;
  /// The offsets of block `block` of lines first, first + 1, … of `count`, at most 16.
  virtual void locate(std::int64_t first, std::int64_t count, std::int64_t block,
                      std::int64_t* offsets) const = 0;
};

/// Lines that are `stride` elements apart; their blocks, `block_stride` apart.
class EvenLines final : public LineMap {
 public:
  explicit EvenLines(std::int64_t stride, std::int64_t block_stride = kBlock)
      : stride_(stride), block_stride_(block_stride) {}
  void locate(std::int64_t first, std::int64_t count, std::int64_t block,
              std::int64_t* offsets) const override {
    for (std::int64_t i = 0; i < count; ++i)
      offsets[i] = (first + i) * stride_ + block * block_stride_;
  }

 private:
  std::int64_t stride_, block_stride_;
};

/// An operand (m, k) or (k, n). Its lines are rows of a, columns of b, or elements of k.
struct SplitOperand {
  const float* data;
  const LineMap* map;
  bool lines_are_k;
};
struct SplitResult {
  float* data;
  const LineMap* map;  // lines are rows
};

std::size_t gemm_split_workspace_bytes(const GemmShape& shape, int threads);
/// c = (or +=) a b + bias; the bias may be null.
void gemm_split(const GemmShape& shape, const SplitOperand& a, const SplitOperand& b,
                const float* bias, bool add, const SplitResult& c, std::byte* workspace,
                int threads);

/// Whether adding gives the bits of a product followed by an addition.
bool gemm_split_adds(const GemmShape& shape);

}  // namespace pipetrain
