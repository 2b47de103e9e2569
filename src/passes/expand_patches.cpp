// Convolutions of images whose windows are patches side by side, as products.
#include <algorithm>

#include "ops/conv/conv.h"
#include "passes/patterns.h"
#include "passes/rewrite.h"

namespace pipetrain {
namespace {

/// Fewer than cuDNN's fast kernels take.
constexpr std::int64_t kChannelsOfImages = 4;

bool is_patch(const WindowAxis& axis) {
  return axis.stride == axis.kernel && axis.dilation == 1 && axis.pad_begin == 0 &&
         axis.pad_end == 0 && axis.input == axis.output * axis.kernel;
}

bool cuts_patches(const ConvGeometry& geometry) {
  const auto is_wide = [](const WindowAxis& axis) { return axis.kernel > 1; };
  return geometry.group == 1 && geometry.inputs <= kChannelsOfImages &&
         std::ranges::all_of(geometry.window, is_patch) &&
         std::ranges::any_of(geometry.window, is_wide);
}

}  // namespace

int expand_patches(Graph& graph) {
  Rewriter rewriter(graph);
  int found = 0;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->name != "Conv") continue;
    const Node node = graph.nodes[n];
    const Shape x = graph[node.inputs[0]].type.shape, w = graph[node.inputs[1]].type.shape,
                y = graph[node.outputs[0]].type.shape;
    const ConvGeometry geometry = conv_geometry(node.attributes, x, w);
    if (!cuts_patches(geometry)) continue;
    // (N, C, rows, kernel rows, …) to (N, rows, …, C, kernel rows, …).
    std::vector<std::int64_t> apart = {x[0], x[1]}, rows_of = {y[0]};
    Ints positions = {0}, taps = {1}, to_channels = {0, static_cast<std::int64_t>(y.rank()) - 1};
    for (std::size_t i = 0; i < geometry.window.size(); ++i) {
      const WindowAxis& axis = geometry.window[i];
      apart.insert(apart.end(), {axis.output, axis.kernel});
      positions.push_back(static_cast<std::int64_t>(2 * i + 2));
      taps.push_back(static_cast<std::int64_t>(2 * i + 3));
      rows_of.push_back(axis.output);
      to_channels.push_back(static_cast<std::int64_t>(i + 1));
    }
    rows_of.push_back(y[1]);
    Ints perm = positions;
    perm.insert(perm.end(), taps.begin(), taps.end());
    const std::int64_t features = w.count(1, w.rank());

    rewriter.replace(n);
    const ValueId patches = rewriter.emit(
        "Transpose", {rewriter.reshape(node.inputs[0], Shape(apart))}, {{"perm", perm}})[0];
    std::vector<ValueId> operands = node.inputs;
    operands[0] = rewriter.reshape(patches, {x[0], x.count() / features / x[0], features});
    operands[1] = rewriter.reshape(node.inputs[1], {w[0], features});
    if (!operands.back()) operands.pop_back();  // no bias
    const ValueId rows = rewriter.emit(
        "MatMul", operands, {{"trans_a", std::int64_t{0}}, {"trans_b", std::int64_t{1}}})[0];
    rewriter.emit("Transpose", {rewriter.reshape(rows, Shape(rows_of))}, {{"perm", to_channels}},
                  node.outputs[0]);
    ++found;
  }
  rewriter.apply();
  return found;
}

}  // namespace pipetrain
