// Checks that cuDNN offers a plan for the backend's normalizations on a described GPU, which need
// not be present: norm_gate DEVICE.json. Also compares result sizes with pipetrain's.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "ops/norm/batch_norm.h"
#include "ops/norm/layer_norm.h"
#include "ops/norm/norm_graph_cuda.h"

namespace {

using pipetrain::NormGraph;
using pipetrain::NormKind;
using pipetrain::NormShapes;
using pipetrain::Shape;

struct Case {
  const char* name;
  NormKind kind;
  Shape x;
  bool variant;  // of kBatch a Relu behind it, of kLayer no bias
};

constexpr NormKind kBatch = NormKind::kBatch, kLayer = NormKind::kLayer,
                   kRootMeanSquare = NormKind::kRootMeanSquare;
const Case kCases[] = {
    {"ResNet-50, first", kBatch, {32, 64, 112, 112}, true},
    {"ResNet-50, first stage", kBatch, {32, 64, 56, 56}, true},
    {"ResNet-50, end of a block", kBatch, {32, 256, 56, 56}, false},
    {"ResNet-50, second stage", kBatch, {32, 128, 28, 28}, true},
    {"ResNet-50, third stage", kBatch, {32, 1024, 14, 14}, false},
    {"ResNet-50, last stage", kBatch, {32, 512, 7, 7}, true},
    {"ResNet-50, last", kBatch, {32, 2048, 7, 7}, false},
    {"one image", kBatch, {1, 64, 55, 55}, false},
    {"no positions", kBatch, {64, 512}, false},
    {"one axis", kBatch, {16, 32, 100}, false},
    {"three axes", kBatch, {4, 32, 8, 16, 16}, false},
    {"GPT-2", kLayer, {8, 1024, 768}, false},
    {"BERT", kLayer, {16, 512, 1024}, false},
    {"4096 wide, without bias", kLayer, {4, 512, 4096}, true},
    {"odd width", kLayer, {3, 7, 77}, false},
    {"4096 wide", kRootMeanSquare, {4, 512, 4096}, false},
    {"odd width", kRootMeanSquare, {3, 7, 77}, false},
};

/// From the operators' inference.
NormShapes shapes_of(const Case& c, bool gradient, NormShapes::Precision numbers) {
  NormShapes shapes{c.kind, gradient, 0, 0, 1, gradient ? 0 : 1e-5F, false, false, numbers};
  if (c.kind == kBatch) {
    const pipetrain::BatchNormShape x(c.x);
    shapes.images = x.images;
    shapes.channels = x.channels;
    shapes.positions = x.positions;
    shapes.bias = !gradient;
    shapes.relu = !gradient && c.variant;
  } else {
    const pipetrain::LayerNormGeometry x = pipetrain::layer_norm_geometry({}, c.x);
    shapes.images = x.rows;
    shapes.channels = x.width;
    shapes.bias = !gradient && c.kind == kLayer && !c.variant;
  }
  return shapes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ifstream file(arguments[1]);
  const std::string device((std::istreambuf_iterator<char>(file)), {});
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  int refused = 0;
  for (const int type : {0, 1, 2}) {
    int accepted = 0, offered = 0, kept = 0, fewest = 1 << 30;
    for (const Case& c : kCases) {
      // In float32, layer norms use hand-written kernels.
      if (type == 0 && c.kind != kBatch) continue;
      for (const bool gradient : {false, true}) {
        const NormShapes shapes = shapes_of(c, gradient, static_cast<NormShapes::Precision>(type));
        NormGraph graph(shapes);
        std::string reason;
        if (!NormGraph::infers_sizes(shapes, &reason)) reason = "another size of " + reason;
        pipetrain::PlanCount plans;
        if (reason.empty()) plans = graph.plans_for(device, &reason);
        if (plans.kept == 0) {
          ++refused;
          std::printf("refused: %s in %s, %s: %s\n", c.name, kNames[type],
                      gradient ? "gradient" : "forward", reason.c_str());
          continue;
        }
        ++accepted;
        offered += plans.offered;
        kept += plans.kept;
        fewest = std::min(fewest, plans.kept);
      }
    }
    std::printf(
        "normalizations in %s that cuDNN accepts for %s: %d; of %d plans %d are kept, at least "
        "%d of a graph\n",
        kNames[type], arguments[1], accepted, offered, kept, accepted > 0 ? fewest : 0);
  }
  std::printf("refused: %d\n", refused);
  return refused > 0 ? 1 : 0;
}
