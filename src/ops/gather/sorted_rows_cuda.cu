// Sorts positions by the rows that they name: tiles in shared memory, then merges.
#include "ops/cuda/grid_cuda.h"
#include "ops/gather/gather_row_cuda.h"
#include "ops/gather/sorted_rows_cuda.h"

namespace pipetrain::gather {
namespace {

constexpr int kTile = 1024;        // keys that a block sorts in shared memory
constexpr std::int64_t kWays = 8;  // sorted runs that one pass merges

/// Bits needed for the integers 0 to count - 1.
int bits_for(std::int64_t count) {
  int bits = 0;
  while (bits < 63 && (std::int64_t{1} << bits) < count) ++bits;
  return bits;
}

/// Sorts tiles of `tile` keys, a power of two, by a bitonic network: tile / 2 comparisons in each
/// of log2(tile) (log2(tile) + 1) / 2 steps.
__global__ void sort_tiles(GatherShape shape, const void* indices, int bits, int tile,
                           RowKey* keys) {
  __shared__ RowKey sorted[kTile];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tile;
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += kBlock) {
    sorted[i] = first + i < shape.count
                    ? static_cast<RowKey>(row_at(shape.row, indices, first + i)) << bits |
                          static_cast<RowKey>(first + i)
                    : ~RowKey{0};
  }
  for (int size = 2; size <= tile; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < tile / 2; pair += kBlock) {
        const int within = pair & (distance - 1);
        const int low = 2 * (pair - within) + within, high = low + distance;
        const RowKey a = sorted[low], b = sorted[high];
        if ((a > b) != ((low & size) == 0)) continue;
        sorted[low] = b;
        sorted[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tile && first + i < shape.count; i += kBlock)
    keys[first + i] = sorted[i];
}

/// How many of `count` sorted keys are smaller than `key`.
__device__ __forceinline__ std::int64_t smaller(const RowKey* sorted, std::int64_t count,
                                                RowKey key) {
  std::int64_t low = 0, high = count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (sorted[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Merges each kWays sorted runs of `run` keys: the position of a key is found by a binary search
/// in each of the other runs.
__global__ void merge_runs(const RowKey* from, RowKey* to, std::int64_t count, std::int64_t run) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const RowKey key = from[i];
    const std::int64_t mine = i / run, group = mine / kWays * kWays;
    std::int64_t place = i - (mine - group) * run;
    for (std::int64_t other = group; other < group + kWays && other * run < count; ++other) {
      if (other == mine) continue;
      const std::int64_t begin = other * run;
      place += smaller(from + begin, run < count - begin ? run : count - begin, key);
    }
    to[place] = key;
  }
}

}  // namespace

bool sorts_indices(const GatherShape& shape) {
  return bits_for(shape.extent) + bits_for(shape.count) < 64;
}

// One or two lists of keys.
std::int64_t sort_workspace(const GatherShape& shape) {
  const std::int64_t lists = shape.count > kTile ? 2 : 1;
  return lists * shape.count * static_cast<std::int64_t>(sizeof(RowKey));
}

SortedRows sort_rows(const GatherShape& shape, const void* indices, void* workspace,
                     const CudaQueue& queue) {
  const int bits = bits_for(shape.count);
  const int tile = shape.count < kTile ? 1 << bits : kTile;
  auto* keys = static_cast<RowKey*>(workspace);
  RowKey* other = keys + shape.count;
  PT_LAUNCH(sort_tiles, static_cast<unsigned>((shape.count + tile - 1) / tile), kBlock,
            queue.stream, shape, indices, bits, tile, keys);
  for (std::int64_t run = tile; run < shape.count; run *= kWays) {
    PT_LAUNCH(merge_runs, blocks_for(shape.count, queue), kBlock, queue.stream,
              static_cast<const RowKey*>(keys), other, shape.count, run);
    RowKey* const merged = other;
    other = keys;
    keys = merged;
  }
  return {shape, keys, bits};
}

}  // namespace pipetrain::gather
