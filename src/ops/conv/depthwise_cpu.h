// Depthwise convolutions: every channel by itself, a vector of channels at a time. Rows of a
// feature map come to the workspace as floats with zeros around them, so that windows have no
// edges, in bands that stay in the second-level cache; whatever the layout of the tensors is, their
// channels lie side by side there. The bits do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/conv/conv.h"

namespace pipetrain {

struct Depthwise {
  std::int64_t batch, channels;
  WindowAxis rows, columns;
  std::int64_t x_lanes, y_lanes;  // channels of a block: 16, 8, or 1 for row-major
  std::int64_t taps() const { return rows.kernel * columns.kernel; }
};

/// The convolution in this form: one channel a group, over one or two axes.
std::optional<Depthwise> depthwise(const ConvGeometry& geometry, Layout x, Layout y);

/// Where a tap reads, in vectors behind the place of an output, and its weight.
struct DepthwiseTap {
  std::int64_t source, weight;
};

/// One axis of a pass: output phase + i * phases reads at i * step + place, where the places of the
/// phases' taps are first to last.
struct DepthwiseAxis {
  std::int64_t inputs, outputs, phases, step;
  std::int64_t first, last;
  std::int64_t outputs_of_phase() const { return (outputs + phases - 1) / phases; }
};

/// Forward or input gradient, planned.
struct DepthwisePass {
  Depthwise shape;
  bool input_gradient;
  DepthwiseAxis rows, columns;
  std::int64_t together;     // outputs of an inner loop
  std::int64_t tiled;        // columns of a phase: whole inner loops
  std::int64_t left, width;  // columns of the source that are in the workspace
  std::int64_t band;         // rows of a phase that are computed from one part of the source
  std::vector<std::vector<DepthwiseTap>> taps;  // by phase of the row, then of the column
  /// Where there are neither strides nor dilation: the taps of each row that read its first column.
  std::vector<DepthwiseTap> row_taps;
};
DepthwisePass depthwise_forward(const Depthwise& shape);
DepthwisePass depthwise_input_gradient(const Depthwise& shape);

std::size_t depthwise_workspace_bytes(const DepthwisePass& pass, int threads);
/// From x to y, or from dy to dx. w: (channels, taps); bias may be null. Element: float, or
/// BFloat16 for what is stored so; all arithmetic is float's.
template <class Element>
void depthwise_run(const DepthwisePass& pass, const Element* from, const Element* w,
                   const float* bias, Element* to, std::byte* workspace, int threads);

std::size_t depthwise_weight_gradient_workspace_bytes(const Depthwise& shape, int threads);
/// dw and, unless null, dbias: written, or added to what is there.
template <class Element>
void depthwise_weight_gradient(const Depthwise& shape, const Element* x, const Element* dy,
                               bool add, float* dw, float* dbias, std::byte* workspace,
                               int threads);

}  // namespace pipetrain
