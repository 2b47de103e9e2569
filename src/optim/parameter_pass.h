// Shared by the update kernels: passes over the elements of a parameter, and norms. The split into
// chunks depends on the number of elements only, so no bit depends on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace pipetrain {

// Chunk sizes are multiples of any vector length, so that an element is computed by the same
// instructions for any number of threads.
inline constexpr std::size_t kChunk = 1 << 14;
inline constexpr std::size_t kParallelElements = 1 << 18;

/// Calls body(first, last) for chunks of [0, count), in parallel for large counts.
template <class Body>
void for_chunks(std::size_t count, const Body& body) {
  const auto chunks = static_cast<std::ptrdiff_t>((count + kChunk - 1) / kChunk);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::ptrdiff_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t first = static_cast<std::size_t>(chunk) * kChunk;
    body(first, std::min(count, first + kChunk));
  }
}

/// Sum over [first, last) of value(i)^2, in double.
template <class Value>
double sum_of_squares_of_chunk(std::size_t first, std::size_t last, const Value& value) {
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
/// `value` is called once for each i and may write element i.
template <class Value>
double sum_of_squares_of(std::size_t count, const Value& value) {
  // The number of parts is bounded, so that the partial sums fit on the stack.
  constexpr std::size_t kParts = 256;
  const std::size_t part = std::max(kChunk, (count + kParts - 1) / kParts);
  const auto parts = static_cast<std::ptrdiff_t>((count + part - 1) / part);
  std::array<double, kParts> sums{};
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (std::ptrdiff_t index = 0; index < parts; ++index) {
    const auto at = static_cast<std::size_t>(index);
    sums[at] = sum_of_squares_of_chunk(at * part, std::min(count, (at + 1) * part), value);
  }
  double sum = 0;
  for (std::ptrdiff_t index = 0; index < parts; ++index)
    sum += sums[static_cast<std::size_t>(index)];
  return sum;
}

}  // namespace pipetrain
