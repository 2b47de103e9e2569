// How ops/matmul/gemm_cpu.h packs its operands: in packed elements of 32 bits, each a float, or a
// pair of bfloat16 values that are adjacent along k, as the dot-product instruction takes them. If
// k is contiguous, both are copied in the same way. Include it from *_cpu.cpp files only.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "ops/kernel/vector8_cpu.h"
#include "ops/matmul/gemm_cpu.h"
#include "ops/matmul/gemm_split_cpu.h"

namespace pipetrain::gemm_panels {

using Vector = Vector8;
using Bits8 = std::uint32_t __attribute__((vector_size(32)));

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kRows =
    6;  // of c in the micro-kernel (BLIS's MR): 12 vectors of sums in registers
constexpr std::int64_t kColumns = 16;  // and columns (NR)
// Panels packed together, so that whole cache lines are read at a time.
constexpr std::int64_t kRowPanels = 8, kColumnPanels = 16;
constexpr std::int64_t kSlack = 16;  // packed elements that packing a may write beyond its panels

/// Splits the rows of a into panels of at most six, as equal as possible: a panel of two rows would
/// take as long as one of four.
class RowPanels {
 public:
  explicit RowPanels(std::int64_t rows)
      : count_((rows + kRows - 1) / kRows), least_(rows / count_), higher_(rows % count_) {}
  std::int64_t count() const { return count_; }
  std::int64_t first(std::int64_t panel) const { return panel * least_ + std::min(panel, higher_); }
  std::int64_t height(std::int64_t panel) const { return least_ + (panel < higher_ ? 1 : 0); }

 private:
  std::int64_t count_, least_, higher_;
};

inline void store6(float* to, Vector value) {
  using Four = float __attribute__((vector_size(16), aligned(4), may_alias));
  using Two = float __attribute__((vector_size(8), aligned(4), may_alias));
  *reinterpret_cast<Four*>(to) = __builtin_shufflevector(value, value, 0, 1, 2, 3);
  *reinterpret_cast<Two*>(to + 4) = __builtin_shufflevector(value, value, 4, 5);
}

/// Packed elements are floats.
struct Floats {
  using Element = float;
  static constexpr std::int64_t kPerElement = 1;  // elements of k in a packed element
  static constexpr std::int64_t kReach = 6;       // elements that six_across() reads

  /// One packed element from k-elements `stride` apart, of which `left` remain.
  static float packed_element(const float* from, std::int64_t /*stride*/, std::int64_t /*left*/) {
    return *from;
  }
  /// Eight packed elements from elements that are contiguous along k.
  static Vector eight(const float* from) { return load8(from); }
  /// Adjacent packed elements from this line (one k) and, for pairs, the next.
  static Vector eight_across(const float* line, std::int64_t /*stride*/) { return load8(line); }
  static void six_across(const float* line, std::int64_t /*stride*/, float* to) {
    std::memcpy(to, line, kRows * sizeof(float));
  }
};

/// The same from bfloat16, widened to float.
struct WidenedFloats {
  using Element = BFloat16;
  static constexpr std::int64_t kPerElement = 1;

  static float packed_element(const BFloat16* from, std::int64_t /*stride*/,
                              std::int64_t /*left*/) {
    return to_float(*from);
  }
  static Vector eight(const BFloat16* from) { return load8(from); }
};

/// The same from the bits of bfloat16 numbers.
struct Widened {
  using Element = std::uint16_t;
  static constexpr std::int64_t kPerElement = 1;
  static constexpr std::int64_t kReach = 8;

  static float packed_element(const std::uint16_t* from, std::int64_t /*stride*/,
                              std::int64_t /*left*/) {
    return to_float(BFloat16{*from});
  }
  static Vector eight(const std::uint16_t* from) {
    return load8(reinterpret_cast<const BFloat16*>(from));
  }
  static Vector eight_across(const std::uint16_t* line, std::int64_t /*stride*/) {
    return eight(line);
  }
  static void six_across(const std::uint16_t* line, std::int64_t /*stride*/, float* to) {
    store6(to, eight(line));
  }
};

/// Rounds as round_to_bfloat16() does; results are in the upper halves.
inline Bits8 rounded_to_upper_halves(const Vector& value) {
  const auto bits = std::bit_cast<Bits8>(value);
  const Bits8 sum = bits + 0x7fffU + (bits >> 16 & 1U);
  const Bits8 nan = bits | 0x400000U;
  return ((bits & 0x7fffffffU) > 0x7f800000U ? nan : sum) & 0xffff0000U;
}

/// Floats rounded to bfloat16, ties to even, and widened again.
struct RoundedFloats {
  using Element = float;
  static constexpr std::int64_t kPerElement = 1;
  static constexpr std::int64_t kReach = 6;

  static float packed_element(const float* from, std::int64_t /*stride*/, std::int64_t /*left*/) {
    return rounded(Vector{*from})[0];
  }
  static Vector eight(const float* from) { return rounded(load8(from)); }
  static Vector eight_across(const float* line, std::int64_t /*stride*/) { return eight(line); }

 private:
  static Vector rounded(const Vector& value) {
    return std::bit_cast<Vector>(rounded_to_upper_halves(value));
  }
};

/// Packed elements are pairs of bfloat16, the one with the smaller k in the lower half.
struct Pairs {
  using Element = std::uint16_t;
  static constexpr std::int64_t kPerElement = 2;
  static constexpr std::int64_t kReach = 8;

  static float packed_element(const std::uint16_t* from, std::int64_t stride, std::int64_t left) {
    return pair_of(from[0], left > 1 ? from[stride] : 0U);
  }
  static Vector eight(const std::uint16_t* from) {
    return *reinterpret_cast<const Numbers16*>(from);
  }
  static Vector eight_across(const std::uint16_t* line, std::int64_t stride) {
    return std::bit_cast<Vector>(widened(line) | widened(line + stride) << 16);
  }
  static void six_across(const std::uint16_t* line, std::int64_t stride, float* to) {
    const Vector packed = eight_across(line, stride);
    store6(to, packed);
  }

 private:
  using Numbers8 = std::uint16_t __attribute__((vector_size(16), aligned(2), may_alias));
  using Numbers16 = float __attribute__((vector_size(32), aligned(2), may_alias));
  static float pair_of(std::uint32_t low, std::uint32_t high) {
    return std::bit_cast<float>(low | high << 16);
  }
  static Bits8 widened(const std::uint16_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const Numbers8*>(from), Bits8);
  }
};

/// The same from floats, rounded to nearest, ties to even.
struct RoundedPairs {
  using Element = float;
  static constexpr std::int64_t kPerElement = 2;
  static constexpr std::int64_t kReach = 8;

  static float packed_element(const float* from, std::int64_t stride, std::int64_t left) {
    const Vector both = {from[0], left > 1 ? from[stride] : 0.0F};
    const Bits8 bits = rounded_to_upper_halves(both);
    return std::bit_cast<float>(bits[0] >> 16 | bits[1]);
  }
  static Vector eight(const float* from) {
    const Bits8 low = rounded_to_upper_halves(load8(from));
    const Bits8 high = rounded_to_upper_halves(load8(from + kLanes));
    const Bits8 even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
    const Bits8 odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
    return std::bit_cast<Vector>(even >> 16 | odd);
  }
  static Vector eight_across(const float* line, std::int64_t stride) {
    return std::bit_cast<Vector>(rounded_to_upper_halves(load8(line)) >> 16 |
                                 rounded_to_upper_halves(load8(line + stride)));
  }
};

/// Depth of a k-block in packed elements.
template <class Source>
constexpr std::int64_t packed_depth(std::int64_t k_block) {
  return (k_block + Source::kPerElement - 1) / Source::kPerElement;
}

/// Packs 6 rows, `stride` apart and contiguous along k, as (depth, 6); may write two packed
/// elements more.
template <class Source>
void transpose_six(const typename Source::Element* from, std::int64_t stride, std::int64_t k_block,
                   float* to) {
  constexpr std::int64_t kPerElement = Source::kPerElement;
  std::int64_t k = 0;
  for (; k + kLanes * kPerElement <= k_block; k += kLanes * kPerElement) {
    Vector rows[8] = {};
    for (int r = 0; r < kRows; ++r) rows[r] = Source::eight(from + r * stride + k);
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) store8(to + (k / kPerElement + i) * kRows, rows[i]);
  }
  for (; k < k_block; k += kPerElement) {
    for (int r = 0; r < kRows; ++r)
      to[k / kPerElement * kRows + r] =
          Source::packed_element(from + r * stride + k, 1, k_block - k);
  }
}

/// Packs rows [first, first + rows) and k in [begin, begin + k_block) of a as panels (depth, 6).
/// The matrix has `behind` rows from `first` on. The unused rows of a shorter panel are never read
/// by the micro-kernel.
template <class Source>
void pack_rows(const MatrixOf<typename Source::Element>& a, std::int64_t first, std::int64_t rows,
               std::int64_t behind, std::int64_t begin, std::int64_t k_block, float* to) {
  constexpr std::int64_t kPerElement = Source::kPerElement;
  const std::int64_t depth = packed_depth<Source>(k_block);
  const auto* from = a.data + first * a.row_stride + begin * a.column_stride;
  const RowPanels panels(rows);
  const bool across = a.row_stride == 1;
  // May read more rows than the panel has.
  const std::int64_t reach = across ? Source::kReach : kRows;
  std::int64_t whole = panels.count();
  while (whole > 0 && panels.first(whole - 1) + reach > behind) --whole;
  if (across) {
    const std::int64_t full = k_block / kPerElement;
    for (std::int64_t group = 0; group < whole; group += kRowPanels) {
      const std::int64_t end = std::min(whole, group + kRowPanels);
      for (std::int64_t k = 0; k < full; ++k) {
        for (std::int64_t panel = group; panel < end; ++panel) {
          Source::six_across(from + k * kPerElement * a.column_stride + panels.first(panel),
                             a.column_stride, to + (panel * depth + k) * kRows);
        }
      }
      for (std::int64_t panel = group; panel < end && full < depth; ++panel) {
        const auto* line = from + full * kPerElement * a.column_stride + panels.first(panel);
        for (std::int64_t r = 0; r < kRows; ++r)
          to[(panel * depth + full) * kRows + r] =
              Source::packed_element(line + r, a.column_stride, 1);
      }
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      transpose_six<Source>(from + panels.first(panel) * a.row_stride, a.row_stride, k_block,
                            to + panel * depth * kRows);
    }
  }
  for (std::int64_t panel = whole; panel < panels.count(); ++panel) {
    const auto* line = from + panels.first(panel) * a.row_stride;
    float* part = to + panel * depth * kRows;
    const std::int64_t height = panels.height(panel);
    for (std::int64_t k = 0; k < k_block; k += kPerElement, part += kRows) {
      for (std::int64_t r = 0; r < kRows; ++r) {
        part[r] = r < height ? Source::packed_element(line + r * a.row_stride + k * a.column_stride,
                                                      a.column_stride, k_block - k)
                             : 0.0F;
      }
    }
  }
}

/// How packed columns are written: cached, to a workspace that is read next, or with non-temporal
/// stores, to memory that is read much later.
enum class Write { kCached, kStreamed };

template <Write kWrite>
[[gnu::always_inline]] inline void put(float* to, Vector low, Vector high) {
#ifdef __AVX__
  if constexpr (kWrite == Write::kStreamed) {
    _mm256_stream_ps(to, reinterpret_cast<__m256>(low));
    _mm256_stream_ps(to + kLanes, reinterpret_cast<__m256>(high));
    return;
  }
#endif
  store8(to, low);
  store8(to + kLanes, high);
}

/// Non-temporal stores need vector-aligned addresses, and a fence before other threads read.
inline bool can_stream(const float* to) { return reinterpret_cast<std::uintptr_t>(to) % 32 == 0; }
inline void end_stream() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

/// Packs one panel of 16 columns that are contiguous along k.
template <class Source, Write kWrite>
void transpose_sixteen(const typename Source::Element* lines, std::int64_t stride,
                       std::int64_t k_block, float* to) {
  constexpr std::int64_t kPerElement = Source::kPerElement;
  constexpr std::int64_t kPrefetchElements = 32;  // too many streams for the hardware prefetcher
  std::int64_t k = 0;
  for (; k + kLanes * kPerElement <= k_block; k += kLanes * kPerElement) {
    Vector low[8], high[8];
    for (int j = 0; j < kColumns; ++j)
      __builtin_prefetch(lines + j * stride + k + kPrefetchElements * kPerElement);
    for (int j = 0; j < 8; ++j) low[j] = Source::eight(lines + j * stride + k);
    transpose(low);
    for (int j = 0; j < 8; ++j) high[j] = Source::eight(lines + (8 + j) * stride + k);
    transpose(high);
    for (int i = 0; i < 8; ++i) put<kWrite>(to + (k / kPerElement + i) * kColumns, low[i], high[i]);
  }
  for (; k < k_block; k += kPerElement) {
    for (std::int64_t j = 0; j < kColumns; ++j)
      to[k / kPerElement * kColumns + j] =
          Source::packed_element(lines + j * stride + k, 1, k_block - k);
  }
}

/// Packs columns [first, first + columns), at most kColumnPanels panels, and k in [begin, begin +
/// k_block) of b as panels (depth, 16).
template <class Source, Write kWrite>
void pack_columns(const MatrixOf<typename Source::Element>& b, std::int64_t first,
                  std::int64_t columns, std::int64_t begin, std::int64_t k_block, float* to) {
  constexpr std::int64_t kPerElement = Source::kPerElement;
  const std::int64_t depth = packed_depth<Source>(k_block);
  const auto* from = b.data + begin * b.row_stride + first * b.column_stride;
  const std::int64_t whole = columns / kColumns;
  if (b.column_stride == 1) {
    constexpr std::int64_t kPrefetchRows = 12;  // the hardware prefetcher stops at the end of a row
    const std::int64_t full = k_block / kPerElement;
    for (std::int64_t k = 0; k < full; ++k) {
      for (std::int64_t panel = 0; panel < whole; ++panel) {
        const auto* line = from + k * kPerElement * b.row_stride + panel * kColumns;
        for (std::int64_t i = 0; i < kPerElement; ++i)
          __builtin_prefetch(line + (kPrefetchRows + i) * b.row_stride);
        put<kWrite>(to + (panel * depth + k) * kColumns, Source::eight_across(line, b.row_stride),
                    Source::eight_across(line + kLanes, b.row_stride));
      }
    }
    for (std::int64_t panel = 0; panel < whole && full < depth; ++panel) {
      const auto* line = from + full * kPerElement * b.row_stride + panel * kColumns;
      for (std::int64_t j = 0; j < kColumns; ++j)
        to[(panel * depth + full) * kColumns + j] =
            Source::packed_element(line + j, b.row_stride, 1);
    }
  } else {
    for (std::int64_t panel = 0; panel < whole; ++panel) {
      transpose_sixteen<Source, kWrite>(from + panel * kColumns * b.column_stride, b.column_stride,
                                        k_block, to + panel * depth * kColumns);
    }
  }
  const std::int64_t rest = columns - whole * kColumns;
  if (rest == 0) return;
  from += whole * kColumns * b.column_stride;
  to += whole * depth * kColumns;
  for (std::int64_t k = 0; k < k_block; k += kPerElement, to += kColumns) {
    for (std::int64_t j = 0; j < kColumns; ++j) {
      to[j] = j < rest ? Source::packed_element(from + k * b.row_stride + j * b.column_stride,
                                                b.row_stride, k_block - k)
                       : 0.0F;
    }
  }
}

/// The lines of b as gemm_pack() leaves it: elements of k, in panels of 16 columns of a k-block.
class PackedLines final : public LineMap {
 public:
  PackedLines(std::int64_t n, std::int64_t k, std::int64_t k_block)
      : width_((n + kColumns - 1) / kColumns * kColumns), k_(k), k_block_(k_block) {}
  void locate(std::int64_t first, std::int64_t count, std::int64_t block,
              std::int64_t* offsets) const override {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = (first + i) / k_block_ * k_block_;
      offsets[i] = begin * width_ + block * kColumns * std::min(k_block_, k_ - begin) +
                   (first + i - begin) * kColumns;
    }
  }

 private:
  std::int64_t width_, k_, k_block_;
};

}  // namespace pipetrain::gemm_panels
