// Reads a matrix into the cache before it is packed. Include it from gemm_cpu.cpp only.
#pragma once

#include <cstdint>

#include "ops/matmul/gemm_cpu.h"

namespace pipetrain::gemm_panels {

/// Rows [top, top + rows) and columns [left, left + columns) of a matrix, prefetched a few cache
/// lines at a time, so that packing them next does not wait for memory.
template <class Element>
class Prefetcher {
 public:
  Prefetcher() = default;
  Prefetcher(const MatrixOf<Element>& matrix, std::int64_t top, std::int64_t rows,
             std::int64_t left, std::int64_t columns, std::int64_t portions)
      : line_(matrix.data + top * matrix.row_stride + left * matrix.column_stride) {
    const bool row_major = matrix.column_stride == 1;
    stride_ = row_major ? matrix.row_stride : matrix.column_stride;
    length_ = row_major ? columns : rows;
    lines_ = row_major ? rows : columns;
    portion_ = (lines_ * ((length_ + kLine - 1) / kLine) + portions - 1) / portions;
  }

  void next_portion() {
    for (std::int64_t i = 0; i < portion_ && lines_ > 0; ++i) {
      __builtin_prefetch(line_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < length_) continue;
      at_ = 0;
      line_ += stride_;
      --lines_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(Element);
  const Element* line_ = nullptr;
  std::int64_t stride_ = 0, length_ = 0, lines_ = 0, portion_ = 0, at_ = 0;
};

}  // namespace pipetrain::gemm_panels
