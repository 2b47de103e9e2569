// Convolutions of feature maps with few positions, such as 2x2 feature maps under 3x3 windows at
// the end of VGG, where most of the window lies on padding. Forward and input gradient are a
// product over the channels for each place where a tap acts, with a row for every sample:
//
//   y (samples, outputs) at p += x (samples, inputs) at q times w (inputs, outputs) of the tap that
//   is q's under the window at p
//
// The weight gradient of a tap sums x times dy over the places where it acts and all samples.
// Tensors are channel-blocked (nChw8c or nChw16c).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/conv/conv.h"
#include "ops/conv/packed_convolution_cpu.h"
#include "ops/matmul/blocked_product_cpu.h"

namespace pipetrain {

struct SmallFeatureMap {
  std::int64_t batch, inputs, outputs;
  std::int64_t in_positions, out_positions, taps;
  /// Of output position p and input position q at p * in_positions + q: the tap, -1 for none.
  std::vector<std::int64_t> tap;
  std::int64_t lanes;  // channels of a block of the tensors
  /// Where each tap acts, as offsets in x and dy by position: tap t in [begin[t], begin[t + 1]).
  std::vector<blocked::OperandPair> pairs;
  std::vector<std::size_t> begin;

  std::span<const blocked::OperandPair> pairs_of(std::int64_t tap) const {
    const std::size_t first = begin[static_cast<std::size_t>(tap)];
    return std::span(pairs).subspan(first, begin[static_cast<std::size_t>(tap) + 1] - first);
  }
};

enum class ConvolutionPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

/// The convolution in this form, where that pays for the pass: no groups, channels in whole blocks
/// of `lanes`; fewer positions than half the window has taps, or a few more under windows that
/// move by several, whose gradients are slow otherwise. `multiplies_bfloat16`: what it is compared
/// with has instructions for products of bfloat16 numbers.
std::optional<SmallFeatureMap> small_feature_map(const ConvGeometry& geometry, std::int64_t lanes,
                                                 ConvolutionPass pass, bool multiplies_bfloat16);
/// Whether there are enough samples that packing the weights for them alone pays.
bool small_feature_map_packs(const SmallFeatureMap& shape);

std::size_t small_feature_map_workspace_bytes(const SmallFeatureMap& shape, bool packed,
                                              int threads);
std::size_t small_feature_map_weight_gradient_workspace_bytes(const SmallFeatureMap& shape,
                                                              int threads);

/// w: (outputs, inputs, taps…); bias may be null. Element: float, or BFloat16 for what is stored
/// so; all arithmetic is float's.
template <class Element>
void small_feature_map_forward(const SmallFeatureMap& shape, const Element* x,
                               const ConvolutionWeights<Element>& w, const float* bias, Element* y,
                               std::byte* workspace, int threads);
template <class Element>
void small_feature_map_input_gradient(const SmallFeatureMap& shape, const Element* dy,
                                      const ConvolutionWeights<Element>& w, Element* dx,
                                      std::byte* workspace, int threads);
/// dw and, unless null, dbias: written, or added to what is there.
template <class Element>
void small_feature_map_weight_gradient(const SmallFeatureMap& shape, const Element* x,
                                       const Element* dy, bool add, float* dw, float* dbias,
                                       std::byte* workspace, int threads);

}  // namespace pipetrain
