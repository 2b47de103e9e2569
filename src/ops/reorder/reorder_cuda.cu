// Transposes matrices: a block moves tiles of 32 x 32 through shared memory, so that loads and
// stores are coalesced.
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/reorder/reorder_launch_cuda.h"

namespace pipetrain::reorder {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kBlock / kTile;  // rows that a block moves at once

/// From: elements of type T, or ConstFloatView with floats for T; To likewise, or FloatView.
template <class T, class From, class To>
__global__ void transpose(T, Matrices s, From from, To to, std::int64_t tiles) {
  __shared__ T tile[kTile][kTile + 1];  // padded, so that a column spans different banks
  const std::int64_t across = (s.columns + kTile - 1) / kTile;
  const std::int64_t down = (s.rows + kTile - 1) / kTile;
  const int lane = threadIdx.x % kTile, warp = threadIdx.x / kTile;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t first = t / across / down * s.rows * s.columns;
    const std::int64_t row = t / across % down * kTile, column = t % across * kTile;
    for (int r = warp; r < kTile; r += kTileRows) {
      if (row + r < s.rows && column + lane < s.columns)
        tile[r][lane] = from[first + (row + r) * s.columns + column + lane];
    }
    __syncthreads();
    for (int c = warp; c < kTile; c += kTileRows) {
      if (column + c < s.columns && row + lane < s.rows)
        to[first + (column + c) * s.rows + row + lane] = tile[lane][c];
    }
    __syncthreads();  // before the next tile is stored
  }
}

/// Matrices of a few rows or columns would leave tiles empty.
template <class T, class From, class To>
__global__ void transpose_narrow(T, Matrices s, From from, To to) {
  const std::int64_t count = s.matrices * s.rows * s.columns;
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t row = i % s.rows, column = i / s.rows % s.columns;
    to[i] = from[i - row - column * s.rows + row * s.columns + column];
  }
}

template <class T, class From, class To>
void start(T zero, const Matrices& s, From from, To to, const CudaQueue& queue) {
  const std::int64_t count = s.matrices * s.rows * s.columns;
  if (count == 0) return;
  if (s.rows < kTileRows || s.columns < kTileRows) {
    PT_LAUNCH(transpose_narrow, blocks_for(count, queue), kBlock, queue.stream, zero, s, from, to);
    return;
  }
  const std::int64_t tiles =
      s.matrices * ((s.rows + kTile - 1) / kTile) * ((s.columns + kTile - 1) / kTile);
  PT_LAUNCH(transpose, blocks_for(tiles * kBlock, queue), kBlock, queue.stream, zero, s, from, to,
            tiles);
}

template <class T>
void start_elements(const Matrices& s, const void* from, void* to, const CudaQueue& queue) {
  start(T(), s, static_cast<const T*>(from), static_cast<T*>(to), queue);
}

}  // namespace

void launch_transpose(const Matrices& shape, const void* from, void* to, int size,
                      const CudaQueue& queue) {
  if (size == 1) start_elements<std::uint8_t>(shape, from, to, queue);
  if (size == 2) start_elements<std::uint16_t>(shape, from, to, queue);
  if (size == 4) start_elements<std::uint32_t>(shape, from, to, queue);
  if (size == 8) start_elements<std::uint64_t>(shape, from, to, queue);
}

void launch_transpose(const Matrices& shape, const ConstFloatView& from, const FloatView& to,
                      const CudaQueue& queue) {
  start(0.0f, shape, from, to, queue);
}

}  // namespace pipetrain::reorder
