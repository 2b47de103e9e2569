// Data movement kernels. A copy moves units, the widest that the innermost runs of elements, all
// strides and both addresses allow: up to 16 bytes, four of them per thread before the first store.
// Coordinates cost one 32-bit multiplication per axis and unit. The copies of a node share a
// launch.
//
// Bytes for GPT-2 124M with 8 x 1024 tokens (estimates, H200 at 4.3 TB/s): a tensor (8192, 768) of
// bfloat16 is 12.6 MB; the split of q, k, v reads and writes three of them, 75 MB in 18 us, and so
// does the concatenation of their gradients. Measured on an H200 with one element per thread and
// 64-bit divisions, before units: 103 us and 104 us. Transposes that change the innermost axis move
// single elements.
#include <cstring>

#include "ops/cuda/divider_cuda.h"
#include "ops/cuda/element_size_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"
#include "ops/movement/movement_launch_cuda.h"

namespace pipetrain::movement {
namespace {

/// Units that a thread loads before it stores them.
constexpr int kMostHeld = 4;
constexpr int kMostParts = 8;

/// Strides in units; from and to address the first unit.
struct CopyAxis {
  Divider size;
  std::int64_t source, target;
};
struct CopyPart {
  int dimensions;
  CopyAxis axes[CopyWalk::kMostDimensions];
  std::int64_t count;
  ConstFloatView from;
  FloatView to;
};
struct CopyParts {
  CopyPart part[kMostParts];
};

/// Units of kWords words, copied unchanged.
template <class Word, int kWords>
struct Bytes {
  struct alignas(sizeof(Word) * kWords) Held {
    Word words[kWords];
  };
  static __device__ __forceinline__ Held load(const CopyPart& part, std::int64_t unit) {
    return static_cast<const Held*>(part.from.data)[unit];
  }
  static __device__ __forceinline__ void store(const CopyPart& part, std::int64_t unit,
                                               const Held& held) {
    static_cast<Held*>(part.to.data)[unit] = held;
  }
};
/// Converted floats.
struct Floats {
  using Held = float;
  static __device__ __forceinline__ Held load(const CopyPart& part, std::int64_t unit) {
    return part.from[unit];
  }
  static __device__ __forceinline__ void store(const CopyPart& part, std::int64_t unit, Held held) {
    part.to[unit] = held;
  }
};
/// Groups of kWide converted floats.
struct FloatGroups {
  using Held = WideFloats;
  static __device__ __forceinline__ Held load(const CopyPart& part, std::int64_t unit) {
    return load_wide(part.from, unit);
  }
  static __device__ __forceinline__ void store(const CopyPart& part, std::int64_t unit,
                                               const Held& held) {
    store_wide(part.to, unit, held);
  }
};

/// Index: std::uint32_t where every part has fewer than 2^31 units, or std::int64_t.
template <class Units, class Index>
__global__ void __launch_bounds__(kBlock) copy_units(PT_LARGE(CopyParts) parts) {
  const CopyPart& part = parts.part[blockIdx.y];
  constexpr int kHeld = sizeof(Index) == 4 ? kMostHeld : 1;
  constexpr int kChunk = kBlock * kHeld;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kChunk; first < part.count;
       first += std::int64_t{gridDim.x} * kChunk) {
    Index left[kHeld];
    std::int64_t source[kHeld], target[kHeld];
    bool inside[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const std::int64_t unit = first + k * kBlock + threadIdx.x;
      left[k] = static_cast<Index>(unit);
      inside[k] = unit < part.count;
      source[k] = target[k] = 0;
    }
    for (int d = part.dimensions - 1; d > 0; --d) {
      const CopyAxis& axis = part.axes[d];
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const Index outer = axis.size.quotient(left[k]);
        const auto index = static_cast<std::int64_t>(axis.size.rest(left[k], outer));
        source[k] += index * axis.source;
        target[k] += index * axis.target;
        left[k] = outer;
      }
    }
    typename Units::Held held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (inside[k])
        held[k] = Units::load(part, source[k] + std::int64_t{left[k]} * part.axes[0].source);
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (inside[k])
        Units::store(part, target[k] + std::int64_t{left[k]} * part.axes[0].target, held[k]);
    }
  }
}

struct alignas(16) Pattern {
  std::uint64_t words[2];
};

/// Whole patterns, then the elements behind them.
template <class T>
__global__ void fill_elements(T* to, T value, Pattern pattern, std::int64_t patterns,
                              std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < patterns; i += step_of_thread())
    reinterpret_cast<Pattern*>(to)[i] = pattern;
  constexpr std::int64_t kElements = 16 / sizeof(T);
  for (std::int64_t i = patterns * kElements + first_of_thread(); i < count; i += step_of_thread())
    to[i] = value;
}

template <class T, class From, class To>
__global__ void keep_triangle(T nothing, From x, To y, std::int64_t rows, std::int64_t columns,
                              bool upper, std::int64_t k, std::int64_t count) {
  for (std::int64_t i = first_of_thread(); i < count; i += step_of_thread()) {
    const std::int64_t diagonal = i % columns - i / columns % rows;
    y[i] = (upper ? diagonal >= k : diagonal <= k) ? x[i] : nothing;
  }
}

/// Whether units of `factor` elements divide runs and strides, and the addresses are multiples of
/// `from` and `to`.
bool divides(const CopyTask& task, std::int64_t factor, std::int64_t from, std::int64_t to) {
  const CopyWalk& walk = task.walk;
  const int last = walk.dimensions - 1;
  if (factor == 1) return true;
  if (walk.source[last] != 1 || walk.target[last] != 1 || walk.sizes[last] % factor != 0)
    return false;
  for (int d = 0; d < last; ++d) {
    if (walk.source[d] % factor != 0 || walk.target[d] % factor != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(task.from.data) % static_cast<std::uintptr_t>(from) ==
             0 &&
         reinterpret_cast<std::uintptr_t>(task.to.data) % static_cast<std::uintptr_t>(to) == 0;
}

/// Elements of a unit.
std::int64_t unit_of(const CopyTask& task, int size) {
  if (size == 0) return divides(task, kWide, 16, 16) ? kWide : 1;
  for (int bytes = 16; bytes > size; bytes /= 2) {
    if (divides(task, bytes / size, bytes, bytes)) return bytes / size;
  }
  return 1;
}

CopyPart part_of(const CopyTask& task, std::int64_t unit) {
  const CopyWalk& walk = task.walk;
  const int last = walk.dimensions - 1;
  CopyPart part{};
  part.dimensions = walk.dimensions;
  for (int d = 0; d <= last; ++d) {
    const bool inner = d == last;
    part.axes[d] = {Divider(inner ? walk.sizes[d] / unit : walk.sizes[d]),
                    inner ? walk.source[d] : walk.source[d] / unit,
                    inner ? walk.target[d] : walk.target[d] / unit};
  }
  part.count = walk.count / unit;
  part.from = task.from;
  part.to = task.to;
  return part;
}

/// Calls run(units) for units of `unit` elements of `size` bytes.
template <class Run>
void with_units(std::int64_t unit, int size, const Run& run) {
  if (size == 0) return unit == 1 ? run(Floats()) : run(FloatGroups());
  switch (unit * size) {
    case 1:
      return run(Bytes<std::uint8_t, 1>());
    case 2:
      return run(Bytes<std::uint16_t, 1>());
    case 4:
      return run(Bytes<std::uint32_t, 1>());
    case 8:
      return run(Bytes<std::uint64_t, 1>());
    default:
      return run(Bytes<std::uint64_t, 2>());
  }
}

template <class Units, class Index>
void start_copies(const dim3& grid, const CopyParts& parts, const CudaQueue& queue) {
  const auto kernel = copy_units<Units, Index>;
  PT_LAUNCH(kernel, grid, kBlock, queue.stream, parts);
}

/// Blocks of kBlock threads, each with kMostHeld units at once: several rounds of the device, so
/// that none waits long for the last blocks.
unsigned blocks_of_chunks(std::int64_t units, const CudaQueue& queue) {
  const std::int64_t wanted = (units + kBlock * kMostHeld - 1) / (kBlock * kMostHeld);
  const std::int64_t most = std::int64_t{64} * queue.multiprocessors;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

}  // namespace

void launch_copies(const CopyTask* tasks, int count, int size, const CudaQueue& queue) {
  CopyParts parts;
  int held = 0;
  std::int64_t unit = 1, longest = 0;
  const auto start = [&] {
    if (held == 0) return;
    const dim3 grid(blocks_of_chunks(longest, queue), static_cast<unsigned>(held));
    with_units(unit, size, [&](auto units) {
      if (divides_quickly(longest)) {
        start_copies<decltype(units), std::uint32_t>(grid, parts, queue);
      } else {
        start_copies<decltype(units), std::int64_t>(grid, parts, queue);
      }
    });
    held = 0;
    longest = 0;
  };
  for (int i = 0; i < count; ++i) {
    if (tasks[i].walk.count == 0) continue;
    const std::int64_t own = unit_of(tasks[i], size);
    if (own != unit || held == kMostParts) start();
    unit = own;
    parts.part[held] = part_of(tasks[i], unit);
    longest = parts.part[held].count > longest ? parts.part[held].count : longest;
    ++held;
  }
  start();
}

void launch_fill_elements(void* to, std::uint64_t bits, int size, std::int64_t count,
                          const CudaQueue& queue) {
  if (count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    constexpr std::int64_t kElements = 16 / sizeof(T);
    const T value = static_cast<T>(bits);
    Pattern pattern;
    for (std::size_t i = 0; i < kElements; ++i)
      std::memcpy(reinterpret_cast<char*>(pattern.words) + i * sizeof(T), &value, sizeof(T));
    const std::int64_t patterns = moves_wide(to) ? count / kElements : 0;
    PT_LAUNCH(fill_elements<T>, blocks_for(patterns > 0 ? patterns : count, queue), kBlock,
              queue.stream, static_cast<T*>(to), value, pattern, patterns, count);
  });
}

void launch_trilu(const void* x, void* y, int size, std::int64_t rows, std::int64_t columns,
                  bool upper, std::int64_t k, std::int64_t count, const CudaQueue& queue) {
  if (count == 0) return;
  with_size(size, [&](auto zero) {
    using T = decltype(zero);
    PT_LAUNCH(keep_triangle, blocks_for(count, queue), kBlock, queue.stream, zero,
              static_cast<const T*>(x), static_cast<T*>(y), rows, columns, upper, k, count);
  });
}

void launch_trilu(const ConstFloatView& x, const FloatView& y, std::int64_t rows,
                  std::int64_t columns, bool upper, std::int64_t k, std::int64_t count,
                  const CudaQueue& queue) {
  if (count == 0) return;
  PT_LAUNCH(keep_triangle, blocks_for(count, queue), kBlock, queue.stream, 0.0f, x, y, rows,
            columns, upper, k, count);
}

}  // namespace pipetrain::movement
