// Weights of a convolution as its inner loops read them with few samples, where gathering them out
// of (outputs, inputs, taps...) for every micro-batch would cost more than the arithmetic:
//
//   [panel of 16 outputs][input][tap][16]
//
// For the input gradient inputs and outputs change places and the taps are reversed.
#pragma once

#include <cstdint>

namespace pipetrain {

struct WeightShape {
  std::int64_t outputs, inputs;  // multiples of 8
  std::int64_t taps;
};

/// What a kernel reads: (outputs, inputs, taps), or a copy packed for its direction, of floats. No
/// bit of a result depends on which.
template <class Element>
struct ConvolutionWeights {
  const Element* data;
  bool packed = false;
};

/// Floats of a packed copy for one direction: half a panel that is left over is filled with zeros.
std::int64_t packed_convolution_floats(const WeightShape& shape, bool input_gradient);

/// Element: float or BFloat16.
template <class Element>
void pack_convolution(const WeightShape& shape, bool input_gradient, const Element* w,
                      float* packed, int threads);

}  // namespace pipetrain
