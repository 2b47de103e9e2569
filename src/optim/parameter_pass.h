// What the update kernels share: passes over the elements of a parameter, and norms. The work is
// cut by the number of elements alone, so that no bit depends on how many threads share it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace pipetrain {

// Pieces are whole multiples of any vector length, so that an element is computed by the same
// instructions however many threads share the work.
inline constexpr std::size_t kPiece = 1 << 14;
inline constexpr std::size_t kParallelElements = 1 << 18;

/// Calls body(first, last) for pieces of [0, count), in parallel when that pays.
template <class Body>
void for_pieces(std::size_t count, const Body& body) {
  const auto pieces = static_cast<std::ptrdiff_t>((count + kPiece - 1) / kPiece);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::ptrdiff_t piece = 0; piece < pieces; ++piece) {
    const std::size_t first = static_cast<std::size_t>(piece) * kPiece;
    body(first, std::min(count, first + kPiece));
  }
}

/// Sum over [first, last) of value(i)^2, in double.
template <class Value>
double sum_of_squares_of_piece(std::size_t first, std::size_t last, const Value& value) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  std::size_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double x = value(i + lane);
      lanes[lane] += x * x;
    }
  }
  for (std::size_t lane = 0; i < last; ++i, ++lane) {
    const double x = value(i);
    lanes[lane] += x * x;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Sum over [0, count) of value(i)^2 in double, added up in an order that depends on `count` only.
/// `value` is called once for each i and may write what belongs to element i.
template <class Value>
double sum_of_squares_of(std::size_t count, const Value& value) {
  // The number of parts is bounded, so that the partial sums need no memory of their own.
  constexpr std::size_t kParts = 256;
  const std::size_t part = std::max(kPiece, (count + kParts - 1) / kParts);
  const auto parts = static_cast<std::ptrdiff_t>((count + part - 1) / part);
  std::array<double, kParts> sums{};
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::ptrdiff_t index = 0; index < parts; ++index) {
    const auto at = static_cast<std::size_t>(index);
    sums[at] = sum_of_squares_of_piece(at * part, std::min(count, (at + 1) * part), value);
  }
  double sum = 0;
  for (std::ptrdiff_t index = 0; index < parts; ++index)
    sum += sums[static_cast<std::size_t>(index)];
  return sum;
}

}  // namespace pipetrain
