// How kernels of batch normalization with channels last share (rows, channels), and how their
// threads load and store; for .cu files.
#pragma once

#include "ops/cuda/columns_cuda.h"
#include "ops/cuda/grid_size_cuda.h"
#include "ops/norm/batch_norm_launch_cuda.h"

namespace pipetrain::batch_norm {

/// A block takes `chunk` rows of a tile of channels. 2^shift threads lie side by side over the
/// channels of a tile, the others over its rows. Everything follows from the shape, so that sums
/// have one order whatever the device, the types and the alignment.
struct Tiles {
  std::int64_t rows, channels;
  int chunk;                  // at most 2^15, so that counts of rows are exact in float32
  unsigned chunks, adjacent;  // chunks, and tiles of a chunk
  int shift;

  unsigned blocks() const { return chunks * adjacent; }
};

/// Rows of a thread whose loads are in flight at once.
constexpr int kChunkRows = 4;
/// Channels of a thread: kWide of 8·n, else one.
inline int channels_of_thread(const Channels& s) { return s.channels % kWide == 0 ? kWide : 1; }

inline Tiles tiles_of(const Channels& s) {
  const auto parts = [](std::int64_t count, std::int64_t size) {
    return (count + size - 1) / size;
  };
  const int width = channels_of_thread(s);
  const std::int64_t groups = s.channels / width, rows = s.images * s.positions;
  int shift = 0;
  while (shift < 5 && (1 << shift) < groups) ++shift;
  // Narrower tiles where fewer threads are idle then; 128 adjacent bytes at least.
  const auto threads = [&](int at) { return parts(groups, 1 << at) << at; };
  for (int narrower = shift - 1; width == kWide && narrower >= 3; --narrower)
    if (threads(narrower) < threads(shift)) shift = narrower;
  const std::int64_t adjacent = parts(groups, 1 << shift);
  // Rows per thread: 4 to 128. Sums of at most 128 numbers keep the accuracy, and few blocks make
  // few partial sums: 528 are 4 for each multiprocessor of an H200.
  constexpr std::int64_t kFewest = kChunkRows, kMost = 128, kBlocks = 528;
  const std::int64_t side = kBlock >> shift, of_side = parts(rows, side);
  std::int64_t chunks = kBlocks / adjacent < 1 ? 1 : kBlocks / adjacent;
  if (chunks > parts(of_side, kFewest)) chunks = parts(of_side, kFewest);
  if (chunks < parts(of_side, kMost)) chunks = parts(of_side, kMost);
  const std::int64_t each = parts(parts(of_side, chunks), kChunkRows) * kChunkRows;
  const std::int64_t chunk = each * side;
  return {rows,
          s.channels,
          static_cast<int>(chunk),
          static_cast<unsigned>(parts(rows, chunk)),
          static_cast<unsigned>(adjacent),
          shift};
}

/// The share of a thread in a block: the first of its kWidth channels, and its rows, of which the
/// elements are `step` apart. `count` is 0 for threads beyond the last channel.
template <int kWidth>
struct Share {
  unsigned chunk;
  int rows;  // of the block
  int lane;  // of the thread among those of a channel
  int count;
  std::int64_t tile, channel;  // the first ones
  std::int64_t first, step;

  __device__ Share(const Tiles& t, unsigned block) : chunk(block / t.adjacent) {
    const std::int64_t begin = static_cast<std::int64_t>(chunk) * t.chunk;
    rows = t.rows - begin < t.chunk ? static_cast<int>(t.rows - begin) : t.chunk;
    const int side = kBlock >> t.shift;
    lane = static_cast<int>(threadIdx.x) >> t.shift;
    tile = static_cast<std::int64_t>(block % t.adjacent) * (kWidth << t.shift);
    channel = tile + static_cast<int>(threadIdx.x & ((1u << t.shift) - 1)) * kWidth;
    count = channel < t.channels ? rows_of(lane, t) : 0;
    first = (begin + lane) * t.channels + channel;
    step = side * t.channels;
  }
  /// Rows of a thread.
  __device__ int rows_of(int of_lane, const Tiles& t) const {
    const int side = kBlock >> t.shift;
    return (rows - of_lane + side - 1) >> (8 - t.shift);
  }
};
static_assert(kBlock == 1 << 8);

/// The type of feature maps as a template parameter; kAny: each has its own, at run time, or is not
/// aligned.
constexpr int kAny = -1;

/// Calls take(number of rows) until `count` rows are taken: several of them together, so that their
/// loads are in flight at once, the rest one by one.
template <int kStored, int kWidth, class Take>
__device__ __forceinline__ void in_batches(int count, Take take) {
  constexpr int kRows = kStored == kAny && kWidth > 1 ? 1 : kChunkRows;
#pragma unroll 1
  for (; count >= kRows; count -= kRows) take(std::integral_constant<int, kRows>());
#pragma unroll 1
  for (; kRows > 1 && count > 0; --count) take(std::integral_constant<int, 1>());
}

/// kWidth adjacent elements, as they are stored until they are used.
template <int kStored, int kWidth>
struct Packed {
  Columns<kWidth> columns;

  __device__ __forceinline__ void load(const ConstFloatView& from, std::int64_t element,
                                       bool aligned) {
    if constexpr (kStored != kAny) {
      ConstFloatView known = from;
      known.stored = static_cast<Stored>(kStored);
      columns.load(known, element);
    } else if (kWidth == 1 || aligned) {
      columns.load(from, element);
    } else {
      for (int i = 0; i < kWidth; ++i) columns.values[i] = from[element + i];
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return columns.values[i]; }
};

/// Of bfloat16 and float16.
template <int kStored>
struct PackedHalves {
  struct alignas(16) Words {
    std::uint32_t values[kWide / 2];
  } words;

  __device__ __forceinline__ void load(const ConstFloatView& from, std::int64_t element, bool) {
    words = *reinterpret_cast<const Words*>(static_cast<const std::uint16_t*>(from.data) + element);
  }
  __device__ __forceinline__ float operator[](int i) const {
    const std::uint32_t word = words.values[i / 2];
    return widened(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16),
                   static_cast<Stored>(kStored));
  }
};
template <>
struct Packed<static_cast<int>(Stored::kBFloat16), kWide>
    : PackedHalves<static_cast<int>(Stored::kBFloat16)> {};
template <>
struct Packed<static_cast<int>(Stored::kFloat16), kWide>
    : PackedHalves<static_cast<int>(Stored::kFloat16)> {};

/// kWidth floats; a multiple of 4 of them is aligned.
template <int kWidth>
__device__ __forceinline__ Columns<kWidth> floats_at(const float* from) {
  struct alignas(kWidth == 1 ? 4 : 16) Floats {
    float values[kWidth == 1 ? 1 : 4];
  };
  constexpr int kEach = static_cast<int>(sizeof(Floats) / sizeof(float));
  Columns<kWidth> out;
  for (int part = 0; part < kWidth / kEach; ++part) {
    const Floats floats = reinterpret_cast<const Floats*>(from)[part];
    for (int i = 0; i < kEach; ++i) out.values[part * kEach + i] = floats.values[i];
  }
  return out;
}

template <int kStored, int kWidth>
__device__ __forceinline__ void store(const Columns<kWidth>& columns, const FloatView& to,
                                      std::int64_t element, bool aligned) {
  if constexpr (kStored != kAny) {
    FloatView known = to;
    known.stored = static_cast<Stored>(kStored);
    columns.store(known, element);
  } else if (kWidth == 1 || aligned) {
    columns.store(to, element);
  } else {
    for (int i = 0; i < kWidth; ++i) to[element + i] = columns.values[i];
  }
}

/// A choice of template parameters.
template <int kOfStored, int kOfWidth>
struct Form {
  static constexpr int kStored = kOfStored, kWidth = kOfWidth;
};
/// Calls start(Form) for kernels over these feature maps.
template <class Start>
void with_form(const Channels& s, std::initializer_list<ConstFloatView> maps, bool aligned,
               Start start) {
  const Stored stored = maps.begin()->stored;
  bool alike = aligned;
  for (const ConstFloatView& map : maps) alike = alike && (!map || map.stored == stored);
  if (channels_of_thread(s) == 1) return start(Form<kAny, 1>());
  if (!alike) return start(Form<kAny, kWide>());
  if (stored == Stored::kFloat) return start(Form<static_cast<int>(Stored::kFloat), kWide>());
  if (stored == Stored::kBFloat16) return start(Form<static_cast<int>(Stored::kBFloat16), kWide>());
  start(Form<static_cast<int>(Stored::kFloat16), kWide>());
}

}  // namespace pipetrain::batch_norm
