// Launches of gather kernels (C++17: nvcc compiles this file).
#pragma once

#include <cstdint>

#include "device/queue_cuda.h"
#include "ops/cuda/stored_cuda.h"

namespace pipetrain::gather {

/// The row that a position names, by its coordinates and by indices (positions, axes):
///   row = Σ coordinate[d] · steps[d] + Σ indices[position, a] · strides[a]
/// Negative indices count from the end of their axis.
struct RowRule {
  static constexpr int kMostAxes = 6;
  bool wide = false;                      // indices are int64, else int32
  int axes = 1;                           // that are indexed
  std::int64_t extents[kMostAxes] = {};   // of these axes
  std::int64_t strides[kMostAxes] = {1};  // in rows
  int dimensions = 0;                     // of the positions, row-major
  std::int64_t sizes[kMostAxes] = {};     // positions along each
  std::int64_t steps[kMostAxes] = {};     // in rows
};

/// Slices of data (outer, extent, slice) at positions (count): y is (outer, count, slice). A slice
/// of GatherElements is one element, and `extent` counts all of them.
struct GatherShape {
  std::int64_t outer, extent, slice, count;
  RowRule row;
};
/// Indices out of range are clamped.
void launch_gather(const GatherShape& shape, const void* data, const void* indices, void* y,
                   int size, const CudaQueue& queue);
void launch_gather(const GatherShape& shape, const ConstFloatView& data, const void* indices,
                   const FloatView& y, const CudaQueue& queue);
/// Adds dy (outer, count, slice) into dx (outer, extent, slice), which is overwritten: rows with
/// the same index are added in order. `workspace`: gather_gradient_workspace() bytes.
void launch_gather_gradient(const GatherShape& shape, const ConstFloatView& dy, const void* indices,
                            const FloatView& dx, void* workspace, const CudaQueue& queue);
std::int64_t gather_gradient_workspace(const GatherShape& shape);
enum class Scatter { kReplace, kAdd, kMultiply, kMax, kMin };
/// Combines updates (count, slice) with the rows of y (extent, slice) that the positions name, in
/// the order of the positions; outer is 1. Indices out of range are clamped. `workspace`:
/// sort_workspace() bytes.
void launch_scatter(Scatter how, const GatherShape& shape, const ConstFloatView& updates,
                    const void* indices, const FloatView& y, void* workspace,
                    const CudaQueue& queue);
/// Replaces elements of `size` bytes.
void launch_scatter(const GatherShape& shape, const void* updates, const void* indices, void* y,
                    int size, void* workspace, const CudaQueue& queue);
std::int64_t sort_workspace(const GatherShape& shape);
/// Whether an index and its position fit into one sort key.
bool sorts_indices(const GatherShape& shape);

}  // namespace pipetrain::gather
