// What Winograd's passes and weight gradients share: the maps of a pass, how large its points are,
// the panels of a thread, and the choice of loops. Include it from winograd_cpu.cpp and
// winograd_gradient_cpu.cpp only.
#pragma once

#include <omp.h>

#include <cstdint>

#include "ops/conv/winograd_shape.h"
#include "ops/conv/winograd_vectors_cpu.h"

namespace pipetrain::winograd {

/// With AVX-512, feature maps lie in blocks of 16 channels.
inline bool is_wide(std::int64_t lanes) { return lanes == Wide::kLanes && has_avx512(); }

// What the rule of shapes knows of the schemes.
static_assert(Wide::Unstrided::kOut == kOut && Wide::Strided::kOut == kOut &&
              Wide::StridedInputGradient::kOut == 2 * kOut);
static_assert(kSlotsByPoint<Wide::Unstrided::kLine>.size() == 36 &&
              kSlotsByPoint<Wide::Strided::kLine>.size() == 81);

inline FeatureMap input_map(const Pass& pass) {
  return {pass.inputs,         pass.height,    pass.width,          pass.tile_rows(),
          pass.tile_columns(), pass.pad_top,   pass.pad_left,       pass.lanes,
          pass.dilation,       pass.slices_in, pass.slice_stride_in};
}
inline FeatureMap output_map(const Pass& pass) {
  return {pass.outputs,
          pass.out_height,
          pass.out_width,
          pass.tile_rows(),
          pass.tile_columns(),
          0,
          0,
          pass.lanes,
          pass.dilation,
          pass.slices_out,
          pass.slice_stride_out};
}

/// Floats of so many channels of transformed tiles.
inline std::int64_t points_floats(std::int64_t slots, std::int64_t channels, std::int64_t tiles) {
  return slots * slot_stride(channels, tiles);
}

/// Floats of the points of so many tiles of some channels of a pass's input or output.
inline std::int64_t input_floats(const Pass& pass, std::int64_t channels, std::int64_t tiles) {
  return points_floats(pass.slots, channels, tiles * pass.slices_in);
}
inline std::int64_t output_floats(const Pass& pass, std::int64_t channels, std::int64_t tiles) {
  return points_floats(pass.slots, channels, tiles * pass.slices_out);
}

/// The panels of a thread of a parallel region.
struct PanelRange {
  std::int64_t begin, end;

  explicit PanelRange(std::int64_t panels)
      : begin(panels * omp_get_thread_num() / omp_get_num_threads()),
        end(panels * (omp_get_thread_num() + 1) / omp_get_num_threads()) {}
};

/// Panels that a thread takes at a time, at most.
inline std::int64_t most_panels(std::int64_t lanes) {
  return is_wide(lanes) ? Wide::kMostPanels : Narrow::kMostPanels;
}

/// Calls `run` with the loops and the forward scheme for a shape.
template <class Run>
void choose(const WinogradShape& shape, const Run& run) {
  if (is_wide(shape.lanes)) {
    shape.stride == 2 ? run(Wide(), Wide::Strided()) : run(Wide(), Wide::Unstrided());
  } else {
    shape.stride == 2 ? run(Narrow(), Narrow::Strided()) : run(Narrow(), Narrow::Unstrided());
  }
}

}  // namespace pipetrain::winograd
