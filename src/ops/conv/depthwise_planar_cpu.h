// Depthwise convolutions between row-major feature maps: a channel at a time, vectors of
// neighbouring columns. A channel's rows come to the workspace as floats with zeros around them,
// their columns sorted by the remainder of their place and the stride, so that what neighbouring
// outputs read lies side by side. The bits do not depend on the number of threads.
#pragma once

#include "ops/conv/depthwise_cpu.h"

namespace pipetrain {

/// Whether rows lie row-major and are long enough that this is faster than to transpose them.
bool depthwise_rows_are_long(const Depthwise& shape);

/// Forward or input gradient, planned.
struct DepthwisePlanarPass {
  Depthwise shape;
  bool input_gradient;
  DepthwiseAxis rows, columns;
  std::int64_t vectors;      // of a row of results of a phase
  std::int64_t left;         // first column of the source in the workspace
  std::int64_t phase_width;  // floats of each remainder in a row of the workspace
  std::int64_t band;         // rows of a phase that are computed from one part of the source
  std::vector<std::vector<DepthwiseTap>>
      taps;  // by phase of the row, then of the column; in floats
};
DepthwisePlanarPass depthwise_planar_forward(const Depthwise& shape);
DepthwisePlanarPass depthwise_planar_input_gradient(const Depthwise& shape);

std::size_t depthwise_planar_workspace_bytes(const DepthwisePlanarPass& pass, int threads);
/// As depthwise_run().
template <class Element>
void depthwise_planar_run(const DepthwisePlanarPass& pass, const Element* from, const Element* w,
                          const float* bias, Element* to, std::byte* workspace, int threads);

/// As depthwise_weight_gradient().
std::size_t depthwise_planar_weight_gradient_workspace_bytes(const Depthwise& shape, int threads);
template <class Element>
void depthwise_planar_weight_gradient(const Depthwise& shape, const Element* x, const Element* dy,
                                      bool add, float* dw, float* dbias, std::byte* workspace,
                                      int threads);

}  // namespace pipetrain
