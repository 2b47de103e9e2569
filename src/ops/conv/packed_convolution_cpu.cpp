#include "ops/conv/packed_convolution_cpu.h"

#include <algorithm>
#include <type_traits>

#include "ops/matmul/blocked_product_cpu.h"
#include "ops/matmul/gemm_packing_cpu.h"

namespace pipetrain {
namespace {

using blocked::kLanes;
using blocked::kPanel;
using gemm_panels::Write;

static_assert(kPanel == gemm_panels::kColumns);

std::int64_t panels(std::int64_t channels) { return (channels + kPanel - 1) / kPanel; }

/// A panel of 16 outputs, or of 8 and zeros: lines of (inputs, taps) become columns.
template <class Source, Write kWrite>
void pack_outputs(const typename Source::Element* lines, std::int64_t terms, std::int64_t outputs,
                  float* to) {
  if (outputs == kPanel)
    return gemm_panels::transpose_sixteen<Source, kWrite>(lines, terms, terms, to);
  transpose_eight(lines, terms, terms, to, kPanel);
  for (std::int64_t k = 0; k < terms; ++k) std::fill_n(to + k * kPanel + kLanes, kLanes, 0.0F);
}

/// The taps of 16 inputs for one output, or of 8 and zeros, the last tap first.
template <Write kWrite, class Element>
void pack_taps(const Element* lines, std::int64_t taps, std::int64_t inputs, float* to) {
  const auto put_row = [&](std::int64_t tap, Vector8 low, Vector8 high) {
    gemm_panels::put<kWrite>(to + (taps - 1 - tap) * kPanel, low, high);
  };
  const Element* others = lines + kLanes * taps;
  const bool both = inputs == kPanel;
  std::int64_t tap = 0;
  for (; tap + kLanes <= taps; tap += kLanes) {
    Vector8 low[8], high[8] = {};
    for (int r = 0; r < 8; ++r) low[r] = load8(lines + r * taps + tap);
    transpose(low);
    for (int r = 0; both && r < 8; ++r) high[r] = load8(others + r * taps + tap);
    if (both) transpose(high);
    for (int i = 0; i < 8; ++i) put_row(tap + i, low[i], high[i]);
  }
  for (; tap < taps; ++tap) {
    Vector8 low, high = {};
    for (int r = 0; r < 8; ++r) low[r] = to_float(lines[r * taps + tap]);
    for (int r = 0; both && r < 8; ++r) high[r] = to_float(others[r * taps + tap]);
    put_row(tap, low, high);
  }
}

/// A panel of 16 inputs, or of 8 and zeros, whose taps lie `step` elements apart from one output to
/// the next.
template <Write kWrite, class Element>
void pack_inputs(const Element* lines, std::int64_t step, const WeightShape& shape,
                 std::int64_t inputs, float* to) {
  constexpr std::int64_t kAhead = 4;  // the hardware does not follow short pieces
  const std::int64_t row = shape.taps * kPanel;
  for (std::int64_t k = 0; k < shape.outputs; ++k, lines += step, to += row) {
    blocked::prefetch(lines + kAhead * step, inputs * shape.taps);
    pack_taps<kWrite>(lines, shape.taps, inputs, to);
  }
}

template <class Source, Write kWrite>
void pack(const WeightShape& shape, bool input_gradient, const typename Source::Element* w,
          float* packed, int threads) {
  const std::int64_t columns = input_gradient ? shape.inputs : shape.outputs;
  const std::int64_t terms = shape.inputs * shape.taps;
  const std::int64_t panel = (input_gradient ? shape.outputs : shape.inputs) * shape.taps;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t first = 0; first < columns; first += kPanel) {
      const std::int64_t count = std::min(kPanel, columns - first);
      float* to = packed + first * panel;
      if (input_gradient) {
        pack_inputs<kWrite>(w + first * shape.taps, terms, shape, count, to);
      } else {
        pack_outputs<Source, kWrite>(w + first * terms, terms, count, to);
      }
    }
    gemm_panels::end_stream();
  }
}

}  // namespace

std::int64_t packed_convolution_floats(const WeightShape& shape, bool input_gradient) {
  const std::int64_t columns = input_gradient ? shape.inputs : shape.outputs;
  const std::int64_t depth = input_gradient ? shape.outputs : shape.inputs;
  return panels(columns) * kPanel * depth * shape.taps;
}

template <class Element>
void pack_convolution(const WeightShape& shape, bool input_gradient, const Element* w,
                      float* packed, int threads) {
  constexpr std::int64_t kCachedFloats = std::int64_t{1} << 18;  // larger ones leave the caches
  using Source = std::conditional_t<std::is_same_v<Element, float>, gemm_panels::Floats,
                                    gemm_panels::WidenedFloats>;
  const bool large = packed_convolution_floats(shape, input_gradient) > kCachedFloats;
  if (large && gemm_panels::can_stream(packed))
    return pack<Source, Write::kStreamed>(shape, input_gradient, w, packed, threads);
  pack<Source, Write::kCached>(shape, input_gradient, w, packed, threads);
}

template void pack_convolution(const WeightShape&, bool, const float*, float*, int);
template void pack_convolution(const WeightShape&, bool, const BFloat16*, float*, int);

}  // namespace pipetrain
