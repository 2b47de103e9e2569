// Depthwise convolutions of channels-last feature maps: a thread has kWide channels of kTile
// results of a row, and reads each input of theirs once for each row of the window. Weights are in
// shared memory, those of a row of the window in registers. (cuDNN 9.14 takes 10 to 60 times as
// long as the memory needs, seen on an H100.)
#include "ops/conv/depthwise_launch_cuda.h"
#include "ops/cuda/grid_cuda.h"
#include "ops/cuda/stored_access_cuda.h"

namespace pipetrain::depthwise {
namespace {

constexpr int kTile = 4;

/// Groups of kWide channels that a block has at most.
template <int kKernel>
constexpr int kMostGroups = kKernel == 3   ? 64
                            : kKernel == 5 ? 32
                                           : 24;

/// `groups`: of each block; the last of a row of the grid may have fewer.
template <int kKernel, int kStride, class Types>
__global__ void __launch_bounds__(kBlock, 2)
    convolve(Convolution c, int groups, ConstFloatView any_x, ConstFloatView w, ConstFloatView bias,
             FloatView any_y) {
  constexpr int kTaps = kKernel * kKernel;
  constexpr int kInputs = (kTile - 1) * kStride + kKernel;
  __shared__ float weights[kTaps * kMostGroups<kKernel> * kWide];
  const ConstFloatView x = Types::template from<0>(any_x);
  const FloatView y = Types::template to<1>(any_y);
  const std::int64_t all = c.channels / kWide, first = std::int64_t{blockIdx.y} * groups;
  const int here = static_cast<int>(all - first < groups ? all - first : groups);
  const int channels = here * kWide;
  for (int i = static_cast<int>(threadIdx.x); i < channels * kTaps; i += kBlock)
    weights[i] = w[(first * kWide + i % channels) * kTaps + i / channels];
  __syncthreads();

  const std::int64_t tiles = (c.out_width + kTile - 1) / kTile;
  const std::int64_t count = c.images * c.out_height * tiles * here;
  for (std::int64_t item = first_of_thread(); item < count; item += step_of_thread()) {
    const int group = static_cast<int>(item % here);
    const std::int64_t tile = item / here, row = tile / tiles;
    const std::int64_t column = tile % tiles * kTile, image = row / c.out_height;
    const std::int64_t top = row % c.out_height * kStride - c.pad_top;
    const std::int64_t left = column * kStride - c.pad_left;
    float sums[kTile][kWide];
    for (int l = 0; l < kWide; ++l) {
      const float start = bias ? bias[(first + group) * kWide + l] : 0.0F;
      for (int t = 0; t < kTile; ++t) sums[t][l] = start;
    }
#pragma unroll 1
    for (int a = 0; a < kKernel; ++a) {
      if (top + a < 0 || top + a >= c.height) continue;
      float tap[kKernel][kWide];
      for (int b = 0; b < kKernel; ++b) {
        for (int l = 0; l < kWide; ++l)
          tap[b][l] = weights[(a * kKernel + b) * channels + group * kWide + l];
      }
      const std::int64_t from =
          ((image * c.height + top + a) * c.width + left) * all + first + group;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        if (left + i < 0 || left + i >= c.width) continue;
        const WideFloats input = load_wide(x, from + i * all);
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
          const int b = i - t * kStride;
          if (b < 0 || b >= kKernel) continue;
          for (int l = 0; l < kWide; ++l) sums[t][l] += tap[b][l] * input.values[l];
        }
      }
    }
    const std::int64_t to = (row * c.out_width + column) * all + first + group;
    for (int t = 0; t < kTile; ++t) {
      if (column + t >= c.out_width) break;
      WideFloats out;
      for (int l = 0; l < kWide; ++l) out.values[l] = sums[t][l];
      store_wide(y, to + t * all, out);
    }
  }
}

template <int kKernel, int kStride>
void launch_one(const Convolution& c, const ConstFloatView& x, const ConstFloatView& w,
                const ConstFloatView& bias, const FloatView& y, const CudaQueue& queue) {
  const int all = static_cast<int>(c.channels / kWide);
  const int slabs = (all + kMostGroups<kKernel> - 1) / kMostGroups<kKernel>;
  const int groups = (all + slabs - 1) / slabs;
  const std::int64_t count = c.images * c.out_height * ((c.out_width + kTile - 1) / kTile) * groups;
  const dim3 grid(blocks_for(count, queue), static_cast<unsigned>(slabs));
  if (x.stored == Stored::kBFloat16 && y.stored == Stored::kBFloat16) {
    PT_LAUNCH((convolve<kKernel, kStride, KnownTypes<Stored::kBFloat16, Stored::kBFloat16>>), grid,
              kBlock, queue.stream, c, groups, x, w, bias, y);
  } else {
    PT_LAUNCH((convolve<kKernel, kStride, AnyTypes>), grid, kBlock, queue.stream, c, groups, x, w,
              bias, y);
  }
}

template <int kKernel>
void launch_stride(const Convolution& c, const ConstFloatView& x, const ConstFloatView& w,
                   const ConstFloatView& bias, const FloatView& y, const CudaQueue& queue) {
  c.stride == 1 ? launch_one<kKernel, 1>(c, x, w, bias, y, queue)
                : launch_one<kKernel, 2>(c, x, w, bias, y, queue);
}

}  // namespace

bool takes(const Convolution& c) {
  const bool known = c.kernel == 3 || c.kernel == 5 || c.kernel == 7;
  return known && (c.stride == 1 || c.stride == 2) && c.channels > 0 && c.channels % kWide == 0 &&
         c.channels < std::int64_t{1} << 20;
}

void launch(const Convolution& c, const ConstFloatView& x, const ConstFloatView& w,
            const ConstFloatView& bias, const FloatView& y, const CudaQueue& queue) {
  c.kernel == 3   ? launch_stride<3>(c, x, w, bias, y, queue)
  : c.kernel == 5 ? launch_stride<5>(c, x, w, bias, y, queue)
                  : launch_stride<7>(c, x, w, bias, y, queue);
}

}  // namespace pipetrain::depthwise
